"""The rounds of a load test: found again by their request, summed over time, by class and position."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from coordinator.loadtest import rounds as r
from coordinator.loadtest.figure_memory import draft_memory, readable
from coordinator.loadtest.round_watch import watching
from coordinator.loadtest.rounds import PointRounds
from coordinator.loadtest.workload import Arm, Conversation, PromptKind, RequestFields, Script, Turn
from coordinator.trace.reader import read_trace
from coordinator.trace.record import RoundParts, RoundRecord, RoundSource
from tests import loadtest_fakes
from tests.coordinator_fakes import TableEngine
from tests.coordinator_harness import DraftServer, request
from tests.report_world import ABOUT, rounds_of
from tests.test_coordinator_cli import dlite
from tests.test_coordinator_server import drafted_stack, stack, wrong_from
from tests.test_loadtest_cli import loadtest
from tests.test_tenants_served import served
from tests.test_trace import record


def at(start: float, end: float, **changes: Any) -> RoundRecord:
    return record(ended=end, parts=RoundParts(verify=end - start), **changes)


def run(start: float, end: float, num_tokens: int, **changes: Any) -> RoundRecord:
    none = {"num_drafted": 0, "num_verified": 0, "num_accepted": 0}
    return at(start, end, source=RoundSource.RUN, num_tokens=num_tokens, **{**none, **changes})


def test_rounds_are_found_by_their_request() -> None:
    """Of this point, by arm; a tenant's name may stand before the id; others are left out."""
    ids = ("x-0-speculative-3-0", "team/x-0-speculative-4-1", "x-0-plain-3-0", "x-1-speculative-3-0", "other")
    records = [record(request_id=each) for each in ids]
    found = r.rounds_of_point(records, "x-0", {3: "code"}, ABOUT)
    assert [each.request_id for each in found.speculative] == list(ids[:2])
    assert [each.request_id for each in found.plain] == [ids[2]]
    assert found.classes == {ids[0]: "code", ids[2]: "code"}
    assert list(r.by_class(found)) == ["code", "chat/drafter"]


def test_requests_are_named_by_their_place() -> None:
    script = Script(7, PromptKind.IDS, (Turn((1,)), Turn((2,))))
    conversation = Conversation(script, Arm.PLAIN, RequestFields({}, "x-0", 1))
    assert [conversation.request(number).request_id for number in (0, 1)] == [
        "x-0-plain-7-0",
        "x-0-plain-7-1",
    ]


def test_bins_weigh_by_time() -> None:
    """A run of 3 s and a round of 1 s with v = 5: in their common second v is 3, k is 3.5."""
    found = r.bins([run(0.0, 3.0, 30), at(1.0, 2.0)], 0.0, 4.0, 4)
    assert [each.block_size for each in found] == pytest.approx([1.0, 3.0, 1.0, None])
    assert [each.num_drafted for each in found] == pytest.approx([0.0, 3.5, 0.0, None])
    assert [each.tokens_per_second for each in found] == pytest.approx([10.0, 13.0, 10.0, 0.0])
    assert [each.seconds_per_token for each in found] == pytest.approx([0.1, 2 / 13, 0.1, None])
    assert [each.acceptance for each in found] == [None, None, 0.5, None]
    assert r.bins([], 1.0, 1.0, 3) == ()


def test_no_time_and_no_token_is_lost_in_bins() -> None:
    rounds = rounds_of()
    found = r.bins(rounds.speculative, rounds.begin, rounds.end, 37)
    width = (rounds.end - rounds.begin) / 37
    tokens = sum(each.tokens_per_second * width for each in found)
    assert tokens == pytest.approx(sum(each.num_tokens for each in rounds.speculative))


def test_acceptance_by_position_is_of_what_was_reached() -> None:
    """v - 1 = 4: accepted 4, 2, 0; a block that the text's end cut after 1 judges nothing more."""
    blocks = [record(num_accepted=count) for count in (4, 2, 0)]
    assert r.by_position(blocks) == pytest.approx((2 / 3, 1.0, 0.5, 1.0))
    cut = record(num_accepted=1, is_cut=True)
    assert r.by_position([*blocks, cut]) == pytest.approx((3 / 4, 1.0, 0.5, 1.0))
    assert r.by_position([]) == ()
    assert r.acceptance_of(blocks) == pytest.approx(0.5)
    assert r.acceptance_of([run(0, 1, 5)]) is None


def test_parts_are_those_of_rounds_with_proposals() -> None:
    parts = r.mean_parts([record(), run(0.0, 9.0, 100)])
    assert parts["verify"] == pytest.approx(10.0)
    assert parts["target_network"] == pytest.approx(0.5)
    assert sum(parts.values()) == pytest.approx(14.0)
    assert r.mean_parts([]) == {}


