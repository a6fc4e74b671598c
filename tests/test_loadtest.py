"""The load test in virtual time: what is sent when, what is counted, what is said."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.ledger import Block, Ledger
from coordinator.loadtest.arrivals import Arrivals, Ramp, arrival_offsets
from coordinator.loadtest.console import block, sweep_table
from coordinator.loadtest.distribution import describe, percentile
from coordinator.loadtest.document import Heading, details, exit_code, point_result
from coordinator.loadtest.execution import Execution, Job, arm_order
from coordinator.loadtest.options import Data, Point, Shown, Slo, parse_points, parse_shown
from coordinator.loadtest.result import ArmRun, arm_result, keeps
from coordinator.loadtest.runner import Pace, Runner, Segment
from coordinator.loadtest.samples import Chunk, Place, Recording, Sample, Status
from coordinator.loadtest.saving import file_name
from coordinator.loadtest.sessions import predicted_speedup, time_split, whole_sessions, workflow
from coordinator.loadtest.speculation import acceptance, by_category
from coordinator.loadtest.warmth import warmth
from coordinator.loadtest.workload import Arm, PromptKind, RequestFields, Script, Turn
from protos import coordinator_pb2 as pb
from protos.coordinator_pb2 import PROPOSAL_SOURCE_DRAFTER, SPECULATION_MODE_OFF
from protos.errors import InvalidRequest
from tests.loadtest_fakes import (
    MixedServer,
    RefusingServer,
    TimedServer,
    delta,
    finished,
    run_in_virtual_time,
    sample,
    started,
)

COMMON = RequestFields({}, "run", 1)
HEADING = Heading(datetime(2030, 1, 2, 3, 4, 5), "models/tiny", "models/tiny")
SHOWN = Shown(percentiles=(50.0, 90.0, 99.0))


def one_turn(num: int) -> tuple[Script, ...]:
    return tuple(Script(index, PromptKind.IDS, (Turn((1, 2, 3), 1),)) for index in range(num))


def run_segment(send: Any, scripts: tuple[Script, ...], pace: Pace, arm: Arm = Arm.SPECULATIVE) -> Segment:
    return run_in_virtual_time(Runner(send, COMMON).run(scripts, pace, arm))


def results_of(send: Any, job: Job) -> list[dict[str, Any]]:
    async def run() -> list[dict[str, Any]]:
        execution = Execution(job, send, 100)
        await execution.warm_up()
        runs = [await execution.run_point(number) for number in range(len(job.points))]
        return [point_result(each, job, HEADING, SHOWN) for each in runs]

    return run_in_virtual_time(run())


def job(**changes: Any) -> Job:
    values: dict[str, Any] = {
        "data": Data(num_prompts=6),
        "points": (Point(math.inf, 1),),
        "seed": 7,
        "run_id": "run",
    }
    return Job(**{**values, **changes})


# -- arrivals -------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=50)
@given(
    st.integers(0, 200), st.floats(0.1, 1000), st.floats(0.05, 50) | st.just(math.inf), st.integers(0, 2**32)
)
def test_offsets_ascend_and_offer_the_configured_rate(num: int, rate: float, shape: float, seed: int) -> None:
    offsets = arrival_offsets(Arrivals(rate, shape), num, random.Random(seed))
    assert len(offsets) == num
    assert list(offsets) == sorted(offsets)
    assert offsets[:1] == (0.0,)[:num]
    if num > 1:
        assert offsets[-1] == pytest.approx((num - 1) / rate)


@pytest.mark.parametrize(("shape", "variation"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5)])
def test_burstiness_is_the_shape_of_the_gamma_law(shape: float, variation: float) -> None:
    """The gaps of a gamma law of shape b vary by 1/sqrt(b); Poisson arrivals by 1."""
    offsets = arrival_offsets(Arrivals(10.0, shape), 20_001, random.Random(1))
    gaps = [later - earlier for earlier, later in pairwise(offsets)]
    found = describe(gaps, ())
    assert found.mean is not None
    assert found.std is not None
    assert found.mean == pytest.approx(0.1)
    assert found.std / found.mean == pytest.approx(variation, rel=0.05)


@pytest.mark.parametrize(("strategy", "middle"), [("linear", 50.5), ("exponential", 10.0)])
def test_ramps(strategy: str, middle: float) -> None:
    ramp = Ramp(strategy, 1.0, 100.0)
    assert ramp.rate_at(0.0) == 1.0
    assert ramp.rate_at(0.5) == pytest.approx(middle)
    assert ramp.rate_at(1.0) == pytest.approx(100.0)
    offsets = arrival_offsets(Arrivals(burstiness=math.inf, ramp=ramp), 101, random.Random(1))
    assert offsets[1] == pytest.approx(1.0)
    assert offsets[-1] - offsets[-2] == pytest.approx(0.01)


def test_an_infinite_rate_sends_all_at_once() -> None:
    assert arrival_offsets(Arrivals(), 3, random.Random(1)) == (0.0, 0.0, 0.0)


# -- latencies ------------------------------------------------------------------------------------


def test_a_frozen_server_shows_in_the_tail() -> None:
    """10 requests/s, 100 requests of 1 ms, one at a time, frozen from 2 s to 4 s."""
    server = TimedServer(0.001, frozen=(2.0, 4.0))
    offsets = arrival_offsets(Arrivals(10.0, math.inf), 100, random.Random(1))
    segment = run_segment(server.send, one_turn(100), Pace(offsets, 1))
    result = arm_result(ArmRun((segment,)), SHOWN)
    assert result["completed"] == 100
    assert result["p90_e2el_ms"] == pytest.approx(1010, abs=5)
    assert result["p99_e2el_ms"] == pytest.approx(1900, abs=5)
    assert result["mean_e2el_ms"] == pytest.approx(213, abs=1)
    assert result["p99_ttft_ms"] == pytest.approx(1900, abs=5)
    # What a clock that starts at the sending would say.
    from_sending = [(each.ended_seconds - each.started_seconds) * 1e3 for each in segment.samples]
    assert percentile(from_sending, 99) == pytest.approx(1, abs=0.1)
    assert describe(from_sending, ()).mean == pytest.approx(21, abs=0.1)


def test_ttft_is_the_first_message_with_tokens() -> None:
    recording = Recording(Place(0, 0), 0.0, 0.0)
    recording.add(started(), 0.010)
    recording.add(delta(0, [], ""), 0.020)
    recording.add(delta(0, [5]), 0.100)
    recording.add(finished(), 0.200)
    assert recording.end(0.200).ttft_seconds == 0.100


def test_times_of_one_request() -> None:
    chunks = (Chunk(1.0, 3), Chunk(1.5, 1), Chunk(2.5, 4))
    one = sample(chunks=chunks, ended_seconds=2.75)
    assert one.ttft_seconds == 1.0
    assert one.tpot_seconds == pytest.approx(1.5 / 5)
    assert one.itl_seconds == (0.5, 1.0)
    assert one.e2el_seconds == 2.75
    assert one.queue_seconds == 0.5
    assert sample(chunks=(Chunk(1.0, 3),)).tpot_seconds is None


def test_tokens_per_chunk_and_peaks() -> None:
    samples = (sample(0), sample(1, started_seconds=2.0, ended_seconds=3.0, chunks=(Chunk(2.5, 5),)))
    result = arm_result(ArmRun((Segment(Arm.SPECULATIVE, samples, 0.0, 3.0, 0),)), SHOWN)
    assert result["tokens_per_chunk"] == 3.0
    assert result["max_output_tokens_per_s"] == 7.0
    assert result["max_concurrent_requests"] == 1
    assert result["num_tpot"] == 1
    assert result["num_itl"] == 1


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.floats(0.1, 100))
def test_percentile_is_the_least_value_that_enough_values_do_not_exceed(
    values: list[float], percent: float
) -> None:
    found = percentile(values, percent)
    assert found in values
    enough = percent / 100 * len(values) - 1e-6
    assert sum(value <= found for value in values) >= enough
    lower = [value for value in values if value < found]
    assert len(lower) < enough + 2e-6


def test_nothing_is_made_up_for_no_values() -> None:
    found = describe([], (99.0,))
    assert (found.num, found.mean, found.median, found.std, found.percentiles) == (
        0,
        None,
        None,
        None,
        (None,),
    )


# -- failures -------------------------------------------------------------------------------------


def test_failures_are_counted_apart() -> None:
    """3 good, 1 empty, 1 failing, 1 cut: only the good ones have latencies."""
    (result,) = results_of(MixedServer().send, job())
    assert (result["completed"], result["failed"], result["cancelled"]) == (3, 3, 0)
    assert result["failures_by_reason"] == {"EMPTY": 1, "UNAVAILABLE": 1, "CUT": 1}
    assert result["num_ttft"] == 3
    assert result["mean_ttft_ms"] == pytest.approx(100)
    assert result["mean_e2el_ms"] == pytest.approx(300)
    assert result["total_output_tokens"] == 12
    assert exit_code([result], max_failed=3) == 0
    assert exit_code([result], max_failed=2) == 1
    assert "Failed requests:                         3" in block(result, SHOWN)


@pytest.mark.parametrize(
    "server",
    [RefusingServer(), MixedServer(("empty",)), MixedServer(("cut",))],
    ids=["refusing", "empty", "cut"],
)
def test_no_success_is_a_failure(server: Any) -> None:
    (result,) = results_of(server.send, job())
    assert result["completed"] == 0
    assert result["mean_ttft_ms"] is None
    assert not result["output_throughput"]
    assert exit_code([result], max_failed=100) == 1
    json.dumps(result, allow_nan=False)


def test_a_failed_turn_ends_its_session_only() -> None:
    server = MixedServer(("good", "failing", "good", "good"))
    scripts = tuple(Script(index, PromptKind.CHAT, (Turn("a"), Turn("b"), Turn("c"))) for index in range(2))
    segment = run_segment(server.send, scripts, Pace(max_concurrency=1))
    assert [(each.place.session, each.place.turn, each.status) for each in segment.samples] == [
        (0, 0, Status.OK),
        (0, 1, Status.FAILED),
        (1, 0, Status.OK),
        (1, 1, Status.OK),
        (1, 2, Status.OK),
    ]
    assert segment.num_unsent == 1


# -- sessions -------------------------------------------------------------------------------------


def test_a_sessions_history_grows_by_its_answers() -> None:
    server = TimedServer(0.1, num_tokens=2)
    turns = (Turn((7, 8), 5), Turn((9,), 6, pause_seconds=3.0))
    segment = run_segment(server.send, (Script(0, PromptKind.IDS, turns),), Pace())
    assert [list(each.token_ids) for each in server.requests] == [[7, 8], [7, 8, 0, 1, 9]]
    assert {each.session_id for each in server.requests} == {"run-speculative-0"}
    assert [each.max_tokens for each in server.requests] == [5, 6]
    first, second = segment.samples
    assert second.scheduled_seconds - first.ended_seconds == pytest.approx(3.0)
    assert second.ttft_seconds == pytest.approx(0.1)
    split = time_split(whole_sessions(segment.samples))
    assert split.wall == pytest.approx(3.4)
    assert split.tool == pytest.approx(3.0)


def test_chat_sessions_send_messages_and_raw_ones_text() -> None:
    server = TimedServer(0.1)
    for kind in (PromptKind.CHAT, PromptKind.RAW):
        run_segment(server.send, (Script(0, kind, (Turn("a"), Turn("b"))),), Pace())
    chat = [(each.role, each.content) for each in server.requests[1].messages]
    assert chat == [("user", "a"), ("assistant", "x"), ("user", "b")]
    assert server.requests[3].prompt == "axb"


def test_a_closed_loop_keeps_its_concurrency() -> None:
    segment = run_segment(TimedServer(1.0).send, one_turn(7), Pace(max_concurrency=2))
    starts = sorted(each.started_seconds for each in segment.samples)
    assert starts == pytest.approx([0, 0, 1, 1, 2, 2, 3])
    assert all(each.e2el_seconds == pytest.approx(1.0) for each in segment.samples)


def test_an_open_loop_tells_waiting_in_the_client_apart() -> None:
    segment = run_segment(TimedServer(1.0).send, one_turn(3), Pace((0.0, 0.1, 0.2), 1))
    assert [each.queue_seconds for each in segment.samples] == pytest.approx([0, 0.9, 1.8])
    assert [each.e2el_seconds for each in segment.samples] == pytest.approx([1.0, 1.9, 2.8])


def test_cancelled_requests_are_neither_good_nor_failed() -> None:
    turns = (Turn((1,), 8, cancel_after=2), Turn((2,), 8))
    server = TimedServer(0.1, num_tokens=8)
    segment = run_segment(server.send, (Script(0, PromptKind.IDS, turns),), Pace())
    assert [each.status for each in segment.samples] == [Status.CANCELLED, Status.OK]
    assert [each.num_tokens for each in segment.samples] == [2, 8]
    assert list(server.requests[1].token_ids) == [1, 0, 1, 2]
    result = arm_result(ArmRun((segment,)), SHOWN)
    assert (result["completed"], result["cancelled"], result["failed"]) == (1, 1, 0)


def test_nothing_new_is_sent_when_the_time_is_over() -> None:
    segment = run_segment(TimedServer(1.0).send, one_turn(9), Pace(max_concurrency=1, max_seconds=2.5))
    assert len(segment.samples) == 3
    assert segment.num_unsent == 6


def test_agent_sessions_share_a_prefix_and_pause() -> None:
    data = Data(
        "agent", num_prompts=3, turns=3, shared_prefix_len=5, pause_seconds=2.0, cancel_rate=0.5, output_len=8
    )
    server = TimedServer(0.01, num_tokens=8)
    results_of(server.send, job(data=data))
    prompts = [list(each.token_ids) for each in server.requests]
    assert len(prompts) == 9
    assert len({tuple(prompt[:5]) for prompt in prompts}) == 1
    assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(prompts[:3]))


def test_a_recorded_agent_is_run_as_it_was(tmp_path: Path) -> None:
    """Each turn of a file may have its own length, its tool's time, and the place where it was left."""
    path = tmp_path / "agent.jsonl"
    first = {"content": "a", "output_tokens": 3}
    second = {"content": "b", "pause_ms": 2500, "cancel_after": 2}
    path.write_text(json.dumps({"turns": [first, second, "c"], "output_tokens": 9}) + "\n")
    server = TimedServer(0.1, num_tokens=4)
    data = Data("custom", path, num_prompts=1, pause_seconds=0.0)
    (result,) = results_of(server.send, job(data=data))
    assert [each.max_tokens for each in server.requests] == [3, 9, 9]
    assert [each.content for each in server.requests[2].messages if each.role == "user"] == ["a", "b", "c"]
    assert (result["completed"], result["cancelled"]) == (2, 1)
    assert result["duration"] == pytest.approx(0.4 + 2.5 + 0.2 + 0.4)


