"""What the demo shows: rows of answers beside plain decoding, as JSON or as a table. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from deploy.asking import Reply
from deploy.prompts import Prompt


@dataclass(frozen=True)
class DemoRow:
    """One prompt decoded with proposals of one source, and plainly."""

    prompt: Prompt
    source: str
    reply: Reply
    baseline: Reply

    @property
    def identical(self) -> bool:
        same_ids = self.reply.token_ids == self.baseline.token_ids
        return same_ids and self.reply.text == self.baseline.text

    @property
    def accept_length(self) -> float | None:
        """Mean of A + 1 over rounds with proposals; None when there was none."""
        return mean_accept_length([self.reply])


def mean_accept_length(replies: Sequence[Reply]) -> float | None:
    """Mean of A + 1 over all rounds that had proposals; None when there was none."""
    lengths = [length for reply in replies for length in reply.ledger.accept_lengths]
    return sum(lengths) / len(lengths) if lengths else None


def tokens_per_second(replies: Sequence[Reply]) -> float:
    """Tokens after the first of each answer, by the time after the first: prefill is left out."""
    seconds = sum(reply.decode_seconds for reply in replies)
    tokens = sum(max(len(reply.token_ids) - 1, 0) for reply in replies)
    return tokens / seconds if seconds > 0 else 0.0


def per_position(replies: Sequence[Reply]) -> list[float | None]:
    """Accepted / verified for each position of a block; None where nothing was verified."""
    width = max((len(reply.ledger.verified_per_position) for reply in replies), default=0)

    def total(name: str, position: int) -> int:
        columns = [getattr(reply.ledger, name) for reply in replies]
        return sum(column[position] for column in columns if position < len(column))

    verified = [total("verified_per_position", j) for j in range(width)]
    return [total("accepted_per_position", j) / n if n else None for j, n in enumerate(verified)]


def time_shares(replies: Sequence[Reply]) -> dict[str, float]:
    """Where the time of the rounds went: shares of their sum."""
    names = ("draft_ms", "verify_ms", "network_ms", "scheduling_ms")
    sums = {name: sum(getattr(reply.ledger, name) for reply in replies) for name in names}
    total = sum(sums.values())
    return {name.removesuffix("_ms"): value / total if total else 0.0 for name, value in sums.items()}


def report(rows: Sequence[DemoRow], headline_source: str, pids: Mapping[str, int]) -> dict[str, Any]:
    """The object of `dlite demo --json`; speeds and accept length are those of the headline source."""
    headline = [row for row in rows if row.source == headline_source]
    speed = tokens_per_second([row.reply for row in headline])
    baseline_speed = tokens_per_second([row.baseline for row in headline])
    return {
        "prompts": [
            {
                "kind": row.prompt.kind,
                "source": row.source,
                "prompt": row.prompt.prompt,
                "text": row.reply.text,
                "baseline_text": row.baseline.text,
                "identical": row.identical,
                "accept_length": row.accept_length,
                "tokens": len(row.reply.token_ids),
            }
            for row in rows
        ],
        "tokens_per_second": speed,
        "baseline_tokens_per_second": baseline_speed,
        "speedup": speed / baseline_speed if baseline_speed else None,
        "accept_length": mean_accept_length([row.reply for row in headline]),
        "pids": dict(pids),
    }


def as_tables(rows: Sequence[DemoRow]) -> list[Table]:
    """Each prompt beside plain decoding; then, for each source, positions and times. 80 columns."""
    return [_table_of_prompts(rows), _table_of_positions(rows), _table_of_times(rows)]


def _table_of_prompts(rows: Sequence[DemoRow]) -> Table:
    title = "Speculative and plain decoding on one stack, temperature 0"
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("prompt", no_wrap=True)
    table.add_column("proposals", min_width=22, max_width=22)
    for name in ("identical", "plain\ntokens/s", "spec.\ntokens/s", "accept\nlength"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(row.prompt.kind, row.source, "yes" if row.identical else "NO", *_speeds([row]))
    table.add_section()
    for source, same in _by_source(rows).items():
        num_identical = sum(row.identical for row in same)
        table.add_row("all", source, f"{num_identical} of {len(same)}", *_speeds(same), style="bold")
    return table


def _table_of_positions(rows: Sequence[DemoRow]) -> Table:
    by_source = {
        source: per_position([row.reply for row in same]) for source, same in _by_source(rows).items()
    }
    table = Table(title="Share of proposals accepted, by position in the block", box=SIMPLE_HEAD)
    table.add_column("proposals")
    for position in range(max(map(len, by_source.values()), default=0)):
        table.add_column(str(position + 1), justify="right")
    for source, shares in by_source.items():
        table.add_row(source, *("-" if share is None else f"{share:.2f}" for share in shares))
    return table


def _table_of_times(rows: Sequence[DemoRow]) -> Table:
    table = Table(title="Where the time of the rounds went", box=SIMPLE_HEAD)
    for name in ("proposals", "draft", "verify", "network", "scheduling"):
        table.add_column(name, justify="left" if name == "proposals" else "right")
    for source, same in _by_source(rows).items():
        table.add_row(
            source, *(f"{share:.1%}" for share in time_shares([row.reply for row in same]).values())
        )
    return table


def _by_source(rows: Sequence[DemoRow]) -> dict[str, list[DemoRow]]:
    return {
        source: [row for row in rows if row.source == source]
        for source in dict.fromkeys(row.source for row in rows)
    }


def _speeds(rows: Sequence[DemoRow]) -> list[str]:
    replies = [row.reply for row in rows]
    accept_length = mean_accept_length(replies)
    return [
        f"{tokens_per_second([row.baseline for row in rows]):.1f}",
        f"{tokens_per_second(replies):.1f}",
        "none" if accept_length is None else f"{accept_length:.2f}",
    ]
