"""What a coordinator tells of itself over gRPC: sums, the rounds as they end, the tuner's beliefs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import grpc

from coordinator.gauges import Links, Load, NamedLink
from coordinator.trace.feed import RoundFeed
from coordinator.trace.format import Header, pack_header
from coordinator.trace.writer import Waiting
from coordinator.tuner.explain import Explanation
from protos import coordinator_pb2 as pb
from protos import rpc

_PAUSE_SECONDS = 0.1
_BATCH = 512
MAX_WAITING = 16_384

Explain = Callable[[str], tuple[str, Explanation | None]]
AskKv = Callable[[], "pb.KvStats | None"]


def header_now(about: Mapping[str, str | int | float]) -> Header:
    """Of a trace that begins now."""
    return Header(time.time(), time.monotonic(), about)


class Observer:
    """Answers those who watch.

    Args:
        load: texts that run, requests that wait.
        explain: the tuner's of a target ("": of the busiest), and which target that is; None before it has a
            plan.
        about: see `Header`, asked anew for each trace, because a drafter may come later.
        ask_kv: how full the targets are; None while they say nothing.
    """

    def __init__(
        self,
        feed: RoundFeed,
        load: Load,
        links: Links,
        explain: Explain,
        about: Callable[[], Mapping[str, str | int | float]],
        ask_kv: AskKv,
    ) -> None:
        self._feed = feed
        self._load = load
        self._links = links
        self._explain = explain
        self._about = about
        self._ask_kv = ask_kv

    def methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """To be served beside those of the public API."""
        return {
            "GetStats": rpc.unary(pb.GetStatsRequest, self.get_stats),
            "WatchRounds": rpc.server_stream(pb.WatchRoundsRequest, self.watch_rounds),
            "ExplainTuner": rpc.unary(pb.ExplainTunerRequest, self.explain_tuner),
        }

    async def get_stats(self, message: pb.GetStatsRequest, context: rpc.Context) -> pb.GetStatsResponse:
        response = pb.GetStatsResponse(
            model=str(self._about().get("model", "")),
            seconds=time.monotonic(),
            num_running=self._load.num_used,
            num_waiting=self._load.num_waiting,
            links=[_link_stats(each) for each in self._links()],
        )
        self._feed.fill(response)
        kv = self._ask_kv()
        if kv is not None:
            response.kv.CopyFrom(kv)
        return response

    async def watch_rounds(
        self, message: pb.WatchRoundsRequest, context: rpc.Context
    ) -> AsyncIterator[pb.WatchRoundsResponse]:
        """Ends when the watcher goes; then the sleep is cancelled."""
        waiting = Waiting(MAX_WAITING)
        with self._feed.listening(waiting):
            yield pb.WatchRoundsResponse(data=pack_header(header_now(self._about())))
            while True:
                while data := waiting.take(_BATCH):
                    yield pb.WatchRoundsResponse(data=data)
                await asyncio.sleep(_PAUSE_SECONDS)

    async def explain_tuner(
        self, message: pb.ExplainTunerRequest, context: rpc.Context
    ) -> pb.ExplainTunerResponse:
        address, found = self._explain(message.target_address)
        response = pb.ExplainTunerResponse() if found is None else explanation_to(found)
        response.target_address = address
        return response


def explanation_to(found: Explanation) -> pb.ExplainTunerResponse:
    """As it travels."""
    return pb.ExplainTunerResponse(
        has_plan=True,
        num_requests=found.num_requests,
        acceptance=found.acceptance,
        sizes=[
            pb.TunedSize(
                block_size=each.block_size,
                num_cohorts=each.num_cohorts,
                predicted=each.predicted,
                measured=each.measured,
            )
            for each in found.sizes
        ],
        chosen_sizes=found.chosen.block_sizes,
        num_cohorts=found.chosen.num_cohorts,
        tokens_per_second=found.chosen.tokens_per_second,
        is_kept=found.is_kept,
    )


def _link_stats(named: NamedLink) -> pb.LinkStats:
    link = named.link
    stats = pb.LinkStats(
        name=named.name,
        address=named.address,
        is_connected=link.is_connected,
        num_lost=link.num_lost,
        num_stale=link.num_stale,
    )
    report = link.estimate.report()
    if report.num_samples:
        stats.rtt_seconds = report.rtt_p50_seconds
        stats.rtt_p99_seconds = report.rtt_p99_seconds
        stats.jitter_seconds = report.jitter_seconds
    if report.bytes_per_second is not None:
        stats.bytes_per_second = report.bytes_per_second
    return stats