def test_workflow_speedup_predicted_and_measured() -> None:
    """Half the wall time is decoding, which becomes twice as fast: 1 / (.5 + .25) = 4/3."""

    def arm(decode_seconds: float) -> list[Sample]:
        usage = pb.Usage(prefill_ms=1000, decode_ms=decode_seconds * 1e3)
        end = 2.0 + decode_seconds
        first = sample(started_seconds=0.0, ended_seconds=1.0, finished=pb.Finished(usage=pb.Usage()))
        return [
            first,
            replace(
                first,
                place=Place(0, 1),
                scheduled_seconds=1.0,
                started_seconds=1.0,
                ended_seconds=end,
                finished=pb.Finished(usage=usage),
            ),
        ]

    found = workflow(arm(1.0), arm(2.0))
    assert found.decode_share == pytest.approx(0.5)
    assert found.decode_speedup == pytest.approx(2.0)
    assert found.predicted == pytest.approx(4 / 3)
    assert found.measured == pytest.approx(4 / 3)
    assert predicted_speedup(0.5, 2.0) == pytest.approx(4 / 3)


# -- speculation ----------------------------------------------------------------------------------


def with_blocks(*blocks: Block) -> Sample:
    ledger = Ledger()
    for each in blocks:
        ledger.note_block(each)
    return sample(finished=pb.Finished(ledger=ledger.to_message(), usage=ledger.usage(1, 1, 0.0)))


