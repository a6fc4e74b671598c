"""What the demo prints, from made-up replies."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from rich.console import Console

from deploy.asking import Reply, plain_arm, speculative_arm
from deploy.demo import headline_of, labels_of
from deploy.demo_report import (
    DemoRow,
    as_tables,
    mean_accept_length,
    per_position,
    report,
    time_shares,
    tokens_per_second,
)
from deploy.prompts import Prompt, read_prompts, take
from protos import coordinator_pb2 as pb

UNTRAINED = "drafter (untrained, accept length about 1)"


def reply(tokens: int = 5, text: str = "x", seconds: float = 2.0, **ledger: object) -> Reply:
    return Reply(text, tuple(range(tokens)), pb.Ledger(**ledger), 0.5, 0.5 + seconds)  # type: ignore[arg-type]


def row(source: str = "lookup", **changes: Reply) -> DemoRow:
    values = {"reply": reply(), "baseline": reply(), **changes}
    return DemoRow(Prompt("code", "write"), source, **values)


def test_the_first_token_and_the_prefill_are_left_out_of_the_speed() -> None:
    assert tokens_per_second([reply(tokens=5, seconds=2.0), reply(tokens=1, seconds=0.0)]) == 2.0
    assert tokens_per_second([]) == 0.0


def test_accept_length_is_a_mean_over_rounds_and_none_without_rounds() -> None:
    """K = 4, accepted 4, 2, 0: 9 tokens in 3 rounds, 3.0."""
    assert mean_accept_length([reply(accept_lengths=[5, 3]), reply(accept_lengths=[1])]) == 3.0
    assert mean_accept_length([reply()]) is None


def test_positions_are_weighted_by_what_was_verified() -> None:
    one = reply(verified_per_position=[2, 1], accepted_per_position=[2, 0])
    two = reply(verified_per_position=[2, 0, 1], accepted_per_position=[0, 0, 1])
    assert per_position([one, two]) == [0.5, 0.0, 1.0]
    assert per_position([reply(verified_per_position=[1, 0], accepted_per_position=[1, 0])]) == [1.0, None]
    assert per_position([reply()]) == []


def test_times_are_shares() -> None:
    shares = time_shares([reply(draft_ms=1.0, verify_ms=7.0, network_ms=1.5, scheduling_ms=0.5)])
    assert shares == {"draft": 0.1, "verify": 0.7, "network": 0.15, "scheduling": 0.05}
    assert sum(time_shares([reply()]).values()) == 0.0


@pytest.mark.parametrize("other", [reply(tokens=4), reply(text="y")], ids=["ids", "text"])
def test_a_row_is_identical_only_with_equal_ids_and_text(other: Reply) -> None:
    assert row().identical
    assert not row(baseline=other).identical


def test_the_json_has_exactly_the_promised_fields() -> None:
    fast = reply(seconds=1.0, accept_lengths=[2, 4])
    rows = [row(reply=fast), row(source=UNTRAINED, reply=reply(seconds=8.0, accept_lengths=[1]))]
    result = json.loads(json.dumps(report(rows, "lookup", {"coordinator": 1, "target": 2, "draft": 3})))
    assert set(result) == {
        *("prompts", "tokens_per_second", "baseline_tokens_per_second", "speedup", "accept_length", "pids")
    }
    fields = ("kind", "source", "prompt", "text", "baseline_text", "identical", "accept_length", "tokens")
    assert all(set(one) == set(fields) for one in result["prompts"])
    assert [one["source"] for one in result["prompts"]] == ["lookup", UNTRAINED]
    assert (result["tokens_per_second"], result["baseline_tokens_per_second"]) == (4.0, 2.0)
    assert (result["speedup"], result["accept_length"]) == (2.0, 3.0)


def test_tables_fit_eighty_columns_and_label_the_untrained_drafter() -> None:
    rows = [row(source=source, baseline=reply(tokens=4)) for source in ("lookup", UNTRAINED)]
    out = StringIO()
    for table in as_tables(rows):
        Console(file=out, width=80).print(table)
    text = " ".join(out.getvalue().split())
    assert "untrained, accept" in text
    assert "NO" in text
    assert "…" not in text
    assert "accept length" in text


def test_an_untrained_drafter_is_labelled_and_is_never_the_headline() -> None:
    labels = labels_of("untrained")
    assert labels["drafter"] == UNTRAINED
    assert headline_of("untrained", labels) == "lookup"
    trained = labels_of("/a/folder")
    assert list(trained) == ["lookup", "drafter", "auto"]
    assert headline_of("/a/folder", trained) == trained["auto"]
    assert labels_of("none") == {"lookup": "lookup"}


def test_arms() -> None:
    assert plain_arm().speculation.mode == pb.SPECULATION_MODE_OFF
    arm = speculative_arm("lookup_then_drafter", 5)
    assert arm.speculation.source == pb.PROPOSAL_SOURCE_LOOKUP_THEN_DRAFTER
    assert (arm.speculation.verify_block_size, arm.speculation.num_draft_tokens) == (5, 4)
    assert not speculative_arm("lookup").speculation.HasField("verify_block_size")


def test_prompts_are_taken_kind_by_kind() -> None:
    prompts = read_prompts()
    kinds = {"code", "json_tool_call", "question", "log_reading", "code_edit"}
    assert {prompt.kind for prompt in prompts} == kinds
    assert {prompt.kind for prompt in take(prompts, 5)} == kinds
    assert len(take(prompts, 1000)) == len(prompts)
