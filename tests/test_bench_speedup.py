"""Yardstick `speedup`: its arithmetic on made-up replies, and what it tries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.agent_held_out import held_out_prompts
from deploy.asking import Reply
from deploy.bench import speedup
from deploy.bench.harness import BenchOptions, report
from deploy.bench.speedup import differing, outcome_of, pilot_prompts, prompts_by_kind, size_of
from deploy.bench.speedup_figures import Pair, cost_row, kind_figures, one_token_ms, plot, round_ms, worst
from deploy.bench.speedup_layouts import Kernels, layouts
from deploy.evaluate import SEED
from deploy.local import StackOptions
from protos import coordinator_pb2 as pb

KERNELS = Kernels("packed", {"packed": {1: 20.0, 2: 15.0}, "stock": {1: 40.0, 2: 22.0}})


def reply(seconds: float, ids: tuple[int, ...] = tuple(range(11)), **ledger: Any) -> Reply:
    """10 tokens after the first in so many seconds."""
    return Reply("", ids, pb.Ledger(**ledger), 0.25, 0.25 + seconds)


def tuned(seconds: float, **changes: Any) -> Reply:
    """6 rounds with proposals that commit 8 tokens, and 2 plain tokens."""
    ledger = {
        "num_rounds": 7, "num_draft_rounds": 6, "num_lookup_rounds": 2, "num_run_tokens": 2,
        "accept_lengths": [2, 2, 1, 1, 1, 1], "draft_ms": 12.0, "verify_ms": 120.0, "network_ms": 6.0,
        "scheduling_ms": 6.0, "verified_per_position": [6], "accepted_per_position": [2],
    }  # fmt: skip
    return reply(seconds, **{**ledger, **changes})


def pair(kind: str, plain: float, fast: float, **changes: Any) -> Pair:
    return Pair(kind, (reply(plain), reply(plain)), (tuned(fast), tuned(fast)), **changes)


def test_speedup_is_a_ratio_of_times_after_the_first_token() -> None:
    assert pair("gsm8k", 0.4, 0.2).speedup == pytest.approx(2.0)
    assert one_token_ms([reply(0.4), reply(0.2)]) == pytest.approx(30.0)


def test_a_round_costs_what_is_left_when_plain_tokens_are_taken_off() -> None:
    """0.22 s less two plain tokens of 20 ms are 180 ms in 6 rounds."""
    assert round_ms([tuned(0.22)], 20.0) == pytest.approx(30.0)
    assert round_ms([reply(0.2)], 20.0) is None


def test_figures_of_a_kind() -> None:
    pairs = [pair("agent:code_edit", 0.4, 0.2), pair("agent:code_edit", 0.3, 0.3)]
    found = kind_figures("agent:code_edit", pairs, 20.0)
    assert (found["speedup"], found["low"], found["high"]) == pytest.approx((1.5, 1.0, 2.0))
    assert found["tau"] == pytest.approx(8 / 6)
    assert found["tokens_per_round"] == pytest.approx(10 / 8)
    assert found["T_1_ms"] == pytest.approx(35.0)
    assert found["round_ms"] == pytest.approx((1000 - 8 * 20) / 24)
    assert found["break_even_tau"] == pytest.approx(found["round_ms"] / 35.0)
    assert found["accepted_per_position"] == [pytest.approx(1 / 3)]
    assert sum(found["time_shares"].values()) == pytest.approx(1.0)
    assert (found["bar"], kind_figures("mbpp", [pair("mbpp", 1, 1)], 20.0)["bar"]) == (1.15, 1.0)


def test_a_fixed_round_is_told_by_its_parts() -> None:
    row = cost_row(4, [tuned(0.2)], 12.0)
    assert (row["T_D_ms"], row["T_V_ms"]) == pytest.approx((12 / 7, 120 / 7))
    assert row["break_even_tau"] == pytest.approx(144 / 7 / 12)


def details(kinds: list[dict[str, Any]]) -> dict[str, Any]:
    return {"kinds": kinds, "costs": [cost_row(v, [tuned(0.2)], 12.0) for v in (2, 4)]}


def test_every_set_has_its_bar_and_texts_must_be_equal(tmp_path: Path) -> None:
    good = [pair("gsm8k", 0.3, 0.29), pair("agent:code_edit", 0.3, 0.2)]
    kinds = [kind_figures(one.kind, [one], 20.0) for one in good]
    result = json.loads(json.dumps(report("speedup", outcome_of(good, details(kinds)))))
    assert (result["value"], result["pass"]) == (pytest.approx(1.5), True)
    assert "slowest other set 1.03x" in result["unit"]
    assert "texts equal" in result["unit"]
    assert len(result["runs"]) == 8
    plot(result, tmp_path / "speedup.png")
    assert (tmp_path / "speedup.png").stat().st_size > 1000
    slow = [kinds[0] | {"speedup": 0.99}, kinds[1]]
    assert not outcome_of(good, details(slow)).passed
    assert not outcome_of(good, details([kinds[0], kinds[1] | {"speedup": 1.1}])).passed
    unequal = outcome_of(good, details([kinds[0] | {"same_text": False}, kinds[1]]))
    assert not unequal.passed
    assert "NOT equal" in unequal.unit
    assert (worst(kinds, agent=True), worst(kinds[1:], agent=False)) == (pytest.approx(1.5), None)


def test_a_difference_is_excused_only_by_a_near_tie(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    equal = pair("gsm8k", 1.0, 1.0)
    other = Pair("gsm8k", (reply(1.0),), (reply(1.0, ids=(0, 1, 9)),))
    assert differing(equal) == []
    assert differing(other) == [(tuple(range(11)), (0, 1, 9))]
    gaps = {"value": 1e-5}

    class Judge:
        def __init__(self, *_: object) -> None:
            pass

        def greedy_gap(self, prefix: list[int]) -> float:
            assert prefix == [7, 0, 1]
            return gaps["value"]

    class Ids:
        def __init__(self, *_: object) -> None:
            pass

        def render_chat(self, messages: object) -> str:
            return "rendered"

        def encode_rendered(self, text: str) -> list[int]:
            return [7]

    monkeypatch.setattr(speedup, "Reference", Judge)
    monkeypatch.setattr(speedup, "FileTokenizer", Ids)
    same, tie = speedup._judged([(equal, "p"), (other, "p")], tmp_path)
    assert (same.same_text, same.note) == (True, "")
    assert (tie.same_text, tie.note) == (True, "token 2: gap 1.0e-05")
    gaps["value"] = 0.1
    assert not speedup._judged([(other, "p")], tmp_path)[0].same_text


def test_layouts_are_shares_of_the_cores_or_all_of_them_in_turn() -> None:
    assert KERNELS.fastest == "packed"
    two = layouts(2, KERNELS)
    assert [(one.target_threads, one.draft_threads, one.has_drafter) for one in two] == [
        (1, 1, True),
        (2, 2, True),
        (2, 1, False),
    ]
    assert two[1].environment == {"OMP_WAIT_POLICY": "PASSIVE"}
    assert two[0].environment == two[2].environment == {}
    assert [one.target_threads for one in layouts(1, KERNELS)] == [1]
    other = layouts(2, Kernels("stock", KERNELS.step_ms))
    assert [one.kernel for one in other] == ["auto", "auto", "packed", "packed"]
    stack = StackOptions(Path("/m"), Path("/d"), target_flags=("--tapped-layers", "0,1"))
    plain = two[2].options(stack)
    assert (plain.drafter, plain.target_threads) == (None, 2)
    assert plain.target_flags == ("--tapped-layers", "0,1", "--linear-kernel", "packed")


def test_prompts_are_held_out_and_the_pilots_are_others(tmp_path: Path) -> None:
    file = tmp_path / "gsm8k.jsonl"
    file.write_text("".join(json.dumps({"turns": [f"question {n}"]}) + "\n" for n in range(9)))
    options = BenchOptions("smollm2", False, print, prompts=(file,))
    kinds = prompts_by_kind(options, tmp_path, 4)
    assert list(kinds) == ["gsm8k", "agent:json_tool_call", "agent:code_edit", "agent:log_reading"]
    assert all(len(prompts) == 4 for prompts in kinds.values())
    compared = {made.prompt for made in held_out_prompts(12, SEED)}
    assert {p for kind, found in kinds.items() if kind != "gsm8k" for p in found} == compared
    assert not set(pilot_prompts(6)) & compared
    assert size_of(True).max_tokens > size_of(False).max_tokens