def test_acceptance_counts() -> None:
    """K = 4, accepted 4, 2, 0: 9 tokens in 3 rounds; at K = 5 a block [d, d, EOS, d, d] counts 3."""
    found = acceptance([with_blocks(*(Block(PROPOSAL_SOURCE_DRAFTER, 4, 4, n, n + 1) for n in (4, 2, 0)))])
    assert found.mean_length == 3.0
    assert found.rate == 0.5
    assert found.per_position == pytest.approx((2 / 3, 2 / 3, 1 / 3, 1 / 3))
    ended = acceptance([with_blocks(Block(PROPOSAL_SOURCE_DRAFTER, 5, 5, 3, 3))])
    assert (ended.num_kept, ended.num_accepted, ended.num_verified, ended.num_drafted) == (3, 3, 3, 5)
    none = acceptance([sample()])
    assert none.rate is None
    assert none.mean_length is None


def test_failed_requests_count_for_no_rate() -> None:
    good = with_blocks(Block(PROPOSAL_SOURCE_DRAFTER, 4, 4, 4, 5))
    bad = replace(with_blocks(Block(PROPOSAL_SOURCE_DRAFTER, 4, 4, 0, 1)), status=Status.FAILED)
    assert acceptance([good, bad]).rate == 1.0


def test_acceptance_by_category() -> None:
    good = with_blocks(Block(PROPOSAL_SOURCE_DRAFTER, 2, 2, 2, 3))
    bad = replace(with_blocks(Block(PROPOSAL_SOURCE_DRAFTER, 2, 2, 0, 1)), place=Place(1, 0))
    found = by_category([good, bad, replace(bad, place=Place(2, 0))], {0: "code", 1: "prose", 2: ""})
    assert {name: each.per_position for name, each in found.items()} == {"code": (1, 1), "prose": (0, 0)}


