"""What a coordinator counts: the usage it told its clients, in a bounded number of series."""

from __future__ import annotations

import asyncio
import random
import socket
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from coordinator.admin import AdminServer
from coordinator.answer import Answer
from coordinator.client import AsyncClient
from coordinator.coordinator import SOURCES, Coordinator
from coordinator.metrics import Metrics
from coordinator.startup import RunningCoordinator, start_coordinator
from protos import coordinator_pb2, draft_pb2
from protos.errors import DliteError, InvalidRequest, Unavailable
from tests.coordinator_fakes import EOS, TableEngine, counting, cycling, saying
from tests.coordinator_harness import (
    ScriptedDrafter,
    TablePort,
    complete,
    make_config,
    make_coordinator,
    request,
    serve_target,
    until,
)

DRAFTER = SOURCES["drafter"]
OFF = coordinator_pb2.SPECULATION_MODE_OFF
SPECULATION = (
    *("spec_decode_num_drafts", "spec_decode_num_draft_tokens"),
    *("spec_decode_num_accepted_tokens", "generation_tokens"),
)
# Labels may say these things and nothing else.
ALLOWED_LABELS = {
    "model_name",
    "finished_reason",
    "position",
    "part",
    "link",
    "address",
    "kind",
    "reason",
    "le",
}


def values(registry: CollectorRegistry) -> dict[str, float]:
    """Name and labels (without the model's) of every series -> value."""
    found = {}
    for family in registry.collect():
        for sample in family.samples:
            labels = [f"{key}={value}" for key, value in sample.labels.items() if key != "model_name"]
            found[",".join([sample.name, *labels])] = sample.value
    return found


def value(coordinator: Coordinator, name: str) -> float:
    return values(coordinator.metrics.registry)[name]


class CountingDrafter(ScriptedDrafter):
    """Its n-th proposal has as many right tokens as the n-th number says."""

    def __init__(self, engine: TableEngine, num_right: list[int]) -> None:
        super().__init__(engine, 0)
        self._numbers = iter(num_right)

    def proposal(self, item: draft_pb2.ProposeItem) -> draft_pb2.Proposal:
        self._num_right = next(self._numbers)
        return super().proposal(item)


async def test_rates_count_what_was_verified_and_lengths_count_the_bonus() -> None:
    """G1: K = 4, accepted 4, 2, 0: 9 tokens in 3 rounds, mean length 3, rate 6/12."""
    engine = TableEngine(saying("123456789"))
    coordinator = make_coordinator(TablePort(engine), CountingDrafter(engine, [4, 2, 0]))
    answer, _, _ = await complete(coordinator, request(max_tokens=40, source=DRAFTER, k=4))
    ledger = answer.finished.ledger
    assert list(ledger.accept_lengths) == [5, 3, 1]
    assert ledger.accept_length == 3.0
    assert ledger.acceptance_rate == 0.5
    counted = {name: value(coordinator, f"vllm:{name}_total") for name in SPECULATION}
    assert counted == dict(zip(SPECULATION, (3, 12, 6, 10), strict=True))
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    assert [value(coordinator, f"{name},position={j}") for j in range(4)] == [2, 2, 1, 1]


async def test_a_block_that_an_end_cuts_counts_what_stands() -> None:
    """G1, B9: [d, d, EOS, d, d] + bonus counts 3 tokens, not 6."""
    engine = TableEngine(saying("abc"))
    coordinator = make_coordinator(TablePort(engine), ScriptedDrafter(engine, 5))
    answer, _, _ = await complete(coordinator, request(max_tokens=40, source=DRAFTER, k=5))
    assert answer.token_ids[-1] == EOS
    assert value(coordinator, "vllm:generation_tokens_total") == 4
    assert value(coordinator, "vllm:spec_decode_num_accepted_tokens_total") == 3
    assert value(coordinator, "vllm:spec_decode_num_draft_tokens_total") == 3


async def test_without_drafts_nothing_is_counted_as_a_rate() -> None:
    coordinator = make_coordinator(TablePort(TableEngine(counting)))
    await complete(coordinator, request(max_tokens=9, mode=OFF))
    assert value(coordinator, "vllm:spec_decode_num_draft_tokens_total") == 0
    assert value(coordinator, "dlite_rounds_total,kind=run") == 1
    assert value(coordinator, "dlite_run_tokens_total") == 8