def test_draft_memory_by_the_drafters_shape() -> None:
    """2 layers, 3 heads of keys and of values, 64 wide, float32: 3 KiB a token; 5 features of 576."""
    size = draft_memory(ABOUT)
    assert size is not None
    assert (size.history, size.features) == (2 * 2 * 3 * 64 * 4, 576 * 5 * 4)
    assert draft_memory({"model": "x"}) is None
    assert draft_memory({**ABOUT, "drafter_kv_bytes_per_token": 0}) is None
    assert [readable(value) for value in (512, 3072, 5 * 2**20)] == ["512 B", "3 KiB", "5 MiB"]


def test_the_arms_of_a_world_take_turns() -> None:
    rounds = rounds_of()
    assert rounds.has_any
    assert not PointRounds().has_any
    assert min(r.start_of(each) for each in rounds.plain) > rounds.begin
    assert replace(rounds, plain=()).end == rounds.end


async def test_rounds_of_a_coordinator_are_heard_and_written(tmp_path: Path) -> None:
    """What the file holds is what was heard; it sums up to the ledger, and no text is in it."""
    engine, path = TableEngine(), tmp_path / "rounds"
    async with (
        drafted_stack(engine, DraftServer(wrong_from(engine, 2))) as (client, running, _),
        watching(running.address, path) as log,
    ):
        answer = await client.complete(request(max_tokens=40, request_id="mine"))
    assert log.failure == ""
    trace = read_trace(path)
    assert list(trace.records) == sorted(log.records, key=lambda each: each.ended)
    mine = [each for each in trace.records if each.request_id == "mine"]
    ledger, usage = answer.finished.ledger, answer.finished.usage
    # The first token is the prefill's.
    assert sum(each.num_tokens for each in mine) == usage.completion_tokens - 1
    assert sum(each.num_verified for each in mine) == usage.verified_tokens
    assert sum(each.num_accepted for each in mine) == usage.accepted_tokens
    assert sum(each.num_drafted for each in mine) == usage.drafted_tokens
    assert len(mine) == ledger.num_rounds
    assert sum(each.num_verified > 0 for each in mine) <= ledger.num_draft_rounds
    times = ledger.draft_ms + ledger.verify_ms + ledger.network_ms + ledger.scheduling_ms
    assert sum(each.parts.wall for each in mine) == pytest.approx(times / 1e3, rel=0.05, abs=0.002)
    lengths = [each.context for each in mine]
    assert lengths == sorted(lengths)
    assert [each.position for each in mine] == [each - mine[0].context + 1 for each in lengths]
    assert trace.header.about["drafter_kind"] == "dlite_v1"


async def test_a_traced_coordinator_writes_every_round_and_no_text(tmp_path: Path) -> None:
    path = tmp_path / "rounds"
    secret = "the quick brown secret"
    async with stack(TableEngine(), trace=path) as (client, _, _):
        message = request(max_tokens=30, request_id="r")
        message.ClearField("token_ids")
        message.prompt = secret
        answer = await client.complete(message)
    content = path.read_bytes()
    assert sum(each.num_tokens for each in read_trace(path).records) == len(answer.token_ids) - 1
    assert len(answer.text) > 10
    for text in (secret, "secret", answer.text, answer.text[:10]):
        assert text.encode() not in content
    ids = msgpack.packb(list(answer.token_ids))[3:]
    assert ids[:20] not in content


async def test_save_rounds_and_a_coordinator_that_tells_none(tmp_path: Path) -> None:
    """A report goes without; a file that was asked for does not."""
    async with loadtest_fakes.serve(loadtest_fakes.CachingServer().send) as address:
        done = await loadtest(address, "--save-rounds", str(tmp_path / "rounds"))
        assert done.code == 1
        assert "tells no rounds" in done.err
        done = await loadtest(address, "--json", "--report", str(tmp_path / "report"))
    assert done.code == 0
    assert "rounds were not told" in done.out
    assert (tmp_path / "report" / "report.html").exists()


async def test_rounds_over_tls_are_told_to_operators_only(tmp_path: Path) -> None:
    """The names of its own requests begin with the tenant, and are found again all the same."""
    async with served(tmp_path) as system:
        for token in ("token-of-a", "token-of-the-operator"):
            (tmp_path / token).write_text(token)
            path = tmp_path / f"rounds-{token}"
            security = ("--tls-ca", str(tmp_path / "ca.pem"), "--token-file", str(tmp_path / token))
            more = ("--num-prompts", "1", "--output-len", "9", "--save-rounds", str(path))
            done = await dlite("loadtest", "--address", system.running.address, *security, *more)
            assert done.code == (1 if token == "token-of-a" else 0), done.err
        looked = await dlite("top", "--address", system.running.address, *security, "--json")
    assert "operator" not in done.err
    records = read_trace(path).records
    assert {each.request_id.partition(":")[0] for each in records} == {"op"}
    run_id = records[0].request_id.removeprefix("op:").partition("-speculative-")[0]
    assert len(r.rounds_of_point(records, run_id, {}, {}).speculative) == len(records)
    assert looked.code == 0