# -- goodput, arms, warmth ------------------------------------------------------------------------


def test_goodput_counts_requests_that_keep_every_bound() -> None:
    one = sample()  # TTFT 1 s, TPOT .5 s, E2EL 2 s
    assert keeps(one, Slo((("ttft", 1.0), ("tpot", 0.5), ("e2el", 2.0))))
    assert not keeps(one, Slo((("ttft", 1.0), ("tpot", 0.4))))
    segment = Segment(Arm.SPECULATIVE, (one, sample(1, chunks=(Chunk(0.5, 4),))), 0.0, 4.0, 0)
    shown = replace(SHOWN, slo=Slo((("ttft", 0.6),)))
    assert arm_result(ArmRun((segment,)), shown)["request_goodput"] == 0.25
    assert arm_result(ArmRun((segment,)), SHOWN)["request_goodput"] is None


class TwoSpeeds(TimedServer):
    """Half as fast without speculation; says something else from `wrong_from` on in that arm."""

    wrong_from = 10**9

    async def send(self, message: pb.GenerateRequest) -> Any:
        plain = message.speculation.mode == SPECULATION_MODE_OFF
        inner = TimedServer(0.2 if plain else 0.1, num_tokens=4)
        self.requests.append(message)
        wrong = plain and len(self.requests) > self.wrong_from
        async for response in inner.send(message):
            if wrong and response.WhichOneof("body") == "delta":
                response.delta.token_ids[0] += 1
            yield response