def random_request(rng: random.Random, number: int) -> coordinator_pb2.GenerateRequest:
    fields: dict[str, Any] = {
        "request_id": f"request-{number}",
        "session_id": f"session-{number}",
        "max_tokens": rng.choice((1, 2, 9, 30)),
        "k": rng.randrange(8),
        "source": SOURCES[rng.choice(list(SOURCES))],
    }
    if rng.random() < 0.2:
        fields["n"] = 3
    if rng.random() < 0.3:
        fields["stop"] = ["\x07\x08"]
    if rng.random() < 0.2:
        fields["prompt"] = f"prompt {number}"
    return request(**fields)


async def one(coordinator: Coordinator, message: coordinator_pb2.GenerateRequest, cut: bool) -> Answer:
    generation = await coordinator.admit(message)
    reader = generation.attach()
    if cut:
        for _ in range(5):
            await asyncio.sleep(0)
        generation.abort()
    answer = Answer()
    async for response in reader.messages():
        answer.add(response)
    return answer


async def test_1000_requests_add_no_series_and_usage_adds_up_to_the_counters() -> None:
    rng = random.Random(8)
    engine = TableEngine(cycling(12))
    coordinator = make_coordinator(TablePort(engine), ScriptedDrafter(engine, 3))
    sums: Counter[str] = Counter()
    series: set[str] = set()
    for number in range(1000):
        answer = await one(coordinator, random_request(rng, number), cut=rng.random() < 0.1)
        for choice in answer.choices:
            usage = choice.finished.usage
            for descriptor in usage.DESCRIPTOR.fields:
                sums[descriptor.name] += getattr(usage, descriptor.name)
            sums[f"reason={choice.finish_reason}"] += 1
        if number % 10 == 0:
            with pytest.raises(InvalidRequest):
                await coordinator.admit(request(top_p=9.0, request_id=f"bad-{number}"))
        if number == 99:
            series = set(values(coordinator.metrics.registry))
    found = values(coordinator.metrics.registry)
    assert set(found) == series
    for name, total in {
        "vllm:prompt_tokens_total": "prompt_tokens",
        "vllm:generation_tokens_total": "completion_tokens",
        "vllm:prefix_cache_queries_total": "prompt_tokens",
        "vllm:prefix_cache_hits_total": "cached_tokens",
        "vllm:spec_decode_num_draft_tokens_total": "verified_tokens",
        "vllm:spec_decode_num_accepted_tokens_total": "accepted_tokens",
        "dlite_drafted_tokens_total": "drafted_tokens",
        "dlite_recomputed_tokens_total": "recomputed_tokens",
    }.items():
        assert found[name] == sums[total], name
    assert found["vllm:request_success_total,finished_reason=length"] == sums["reason=2"]
    assert found["vllm:request_success_total,finished_reason=abort"] == sums["reason=4"] > 0
    assert found["dlite_requests_refused_total,reason=INVALID_REQUEST"] == 100
    accepted = found["vllm:spec_decode_num_accepted_tokens_total"]
    assert 0 < accepted <= found["vllm:generation_tokens_total"]
    for text in series:
        assert "request-" not in text
        assert "session-" not in text
        assert "prompt " not in text
        labels = [part.split("=")[0] for part in text.split(",")[1:]]
        assert set(labels) <= ALLOWED_LABELS


def test_texts_add_no_series() -> None:
    metrics = Metrics("m", max_positions=3)
    finished = coordinator_pb2.Finished(finish_reason=1)
    metrics.observe(finished, 1.0)
    series = set(values(metrics.registry))
    for number in range(10):
        metrics.observe(finished, number + 0.5)
    assert set(values(metrics.registry)) == series


def test_positions_are_bounded() -> None:
    metrics = Metrics("m", max_positions=3)
    finished = coordinator_pb2.Finished(finish_reason=1)
    finished.ledger.accepted_per_position.extend([1] * 50)
    before = len(values(metrics.registry))
    metrics.observe(finished, 1.0)
    metrics.observe(finished, 1.0)
    # Each position is a counter and the time it was made.
    assert len(values(metrics.registry)) == before + 3 * 2


