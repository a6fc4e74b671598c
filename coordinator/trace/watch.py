"""Everything that watches one coordinator, put together: the file of rounds, and what is told over gRPC."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import PurePath

from coordinator.config import CoordinatorConfig
from coordinator.coordinator import Coordinator
from coordinator.gauges import Links
from coordinator.services import Backends
from coordinator.spans import Spans, open_spans
from coordinator.trace.observer import Observer, header_now
from coordinator.trace.writer import TraceWriter


@dataclass(frozen=True, eq=False)
class Watch:
    """`observer` answers those who ask; `writer` writes a file, or there is none."""

    observer: Observer
    writer: TraceWriter | None
    listening: ExitStack
    spans: Spans | None = None

    async def stop(self) -> None:
        """The file is whole afterwards, and spans are sent."""
        self.listening.close()
        if self.spans is not None:
            await asyncio.to_thread(self.spans.stop)
        if self.writer is not None:
            await asyncio.to_thread(self.writer.stop)


def start_watch(
    coordinator: Coordinator,
    backends: Backends,
    links: Links,
    config: CoordinatorConfig,
) -> Watch:
    """Begins to watch a coordinator.

    Args:
        config: where rounds are written, and where spans go.

    Raises:
        InvalidRequest: the file cannot be made, or spans need a library that is not there.
    """

    def about_now() -> dict[str, str | int | float]:
        return about(backends)

    observer = Observer(
        coordinator.feed,
        coordinator.load,
        links,
        backends.targets.explain,
        about_now,
        backends.targets.kv_stats,
    )
    listening = ExitStack()
    writer = None
    spans = coordinator.spans = open_spans(config.otlp_endpoint, config.otlp_share)
    if spans is not None:
        listening.enter_context(coordinator.feed.listening(spans))
    if config.trace is not None:
        writer = TraceWriter(config.trace, header_now(about_now()))
        listening.enter_context(coordinator.feed.listening(writer))
    return Watch(observer, writer, listening, spans)


def about(backends: Backends) -> dict[str, str | int | float]:
    """What the header of a trace says of target and drafter."""
    target = backends.targets.describe
    found: dict[str, str | int | float] = {
        "model": PurePath(target.model).name,
        "model_fingerprint": target.fingerprint,
        "hidden_size": target.hidden_size,
        "num_tapped_layers": len(target.tapped_layers),
        "kv_bytes_per_token": target.kv_bytes_per_token,
    }
    drafter = backends.drafter.describe if backends.drafter is not None else None
    if drafter is not None:
        found["drafter"] = PurePath(drafter.model).name
        found["drafter_kind"] = drafter.drafter_kind
        found["drafter_block_size"] = drafter.block_size
        found["drafter_kv_bytes_per_token"] = drafter.kv_bytes_per_token
    return found
