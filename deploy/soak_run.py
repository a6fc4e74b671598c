"""Agent traffic for a long while, with cancels and with processes killed, and what is left behind.

Of two replicas of each service the second is killed, or stopped, again and again; the first is left alone,
so that its memory over the whole time says whether something leaks.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from coordinator.client import AsyncClient, ClientOptions
from coordinator.loadtest.datasets import make_scripts
from coordinator.loadtest.options import AGENT, Data
from coordinator.loadtest.runner import Pace, Runner
from coordinator.loadtest.samples import Sample
from coordinator.loadtest.workload import Arm, RequestFields
from coordinator.trace.remote import get_stats
from deploy.bench.fault_fleet import Fleet, FleetOptions, fleet
from deploy.bench.fault_frame import surplus_pages
from deploy.local import StackOptions
from deploy.soak_record import Moment, Soak, files_of, memory_of, record
from deploy.supervision import RestartPolicy
from protos import coordinator_pb2, rpc
from protos.errors import DliteError

TRAFFIC = Data(
    name=AGENT, num_prompts=1, input_len=48, output_len=40, range_ratio=0.5, turns=4, turn_len=16,
    pause_seconds=0.2, cancel_rate=0.15,
)  # fmt: skip
PATIENCE_SECONDS = 300.0
NUM_SAMPLES = 240


@dataclass(frozen=True)
class SoakOptions:
    """How long, and how hard.

    Args:
        num_sessions: agents at a time.
        kill_every_seconds: between two faults, on average.
    """

    services: StackOptions
    minutes: float
    num_sessions: int = 4
    kill_every_seconds: float = 45.0
    seed: int = 0
    policy: RestartPolicy = RestartPolicy(healthy=0.0)  # noqa: RUF009 - frozen

    @property
    def fleet(self) -> FleetOptions:
        environment = {"DLITE_COORDINATOR_TARGET_LOSS_SECONDS": str(PATIENCE_SECONDS)}
        counts = {"num_targets": 2, "num_drafters": 2, "num_coordinators": 2}
        return FleetOptions(self.services, self.policy, **counts, coordinator_environment=environment)


class Traffic:
    """Agents that talk until they are told to stop."""

    def __init__(self, options: SoakOptions, soak: Soak, vocab_size: int) -> None:
        self.stopping = False
        self._options = options
        self._soak = soak
        self._vocab_size = vocab_size
        self._numbers = iter(range(1 << 30))

    async def agent(self, number: int, addresses: Sequence[str]) -> None:
        """One session after the other, with prompts of their own."""
        rng = random.Random(f"{self._options.seed} {number}")
        first = number % len(addresses)
        async with AsyncClient(
            *addresses[first:], *addresses[:first], options=ClientOptions(PATIENCE_SECONDS)
        ) as client:
            for session in range(1 << 30):
                if self.stopping:
                    return
                common = RequestFields(
                    {"temperature": rng.choice((0.0, 1.0))}, f"soak-{number}-{session}", number
                )
                runner = Runner(lambda message: self._send(client, message), common, self._note)
                scripts = make_scripts(TRAFFIC, self._vocab_size, rng)
                await runner.run(scripts, Pace(max_concurrency=1), Arm.SPECULATIVE)

    async def _send(
        self, client: AsyncClient, message: coordinator_pb2.GenerateRequest
    ) -> AsyncGenerator[coordinator_pb2.GenerateResponse]:
        loop, heard, number = asyncio.get_running_loop(), self._soak.last_heard, next(self._numbers)
        heard[number] = loop.time()
        try:
            async with aclosing(client.generate(message)) as responses:
                async for response in responses:
                    self._soak.longest_silence = max(self._soak.longest_silence, loop.time() - heard[number])
                    heard[number] = loop.time()
                    yield response
        finally:
            del heard[number]

    def _note(self, sample: Sample) -> None:
        self._soak.statuses[sample.status.value] += 1
        if sample.error:
            self._soak.failures.append(sample.error)


async def run_soak(options: SoakOptions, say: Callable[[str], None]) -> dict[str, Any]:
    """Runs it; the record, as JSON has it."""
    soak = Soak()
    async with fleet(options.fleet, say) as started, AsyncClient(started.coordinators[0]) as client:
        vocab_size = (await client.server_info()).target.vocab_size
        traffic = Traffic(options, soak, vocab_size)
        work = _all_of_it(options, started, soak, traffic, say)
        await started.guard(work)
        surplus = await started.guard(surplus_pages(started.watches(), client))
        left = [await _running(address) for address in started.coordinators]
        streams = {name: member.proxy.num_streams for name, member in started.members.items() if member.proxy}
    return record(
        options.minutes,
        options.fleet.num_coordinators,
        soak,
        {"surplus_pages": surplus, "left_running": sum(left), "streams": streams},
    )


async def _all_of_it(
    options: SoakOptions, started: Fleet, soak: Soak, traffic: Traffic, say: Callable[[str], None]
) -> None:
    agents = [traffic.agent(number, started.coordinators) for number in range(options.num_sessions)]
    seconds = options.minutes * 60
    async with asyncio.TaskGroup() as group:
        side = [
            group.create_task(_sample(started, soak, seconds / NUM_SAMPLES)),
            group.create_task(_strike(options, started, soak, say)),
        ]
        talking = [group.create_task(agent) for agent in agents]
        await asyncio.sleep(seconds)
        traffic.stopping = True
        side[1].cancel()
        await asyncio.gather(*talking)
        side[0].cancel()


async def _strike(options: SoakOptions, started: Fleet, soak: Soak, say: Callable[[str], None]) -> None:
    """Kills or stops one of the second replicas from time to time, once all are there."""
    rng = random.Random(options.seed)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    victims = [name for name in started.members if name.endswith("-2")]
    while True:
        await asyncio.sleep(rng.uniform(0.5, 1.5) * options.kill_every_seconds)
        name, number = rng.choice(victims), rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP))
        restarts = started.members[name].num_restarts
        with contextlib.suppress(ProcessLookupError):
            started.signal((name,), number)
        soak.faults.append((round(loop.time() - begin, 1), name, number.name))
        say(f"{number.name} {name}")
        await started.pulse.when(lambda: started.members[name].num_restarts > restarts)  # noqa: B023


async def _sample(started: Fleet, soak: Soak, every: float) -> None:
    loop = asyncio.get_running_loop()
    begin = loop.time()
    while True:
        running = [await _running(address) for address in started.coordinators]
        moment = Moment(
            seconds=round(loop.time() - begin, 1),
            memory={name: memory_of(m.ready.pid) for name, m in started.members.items()},
            files={name: files_of(m.ready.pid) for name, m in started.members.items()},
            pages_held=sum(watch.pages_held for watch in started.watches()),
            num_running=sum(running),
            num_done=soak.statuses.total(),
        )
        soak.moments.append(moment)
        silence = max((loop.time() - heard for heard in soak.last_heard.values()), default=0.0)
        soak.longest_silence = max(soak.longest_silence, silence)
        await asyncio.sleep(max(every, 0.5))


async def _running(address: str) -> int:
    """Texts that run or wait at a coordinator; 0 for one that is away."""
    channel = rpc.open_channel(address)
    try:
        stats = await get_stats(channel)
    except DliteError:
        return 0
    finally:
        await channel.close()
    return stats.num_running + stats.num_waiting


def quick(options: SoakOptions, minutes: float) -> SoakOptions:
    """The same in so many minutes, with faults close together."""
    return replace(options, minutes=minutes, kill_every_seconds=minutes * 60 / 3)