def test_a_baseline_runs_in_turn_and_texts_are_equal() -> None:
    server = TwoSpeeds(0.1)
    (result,) = results_of(server.send, job(baseline_blocks=2, fields={"temperature": 0.0}))
    off = [each.speculation.mode == SPECULATION_MODE_OFF for each in server.requests]
    assert off == [False] * 3 + [True] * 6 + [False] * 3
    assert [arm.value[0] for _, arm in arm_order(3)] == list("sppssp")
    assert result["speedup"]["output_throughput"] == pytest.approx(2.0)
    assert result["speedup"]["tpot"] == pytest.approx(2.0)
    assert result["speedup"]["workflow"]["measured"] == pytest.approx(2.0)
    assert result["text_equality"] | {"first_differences": []} == {
        "compared": 6,
        "equal": 6,
        "different": 0,
        "holds": True,
        "first_differences": [],
    }
    seeds = [each.seed for each in server.requests]
    assert sorted(seeds[:3] + seeds[9:]) == sorted(seeds[3:9])
    assert "Equal texts:                             6 of 6" in block(result, SHOWN)


def test_different_texts_fail_a_greedy_run() -> None:
    server = TwoSpeeds(0.1)
    server.wrong_from = 5
    (result,) = results_of(server.send, job(baseline_blocks=1, fields={"temperature": 0.0}))
    assert result["text_equality"]["different"] == 6
    assert exit_code([result], max_failed=0) == 1


def test_a_warm_prefix_cache_is_flagged() -> None:
    """Cached tokens in requests that were sent before any answer can only be from before the run."""

    def cached(num: int, **changes: Any) -> Sample:
        return sample(finished=pb.Finished(usage=pb.Usage(cached_tokens=num)), **changes)

    cold = [cached(0), cached(8, session=1, started_seconds=1.5)]
    assert not warmth(cold).is_warm
    warm = [cached(8), cached(8, session=1, started_seconds=1.5)]
    assert warmth(warm).is_warm
    assert "8 of 10 prompt tokens" in warmth(warm).warning
    sharing = [cached(0), cached(8, session=1)]
    assert not warmth(sharing).is_warm, "sent at once, the second found the first one's prefix"
    assert not warmth([]).is_warm


