"""Serves a target or a drafter with set costs as a process of its own, for `local_stack`.

python -m deploy.bench.fake_service target --costs 1:0.02,8:0.03 --layers 14 --width 4096 --json
python -m deploy.bench.fake_service draft --costs 1:0.005 --acceptance 0.8,0.8,0.8 --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from deploy.bench.fakes import FakeDrafter, FeatureShape, fake_target
from deploy.bench.lean_services import LeanDrafter, LeanTarget
from deploy.bench.set_costs import (
    Acceptance,
    DraftCosts,
    VerifyCosts,
    format_acceptance,
    format_draft_costs,
    format_verify_costs,
    parse_acceptance,
    parse_draft_costs,
    parse_verify_costs,
)
from deploy.child import Command
from deploy.local import StackOptions
from deploy.parent_watch import end_with_parent
from protos import rpc

PROGRAM = (sys.executable, "-m", "deploy.bench.fake_service")


@dataclass(frozen=True)
class FakeStackOptions(StackOptions):
    """`local_stack` with sleeping models.

    Args:
        target_costs: seconds of a step by rows and context.
        draft_costs: seconds of a batch by items and longest draft.
        acceptance: how often the drafter is right; None starts no drafter.
        shape: of the features.
        is_lean: services that answer from a script, without an engine (`lean_services`); no costs then.
    """

    target: Path = Path()
    target_costs: VerifyCosts = field(default_factory=VerifyCosts)
    draft_costs: DraftCosts = field(default_factory=DraftCosts)
    acceptance: Acceptance | None = None
    shape: FeatureShape = field(default_factory=FeatureShape)
    is_lean: bool = False

    def target_command(self) -> Command:
        return Command(
            "target", ("--costs", format_verify_costs(self.target_costs), *self._shape()), 1, PROGRAM
        )

    def _shape(self) -> tuple[str, ...]:
        shape = self.shape
        flags = ("--layers", str(shape.num_layers), "--width", str(shape.width), "--dtype", shape.dtype)
        return (*flags, "--lean") if self.is_lean else flags

    def draft_command(self) -> Command | None:
        if self.acceptance is None:
            return None
        costs, acceptance = format_draft_costs(self.draft_costs), format_acceptance(self.acceptance)
        return Command("draft", ("--costs", costs, "--acceptance", acceptance, *self._shape()), 1, PROGRAM)


class Running(Protocol):
    """A started service."""

    @property
    def address(self) -> str: ...

    async def stop(self) -> None: ...


async def _serve_target(costs: VerifyCosts, shape: FeatureShape) -> Running:
    from target_service.service import serve

    return await serve(fake_target(costs, shape), "127.0.0.1:0")


async def _serve_draft(costs: DraftCosts, acceptance: Acceptance, shape: FeatureShape) -> Running:
    from draft_service.server import serve
    from draft_service.service import DraftService

    return await serve(DraftService(FakeDrafter(costs, acceptance, shape)), "127.0.0.1:0")


@dataclass(frozen=True)
class _Lean:
    """A served script."""

    server: rpc.RunningServer

    @property
    def address(self) -> str:
        return self.server.address

    async def stop(self) -> None:
        await self.server.stop(1.0)


async def _serve_lean(kind: str, acceptance: Acceptance, shape: FeatureShape, address: str) -> Running:
    import torch

    from draft_service.wire import write_description
    from protos.codec import DTYPES, encode
    from target_service.wire import describe_to

    if kind == "target":
        features = torch.zeros(shape.num_layers, shape.width, dtype=DTYPES[shape.dtype])
        describe = describe_to(fake_target(VerifyCosts(), shape).description)
        service = LeanTarget(describe, encode(features)).service()
    else:
        drafter = FakeDrafter(DraftCosts(), acceptance, shape)
        service = LeanDrafter(write_description(drafter.description, 1)).service()
    server = await rpc.start_server(service, address)
    await server.set_ready(True)
    return _Lean(server)


async def _until_signal(start: Callable[[], Coroutine[Any, Any, Running]]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    running = await start()
    print(json.dumps({"address": running.address, "pid": os.getpid()}), flush=True)
    await stop.wait()
    await running.stop()


def main(argv: Sequence[str]) -> None:
    """Runs one service until a signal, or until its parent ends."""
    end_with_parent()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("target", "draft"))
    parser.add_argument("--costs", required=True)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=576)
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--acceptance", default="1")
    parser.add_argument("--lean", action="store_true")
    parser.add_argument("--address", default="127.0.0.1:0", help="of a lean service")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    shape = FeatureShape(options.layers, options.width, options.dtype)
    if options.lean:
        acceptance = parse_acceptance(options.acceptance)
        asyncio.run(_until_signal(lambda: _serve_lean(options.kind, acceptance, shape, options.address)))
    elif options.kind == "target":
        verify_costs = parse_verify_costs(options.costs)
        asyncio.run(_until_signal(lambda: _serve_target(verify_costs, shape)))
    else:
        draft_costs, acceptance = parse_draft_costs(options.costs), parse_acceptance(options.acceptance)
        asyncio.run(_until_signal(lambda: _serve_draft(draft_costs, acceptance, shape)))


if __name__ == "__main__":
    main(sys.argv[1:])
