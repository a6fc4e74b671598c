"""The rounds of one request against the table target, in this process."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from coordinator.answer import Answer
from coordinator.coordinator import SOURCES
from protos import coordinator_pb2, draft_pb2, target_pb2
from protos.common_pb2 import (
    FINISH_REASON_ABORT,
    FINISH_REASON_ERROR,
    FINISH_REASON_LENGTH,
    FINISH_REASON_STOP,
)
from tests.coordinator_fakes import EOS, TableEngine, counting, cycling, saying
from tests.coordinator_harness import (
    ScriptedDrafter,
    TablePort,
    complete,
    make_coordinator,
    request,
    until,
)

K = 8
OFF = coordinator_pb2.SPECULATION_MODE_OFF
DRAFTER, LOOKUP = SOURCES["drafter"], SOURCES["lookup"]


async def answer_of(engine: TableEngine, num_right: int | None, **fields: Any) -> Answer:
    """The answer with a scripted drafter (None: without one); the target must be empty afterwards."""
    port = TablePort(engine)
    drafter = None if num_right is None else ScriptedDrafter(engine, num_right)
    coordinator = make_coordinator(port, drafter)
    answer, messages, failure = await complete(coordinator, request(**fields))
    assert failure is None
    assert messages[0].WhichOneof("body") == "started"
    assert messages[-1].WhichOneof("body") == "finished"
    assert coordinator.num_running == 0
    assert not engine.sequences
    assert len(engine.closes) == 1
    assert engine.closes[0][2] == answer.num_prompt_tokens + len(answer.token_ids)
    usage = answer.finished.usage
    assert usage.completion_tokens == len(answer.token_ids)
    assert usage.accepted_tokens <= min(usage.verified_tokens, usage.completion_tokens)
    assert usage.verified_tokens <= usage.drafted_tokens
    return answer


@pytest.mark.parametrize("num_right", range(K + 1))
@pytest.mark.parametrize("eos_index", [*range(0, 10), 17])
async def test_planted_eos_ends_the_text_in_every_slot(num_right: int, eos_index: int) -> None:
    text = "abcdefghijklmnopqrstuvwxyz"[:eos_index]
    answer = await answer_of(TableEngine(saying(text)), num_right, max_tokens=40, source=DRAFTER, k=K)
    assert answer.text == text
    assert answer.token_ids[-1] == EOS
    assert len(answer.token_ids) == eos_index + 1
    assert answer.finish_reason == FINISH_REASON_STOP
    assert answer.finished.stop_token_id == EOS


@pytest.mark.parametrize("max_tokens", [1, 2, 5, K, K + 1, K + 2])
@pytest.mark.parametrize("num_right", [0, 3, K])
async def test_exactly_max_tokens_are_delivered(max_tokens: int, num_right: int) -> None:
    engine = TableEngine(counting)
    port, drafter = TablePort(engine), ScriptedDrafter(engine, num_right)
    answer, _, _ = await complete(
        make_coordinator(port, drafter), request(max_tokens=max_tokens, source=DRAFTER, k=K)
    )
    assert answer.token_ids == [counting([0] * i) for i in range(max_tokens)]
    assert answer.finish_reason == FINISH_REASON_LENGTH
    assert answer.finished.usage.completion_tokens == max_tokens
    if max_tokens <= 2:
        assert not drafter.items, "nothing is drafted where one token remains"
    assert all(item.k <= max_tokens - 2 for item in drafter.items)


async def test_an_oracle_accepts_everything() -> None:
    answer = await answer_of(TableEngine(counting), K, max_tokens=1 + 9 * 4, source=DRAFTER, k=K)
    ledger = answer.finished.ledger
    assert list(ledger.accept_lengths) == [9, 9, 9, 9]
    assert ledger.accept_length == 9
    assert ledger.acceptance_rate == 1
    assert list(ledger.accepted_per_position) == [4] * K


@pytest.mark.parametrize("v", [2, 3, 5, 9])
async def test_v_bounds_what_is_verified(v: int) -> None:
    engine = TableEngine(counting)
    answer = await answer_of(engine, K, max_tokens=30, source=DRAFTER, k=K, v=v)
    assert max(answer.finished.ledger.accept_lengths) == v


@pytest.mark.parametrize("fields", [{"v": 1}, {"k": 0}, {"mode": OFF}])
async def test_without_speculation_one_run_decodes_all(fields: dict[str, Any]) -> None:
    engine = TableEngine(counting)
    answer = await answer_of(engine, K, max_tokens=30, **fields)
    assert [kind for _, kind in engine.log] == ["open", "run", "close"]
    ledger = answer.finished.ledger
    assert ledger.feature_bytes == 0
    assert ledger.draft_bytes == 0
    assert ledger.num_run_tokens == 29
    assert not ledger.HasField("acceptance_rate")
    assert not ledger.HasField("accept_length")


async def test_a_missing_drafter_means_run() -> None:
    engine = TableEngine(counting)
    answer = await answer_of(engine, None, max_tokens=30, source=DRAFTER)
    assert [kind for _, kind in engine.log] == ["open", "run", "close"]
    assert len(answer.token_ids) == 30


async def test_lookup_runs_until_a_match_then_verifies() -> None:
    engine = TableEngine(cycling(10))
    answer = await answer_of(engine, None, max_tokens=60, source=LOOKUP, k=7)
    assert answer.token_ids == [i % 10 for i in range(60)]
    ledger = answer.finished.ledger
    kinds = [kind for _, kind in engine.log]
    assert "hold" in kinds
    assert ledger.num_lookup_rounds == ledger.num_draft_rounds > 0
    assert ledger.accept_length > 7
    assert ledger.feature_bytes == 0


async def test_auto_takes_lookup_first_then_the_drafter() -> None:
    engine = TableEngine(cycling(10))
    answer = await answer_of(engine, 2, max_tokens=60, k=7)
    ledger = answer.finished.ledger
    assert answer.token_ids == [i % 10 for i in range(60)]
    assert 0 < ledger.num_lookup_rounds < ledger.num_draft_rounds
    assert ledger.num_run_tokens <= 1


@pytest.mark.parametrize("source", ["auto", "drafter", "lookup", "lookup_then_drafter"])
@pytest.mark.parametrize("num_right", [None, 0, 2, K])
async def test_every_source_gives_the_same_text(source: str, num_right: int | None) -> None:
    text = "one two three, one two three, one two four; " * 3
    answer = await answer_of(TableEngine(saying(text)), num_right, source=SOURCES[source])
    assert answer.text == text


@pytest.mark.parametrize("num_right", [None, 0, K])
@pytest.mark.parametrize("stop", ["own fox", "x", " jumps", "fox jumps over"])
async def test_a_stop_string_cuts_text_ids_and_kv(stop: str, num_right: int | None) -> None:
    text = "the quick brown fox jumps over"
    answer = await answer_of(TableEngine(saying(text)), num_right, stop=[stop], k=K)
    assert answer.text == text[: text.index(stop)]
    assert len(answer.token_ids) == text.index(stop) + len(stop)
    assert answer.finish_reason == FINISH_REASON_STOP
    assert answer.finished.stop_string == stop


async def test_held_text_comes_out_at_the_end() -> None:
    answer = await answer_of(TableEngine(saying("UNO DUE TRE")), 3, stop=["TRE\nAAAA"])
    assert answer.text == "UNO DUE TRE"
    assert answer.finished.stop_string == ""


async def test_no_character_is_split() -> None:
    text = "日本 👍🏽 é!"
    for limit in range(1, len(text.encode()) + 1):
        engine = TableEngine(saying(text))
        port = TablePort(engine)
        coordinator = make_coordinator(port, ScriptedDrafter(engine, 2))
        answer, messages, _ = await complete(coordinator, request(max_tokens=limit, k=3))
        whole = text.encode()[:limit].decode(errors="replace")
        assert answer.text == whole
        deltas = [item.delta for item in messages if item.HasField("delta")]
        assert not any("\ufffd" in delta.text for delta in deltas[:-1])


def count_then(fault_at: int, kind: str, repeat: int) -> Any:
    """A fault over events: the `fault_at`-th event of this kind comes `repeat` times (0: is lost)."""
    seen = 0

    def fault(event: target_pb2.Event) -> list[target_pb2.Event]:
        nonlocal seen
        if event.WhichOneof("kind") != kind:
            return [event]
        seen += 1
        return [event] * repeat if seen == fault_at else [event]

    return fault


@pytest.mark.parametrize("kind", ["verdict", "features"])
@pytest.mark.parametrize("fault_at", [1, 2, 3, 5])
@pytest.mark.parametrize("repeat", [0, 2])
@pytest.mark.parametrize("source", ["drafter", "lookup", "auto"])
async def test_lost_and_repeated_answers(kind: str, fault_at: int, repeat: int, source: str) -> None:
    engine = TableEngine(cycling(12))
    port = TablePort(engine, on_event=count_then(fault_at, kind, repeat))
    coordinator = make_coordinator(port, ScriptedDrafter(engine, 3))
    answer, _, failure = await complete(coordinator, request(max_tokens=50, source=SOURCES[source], k=5))
    assert failure is None
    assert answer.token_ids == [i % 12 for i in range(50)]


@pytest.mark.parametrize("fault_at", range(1, 8))
async def test_lost_commands_are_sent_again(fault_at: int) -> None:
    seen = 0

    def fault(command: target_pb2.Command) -> list[target_pb2.Command]:
        nonlocal seen
        seen += 1
        return [] if seen == fault_at else [command]

    engine = TableEngine(cycling(12))
    coordinator = make_coordinator(TablePort(engine, on_command=fault), ScriptedDrafter(engine, 3))
    answer, _, failure = await complete(coordinator, request(max_tokens=25, k=5))
    assert failure is None
    assert answer.token_ids == [i % 12 for i in range(25)]


async def test_a_delayed_verdict_is_ignored() -> None:
    kept: list[target_pb2.Event] = []

    def fault(event: target_pb2.Event) -> list[target_pb2.Event]:
        if event.WhichOneof("kind") != "verdict":
            return [event]
        late = list(kept)
        kept[:] = [event]
        return [event, *late]

    engine = TableEngine(counting)
    coordinator = make_coordinator(TablePort(engine, on_event=fault), ScriptedDrafter(engine, 3))
    answer, _, failure = await complete(coordinator, request(max_tokens=40, k=5))
    assert failure is None
    assert answer.token_ids == list(range(40))


@pytest.mark.parametrize("source", ["drafter", "lookup", "auto"])
@pytest.mark.parametrize("cut_at", range(1, 45, 4))
async def test_a_stream_cut_in_mid_round_leaves_no_gap(source: str, cut_at: int) -> None:
    engine = TableEngine(cycling(12))
    num_seen = 0

    def fault(event: target_pb2.Event) -> list[target_pb2.Event]:
        nonlocal num_seen
        num_seen += 1
        if num_seen != cut_at:
            return [event]
        asyncio.get_running_loop().call_soon(port.lose)
        return []

    port = TablePort(engine, on_event=fault)
    drafter = ScriptedDrafter(engine, 3)
    answer, _, failure = await complete(
        make_coordinator(port, drafter), request(max_tokens=50, source=SOURCES[source], k=5)
    )
    assert failure is None
    assert answer.token_ids == [i % 12 for i in range(50)]
    if num_seen >= cut_at and answer.finished.ledger.num_reopens:
        assert engine.opened[1] == [1, 2, 3, *answer.token_ids][: len(engine.opened[1])]


async def test_reopen_at_every_committed_length() -> None:
    engine = TableEngine(counting)
    port = TablePort(engine)

    class Losing(ScriptedDrafter):
        async def answer(self, item: draft_pb2.ProposeItem) -> draft_pb2.Proposal:
            proposal = self.proposal(item)
            port.lose()
            return proposal

    coordinator = make_coordinator(port, Losing(engine, 3))
    answer, _, failure = await complete(coordinator, request(max_tokens=20, source=DRAFTER, k=5))
    assert failure is None
    assert answer.token_ids == list(range(20))
    assert answer.finished.ledger.num_reopens == 18
    assert len({len(tokens) for tokens in engine.opened}) == len(engine.opened)


async def test_a_target_that_always_forgets_is_an_error_not_a_loop() -> None:
    engine = TableEngine(counting)
    port = TablePort(engine)

    def fault(command: target_pb2.Command) -> list[target_pb2.Command]:
        if command.HasField("open"):
            asyncio.get_running_loop().call_soon(port.lose)
        return []

    port = TablePort(engine, on_command=fault)
    coordinator = make_coordinator(port)
    answer, _, failure = await complete(coordinator, request(max_tokens=5))
    assert answer.finish_reason == FINISH_REASON_ERROR
    assert failure is not None
    assert "without a new token" in str(failure)


async def test_a_refusal_of_the_target_is_the_clients_error() -> None:
    engine = TableEngine(counting)

    def fault(event: target_pb2.Event) -> list[target_pb2.Event]:
        if event.WhichOneof("kind") != "verdict":
            return [event]
        refused = target_pb2.Refused(
            request_id=event.verdict.request_id,
            epoch=event.verdict.epoch,
            code=target_pb2.REFUSAL_CODE_INVALID_ARGUMENT,
            field="params.top_k",
            message="no",
        )
        return [target_pb2.Event(refused=refused)]

    coordinator = make_coordinator(TablePort(engine, on_event=fault))
    answer, _, failure = await complete(coordinator, request(max_tokens=5))
    assert failure is not None
    assert failure.field == "top_k"
    assert answer.finish_reason == FINISH_REASON_ERROR
    assert not engine.sequences


async def test_a_higher_epoch_at_the_target_is_overtaken() -> None:
    engine = TableEngine(counting)
    engine.closed_epochs["mine"] = 5000
    held = engine._refused

    def refused(command: Any, code: int, sequence: Any) -> target_pb2.Event:
        event = held(command, code, sequence)
        event.refused.held_epoch = engine.closed_epochs.get(command.request_id, 0)
        return event

    engine._refused = refused  # type: ignore[method-assign]
    coordinator = make_coordinator(TablePort(engine))
    answer, _, failure = await complete(coordinator, request(max_tokens=5, request_id="mine"))
    assert failure is None
    assert len(answer.token_ids) == 5


class SlowDrafter(ScriptedDrafter):
    """Never answers."""

    async def answer(self, item: draft_pb2.ProposeItem) -> draft_pb2.Proposal:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


async def test_a_late_drafter_costs_its_round_only() -> None:
    engine = TableEngine(counting)
    drafter = SlowDrafter(engine, 3)
    coordinator = make_coordinator(TablePort(engine), drafter, draft_timeout_seconds=0.01)
    answer, _, _ = await complete(coordinator, request(max_tokens=5, source=DRAFTER, k=5))
    assert answer.token_ids == list(range(5))
    assert answer.finished.ledger.num_undrafted_rounds == len(drafter.items) == 3
    assert drafter.num_failures == 3


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": []},
        {"tokens": [1] * 6},
        {"tokens": [10**6]},
        {"refusal": draft_pb2.DraftRefusal(field="features", message="no")},
    ],
)
async def test_a_useless_proposal_is_not_verified(change: dict[str, Any]) -> None:
    engine = TableEngine(counting)

    class Useless(ScriptedDrafter):
        async def answer(self, item: draft_pb2.ProposeItem) -> draft_pb2.Proposal:
            proposal = self.proposal(item)
            if "tokens" in change:
                del proposal.tokens[:]
            proposal.MergeFrom(draft_pb2.Proposal(**change))
            return proposal

    answer, _, _ = await complete(
        make_coordinator(TablePort(engine), Useless(engine, 3)), request(max_tokens=9, source=DRAFTER, k=5)
    )
    assert answer.token_ids == list(range(9))
    assert answer.finished.ledger.num_draft_rounds == 0


async def test_a_drafter_that_comes_back_ends_the_run() -> None:
    engine = TableEngine(counting)
    drafter = ScriptedDrafter(engine, 5)
    drafter.is_available = False

    def fault(event: target_pb2.Event) -> list[target_pb2.Event]:
        if event.verdict.committed_length == 3 + 20:
            drafter.is_available = True
        return [event]

    answer, _, _ = await complete(
        make_coordinator(TablePort(engine, on_event=fault), drafter),
        request(max_tokens=60, source=DRAFTER, k=5),
    )
    assert answer.token_ids == list(range(60))
    kinds = [kind for _, kind in engine.log]
    assert kinds[:4] == ["open", "run", "hold", "fetch"]
    assert answer.finished.ledger.num_draft_rounds > 3


@pytest.mark.parametrize("stage", ["open", "draft", "verify", "run"])
async def test_cancel_at_each_stage_closes_at_the_target(stage: str) -> None:
    engine = TableEngine(counting)
    reached = asyncio.Event()

    def fault(command: target_pb2.Command) -> list[target_pb2.Command]:
        if command.WhichOneof("kind") != stage:
            return [command]
        reached.set()
        return []

    class Stuck(SlowDrafter):
        def propose(self, item: draft_pb2.ProposeItem, cohort: int = 0) -> Any:
            reached.set()
            return super().propose(item, cohort)

    drafter = Stuck(engine, 3) if stage == "draft" else ScriptedDrafter(engine, 3)
    coordinator = make_coordinator(TablePort(engine, on_command=fault), drafter, resend_seconds=60)
    fields: dict[str, Any] = {"mode": OFF} if stage == "run" else {"source": DRAFTER}
    generation = await coordinator.admit(request(max_tokens=30, request_id="r", **fields))
    await reached.wait()
    assert coordinator.abort("r")
    messages = [message async for message in generation.attach().messages()]
    assert messages[-1].finished.finish_reason == FINISH_REASON_ABORT
    num_tokens = sum(len(message.delta.token_ids) for message in messages)
    assert messages[-1].finished.usage.completion_tokens == num_tokens
    assert engine.closes[0][0] == "r"
    assert engine.closes[0][2] == 3 + num_tokens
    assert not engine.sequences
    assert not coordinator.abort("r")


async def test_random_cancels_leave_nothing_behind() -> None:
    engine = TableEngine(cycling(12))
    coordinator = make_coordinator(TablePort(engine), ScriptedDrafter(engine, 2))
    rng = random.Random(5)
    for number in range(200):
        generation = await coordinator.admit(request(max_tokens=60, k=3, request_id=f"r{number % 7}"))
        for _ in range(rng.randint(0, 40)):
            await asyncio.sleep(0)
        generation.abort()
        messages = [message async for message in generation.attach().messages()]
        num_tokens = sum(len(message.delta.token_ids) for message in messages)
        assert messages[-1].finished.usage.completion_tokens == num_tokens
    assert coordinator.num_running == 0
    assert not engine.sequences


async def test_a_target_that_owes_an_answer_for_too_long_is_suspected() -> None:
    engine = TableEngine()
    port = TablePort(engine, on_command=lambda command: [])
    coordinator = make_coordinator(port, resend_seconds=0.01, hang_seconds=0.05)
    generation = await coordinator.admit(request(max_tokens=5))
    await until(lambda: port.num_suspected > 0)
    generation.abort()
    await generation.wait_ended()


@pytest.mark.parametrize("fields", [{"mode": OFF}, {"source": DRAFTER}])
async def test_a_client_that_does_not_read_stops_its_request_only(fields: dict[str, Any]) -> None:
    engine = TableEngine(counting)
    port, drafter = TablePort(engine), ScriptedDrafter(engine, 1)
    coordinator = make_coordinator(port, drafter, client_stall_seconds=0.2)
    stalled = await coordinator.admit(request(max_tokens=180, request_id="stalled", k=2, **fields))
    reader = stalled.attach()
    other, _, _ = await complete(coordinator, request(max_tokens=180, k=2))
    assert len(other.token_ids) == 180
    await stalled.wait_ended()
    messages = [message async for message in reader.messages()]
    assert messages[-1].finished.finish_reason == FINISH_REASON_ABORT
    assert "unread" in messages[-1].finished.error
    assert 64 <= len(messages) < 64 + 8
    assert not engine.sequences


async def test_a_slow_client_still_gets_everything() -> None:
    engine = TableEngine(counting)
    coordinator = make_coordinator(TablePort(engine), client_stall_seconds=30)
    generation = await coordinator.admit(request(max_tokens=180, mode=OFF))
    answer = Answer()
    async for message in generation.attach().messages():
        answer.add(message)
        for _ in range(3):
            await asyncio.sleep(0)
    assert answer.token_ids == list(range(180))


async def test_resume_continues_ids_text_and_key() -> None:
    text = "日本 and some more text"
    engine = TableEngine(saying(text))
    coordinator = make_coordinator(TablePort(engine), ScriptedDrafter(engine, 3))
    whole, _, _ = await complete(coordinator, request(max_tokens=30))
    for num_known in (1, 2, 3, 6, 9, 15):
        resume = coordinator_pb2.Resume(
            token_ids=whole.token_ids[:num_known], sampling_key=whole.sampling_key
        )
        rest, messages, _ = await complete(coordinator, request(max_tokens=30, resume=resume))
        assert whole.token_ids[:num_known] + rest.token_ids == whole.token_ids
        known_text = text.encode()[:num_known].decode(errors="ignore")
        assert known_text + rest.text == whole.text
        assert messages[1].delta.first_token_index == num_known
        assert rest.finished.usage.completion_tokens == len(whole.token_ids)
        assert rest.num_prompt_tokens == 3