def test_prompts_repeat_by_seed_only() -> None:
    def prompts(seed: int) -> list[list[int]]:
        server = TimedServer(0.1)
        results_of(server.send, job(seed=seed, num_warmups=1))
        return [list(each.token_ids) for each in server.requests]

    assert prompts(1) == prompts(1)
    assert not set(map(tuple, prompts(1))) & set(map(tuple, prompts(2)))
    first = prompts(1)
    assert tuple(first[0]) not in set(map(tuple, first[1:])), "the warm-up warms no prompt"


# -- what is shown --------------------------------------------------------------------------------

TITLES = """Successful requests: Failed requests: Maximum request concurrency: Benchmark duration (s):
Total input tokens: Total generated tokens: Request throughput (req/s): Request goodput (req/s):
Output token throughput (tok/s): Peak output token throughput (tok/s): Peak concurrent requests:
Total token throughput (tok/s): Mean TTFT (ms): Median TTFT (ms): P99 TTFT (ms): Mean TPOT (ms):
Median TPOT (ms): P99 TPOT (ms): Mean ITL (ms): Median ITL (ms): P99 ITL (ms): Acceptance rate (%):
Acceptance length: Drafts: Draft tokens: Accepted tokens: Per-position acceptance (%):"""
KEYS = """date backend label model_id tokenizer_id num_prompts request_rate burstiness max_concurrency
duration completed failed total_input_tokens total_output_tokens request_throughput request_goodput
output_throughput total_token_throughput max_output_tokens_per_s max_concurrent_requests
spec_decode_acceptance_rate spec_decode_acceptance_length spec_decode_num_drafts spec_decode_draft_tokens
spec_decode_accepted_tokens spec_decode_per_position_acceptance_rates"""


class Speculative(TimedServer):
    async def send(self, message: pb.GenerateRequest) -> Any:
        async for response in super().send(message):
            if response.WhichOneof("body") == "finished":
                response.finished.CopyFrom(with_blocks(Block(PROPOSAL_SOURCE_DRAFTER, 4, 4, 2, 3)).finished)
                response.finished.finish_reason = 2
            yield response


def test_titles_and_keys_are_the_known_ones() -> None:
    shown = replace(parse_shown("ttft,tpot,itl,e2el", "99", ["ttft:200 tpot:50"]))
    one = job(points=(Point(2.0, 3),))

    async def run() -> Any:
        return await Execution(one, Speculative(0.1, num_tokens=3).send, 100).run_point(0)

    point = run_in_virtual_time(run())
    result = point_result(point, one, HEADING, shown)
    text = block(result, shown)
    assert text.startswith("============ Serving Benchmark Result ============")
    for title in (each for line in TITLES.splitlines() for each in line.replace(": ", ":|").split("|")):
        assert title in text, title
    latencies = {
        f"{kind}_{name}_ms"
        for kind in ("mean", "median", "std", "p99")
        for name in ("ttft", "tpot", "itl", "e2el")
    }
    assert set(KEYS.split()) | latencies <= set(result)
    assert set(details(point)) >= {
        "input_lens",
        "output_lens",
        "ttfts",
        "itls",
        "latencies",
        "start_times",
        "queue_times",
        "generated_texts",
        "errors",
    }
    assert file_name(result) == "dlite-grpc-2.0qps-concurrency3-tiny-20300102-030405.json"
    assert result["spec_decode_acceptance_rate"] == pytest.approx(50.0)
    assert len(sweep_table([result, result]).splitlines()) == 3


def test_points_of_a_sweep() -> None:
    assert parse_points("1,inf", "2,4") == (Point(1, 2), Point(1, 4), Point(math.inf, 2), Point(math.inf, 4))
    results = results_of(TimedServer(0.1).send, job(points=parse_points("inf", "1,3")))
    assert [each["output_throughput"] for each in results] == pytest.approx([10, 30])


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: parse_points("0", None), "--request-rate"),
        (lambda: parse_points("inf", "0"), "--max-concurrency"),
        (lambda: parse_shown("ttfb", "99", []), "--percentile-metrics"),
        (lambda: parse_shown("ttft", "101", []), "--metric-percentiles"),
        (lambda: parse_shown("ttft", "99", ["ttft"]), "--goodput"),
        (lambda: Ramp("steep", 1, 2), "--ramp-up-strategy"),
        (lambda: Ramp("linear", 0, 2), "--ramp-up-start-rps"),
    ],
)
def test_bad_flags_are_named(call: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        call()
    assert caught.value.field == field