@asynccontextmanager
async def served(engine: TableEngine) -> AsyncIterator[tuple[RunningCoordinator, AsyncClient]]:
    async with serve_target(engine) as (address, _):
        running = await start_coordinator(make_config(target_address=address))
        try:
            async with AsyncClient(running.address) as client:
                yield running, client
        finally:
            await running.stop()


async def get(address: str, path: str) -> tuple[int, str]:
    def work() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(work)


async def test_the_admin_port_speaks_prometheus() -> None:
    async with served(TableEngine(cycling(12))) as (running, client):
        await client.complete(request(max_tokens=30, n=2))
        status, text = await get(running.admin_address, "/metrics")
        assert status == 200
        families = {family.name: family for family in text_string_to_metric_families(text)}
        for name in (
            *("vllm:spec_decode_num_drafts", "vllm:spec_decode_num_draft_tokens"),
            *("vllm:spec_decode_num_accepted_tokens", "vllm:spec_decode_num_accepted_tokens_per_pos"),
            *("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:time_to_first_token_seconds"),
            *("vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds"),
            *("vllm:request_prefill_time_seconds", "vllm:request_decode_time_seconds"),
            *("vllm:prompt_tokens", "vllm:generation_tokens", "vllm:prefix_cache_queries"),
            *("vllm:prefix_cache_hits", "dlite_round_seconds", "dlite_wire_bytes", "dlite_stale_answers"),
            *("dlite_undrafted_rounds", "dlite_reopens", "dlite_link_up", "dlite_tuner_cohorts"),
            *("dlite_tuner_verify_block_size", "dlite_tuner_draft_tokens", "dlite_tuner_requests"),
        ):
            assert name in families, name
            # A series of a position is there once a round has had it.
            assert all(sample.labels["model_name"] == "table" for sample in families[name].samples)
        assert families["vllm:generation_tokens"].samples[0].value == 60
        assert families["dlite_link_up"].samples[0].value == 1
        counts = {
            sample.name: sample.value for sample in families["vllm:time_to_first_token_seconds"].samples
        }
        assert counts["vllm:time_to_first_token_seconds_count"] == 2


async def test_ready_follows_the_target_and_alive_does_not() -> None:
    async with serve_target(TableEngine()) as (address, _):
        running = await start_coordinator(make_config(target_address=address))
        assert await get(running.admin_address, "/readyz") == (200, "ready\n")
    await until(lambda: not running.coordinator.is_ready)
    assert await get(running.admin_address, "/readyz") == (503, "not ready\n")
    assert await get(running.admin_address, "/healthz") == (200, "alive\n")
    assert (await get(running.admin_address, "/else"))[0] == 404
    await running.stop()
    with pytest.raises(urllib.error.URLError):
        await get(running.admin_address, "/healthz")


async def test_a_peer_that_says_nothing_holds_up_nobody() -> None:
    server = AdminServer("127.0.0.1:0", CollectorRegistry(), lambda: True)
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port))):
        assert (await get(server.address, "/healthz"))[0] == 200
    with pytest.raises(Unavailable, match="taken"):
        AdminServer(server.address, CollectorRegistry(), lambda: True)
    server.stop()
    with pytest.raises(InvalidRequest, match="host:port"):
        AdminServer("nowhere", CollectorRegistry(), lambda: True)


async def test_no_admin_port_when_none_is_wanted() -> None:
    async with serve_target(TableEngine()) as (address, _):
        running = await start_coordinator(make_config(target_address=address, admin_address=""))
        assert running.admin_address == ""
        await running.stop()


async def test_refusals_are_counted_by_class_of_error() -> None:
    coordinator = make_coordinator(TablePort(TableEngine()), max_running=1, max_waiting=0)
    (await coordinator.admit(request(request_id="a"))).attach()
    for fields in ({"request_id": "a", "seed": 1}, {"request_id": "b"}, {"top_p": 9.0}):
        with pytest.raises(DliteError):
            await coordinator.admit(request(**fields))
    refused = {
        name.split("reason=")[1]: count
        for name, count in values(coordinator.metrics.registry).items()
        if name.startswith("dlite_requests_refused_total")
    }
    assert refused == {"ALREADY_EXISTS": 1, "BUSY": 2}
