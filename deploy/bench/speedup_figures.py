"""Figures of the yardstick `speedup`, from timed replies. Pure but for the plot.

T_1 is the time of a token of plain decoding. Of rounds with proposals: T_D drafter, T_V target, T_net
network, T_S scheduling, tau tokens committed. Such a round pays when tau > (T_V + T_D + T_net + T_S) / T_1,
the break-even tau.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.asking import Reply
from deploy.demo_report import mean_accept_length, per_position, time_shares, tokens_per_second

SET_BAR, AGENT_BAR = 1.0, 1.15
_PARTS = ("draft", "verify", "network", "scheduling")
# Fewer rounds than this give no cost of a round.
_FEWEST_ROUNDS = 5


@dataclass(frozen=True, eq=False)
class Pair:
    """One prompt, decoded plainly and with speculation, each `len(plain)` times in turn.

    Attributes:
        same_text: equal ids in every run, or a near-tie that an independent computation shows.
        note: what differs.
    """

    kind: str
    plain: tuple[Reply, ...]
    tuned: tuple[Reply, ...]
    same_text: bool = True
    note: str = ""

    @property
    def speedup(self) -> float:
        """Ratio of the times after the first token."""
        return sum(one.decode_seconds for one in self.plain) / sum(one.decode_seconds for one in self.tuned)


def one_token_ms(replies: Sequence[Reply]) -> float:
    """T_1 of plain replies."""
    return 1e3 / tokens_per_second(replies)


def round_ms(replies: Sequence[Reply], plain_ms: float) -> float | None:
    """Milliseconds of a round with proposals, all its parts: what the tokens of plain rounds took is taken
    off at T_1. None with too few rounds.

    Args:
        plain_ms: T_1 on the same stack.
    """
    rounds = sum(reply.ledger.num_draft_rounds for reply in replies)
    if rounds < _FEWEST_ROUNDS:
        return None
    run_tokens = sum(reply.ledger.num_run_tokens for reply in replies)
    total = 1e3 * sum(reply.decode_seconds for reply in replies)
    return max(total - run_tokens * plain_ms, 0.0) / rounds


def kind_figures(kind: str, pairs: Sequence[Pair], plain_ms: float) -> dict[str, Any]:
    """Of one kind of prompts. `plain_ms` is T_1 of the stack that speculates."""
    plain = [reply for pair in pairs for reply in pair.plain]
    tuned = [reply for pair in pairs for reply in pair.tuned]
    ratios = [pair.speedup for pair in pairs]
    cost = round_ms(tuned, plain_ms)
    fastest = one_token_ms(plain)
    return {
        "kind": kind,
        "speedup": statistics.median(ratios),
        "low": min(ratios),
        "high": max(ratios),
        "bar": AGENT_BAR if is_agent(kind) else SET_BAR,
        "num_prompts": len(pairs),
        "tokens": sum(len(reply.token_ids) for reply in tuned),
        "tau": mean_accept_length(tuned),
        "tokens_per_round": _tokens_per_round(tuned),
        "T_1_ms": fastest,
        "round_ms": cost,
        "break_even_tau": None if cost is None else cost / fastest,
        "lookup_rounds": sum(reply.ledger.num_lookup_rounds for reply in tuned),
        "rounds_with_proposals": sum(reply.ledger.num_draft_rounds for reply in tuned),
        "plain_tokens": sum(reply.ledger.num_run_tokens for reply in tuned),
        "time_shares": time_shares(tuned),
        "accepted_per_position": per_position(tuned),
        "same_text": all(pair.same_text for pair in pairs),
        "notes": [pair.note for pair in pairs if pair.note],
    }


def is_agent(kind: str) -> bool:
    return kind.startswith("agent:")


def _tokens_per_round(replies: Sequence[Reply]) -> float:
    """Tokens after the first, by all rounds; a plain token is a round."""
    tokens = sum(max(len(reply.token_ids) - 1, 0) for reply in replies)
    rounds = sum(reply.ledger.num_draft_rounds + reply.ledger.num_run_tokens for reply in replies)
    return tokens / max(rounds, 1)


def cost_row(v: int, replies: Sequence[Reply], plain_ms: float) -> dict[str, Any]:
    """Parts of a round that verifies v rows, from replies of a fixed plan; break-even against T_1.

    Args:
        plain_ms: T_1 of the fastest plain decoding.
    """
    rounds = max(sum(reply.ledger.num_rounds for reply in replies), 1)
    parts = {name: sum(getattr(reply.ledger, f"{name}_ms") for reply in replies) / rounds for name in _PARTS}
    return {
        "v": v,
        "rounds": rounds,
        "T_D_ms": parts["draft"],
        "T_V_ms": parts["verify"],
        "T_net_ms": parts["network"],
        "T_S_ms": parts["scheduling"],
        "tau": mean_accept_length(replies),
        "T_1_ms": plain_ms,
        "break_even_tau": sum(parts.values()) / plain_ms,
    }


def worst(kinds: Sequence[Mapping[str, Any]], *, agent: bool) -> float | None:
    """The smallest speed-up among agent kinds, or among the other sets; None without any."""
    found = [one["speedup"] for one in kinds if is_agent(one["kind"]) == agent]
    return min(found) if found else None


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Speed-up by kind with its bar, and what a round of v rows is made of, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    kinds = result["kinds"]
    names = [one["kind"].removeprefix("agent:") for one in kinds]
    values = [one["speedup"] for one in kinds]
    spread = [[one["speedup"] - one["low"] for one in kinds], [one["high"] - one["speedup"] for one in kinds]]
    left.barh(names, values, xerr=spread, color="tab:blue", ecolor="gray")
    left.plot([one["bar"] for one in kinds], names, "k|", markersize=18, label="bar")
    left.axvline(1.0, color="gray", linewidth=0.8)
    left.set(xlabel="x plain decoding (median and range of prompts)", title="Speed-up")
    left.legend()
    rows = result["costs"]
    bottom = [0.0] * len(rows)
    labels = [f"v = {row['v']}\ntau {row['tau'] or 1:.2f} of {row['break_even_tau']:.2f}" for row in rows]
    for name in ("T_V_ms", "T_D_ms", "T_net_ms", "T_S_ms"):
        heights = [row[name] for row in rows]
        right.bar(labels, heights, bottom=bottom, label=name.removesuffix("_ms"))
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    if rows:
        right.axhline(rows[0]["T_1_ms"], color="black", linestyle="--", label="T_1")
    right.set(ylabel="ms a round", title="Cost of a round (tau reached of break-even)")
    right.legend(fontsize=8)
    figure.savefig(path, dpi=120)
