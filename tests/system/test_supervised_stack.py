"""Three processes of which each is killed, or stopped, in mid-text: the text is as if nothing had been."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from coordinator.answer import Answer
from coordinator.client import AsyncClient, ClientOptions
from deploy.local import LocalStack, StackOptions, local_stack
from deploy.supervision import RestartPolicy
from protos import coordinator_pb2
from tests.fakes import GOLDEN

DRAFT = GOLDEN / "draft_trained_g1"
COUNT = 150
POLICY = RestartPolicy(first_pause=0.1, healthy=0.0, probe_every=0.5, probe_timeout=2.0, max_silent=3)
SECONDS = 240


REQUEST = coordinator_pb2.GenerateRequest(
    token_ids=[61, 70, 22, 78, 216], max_tokens=COUNT, temperature=1.0, seed=4, ignore_eos=True
)


class Restarts:
    """Counts "NAME: ready at .." in what a stack says."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._changed = asyncio.Event()

    def take(self, line: str) -> None:
        name, _, rest = line.partition(": ")
        if rest.startswith("ready at"):
            self._counts[name] = self._counts.get(name, 0) + 1
            self._changed.set()

    async def wait(self, name: str, count: int) -> None:
        """Until a service has been ready so many times."""
        async with asyncio.timeout(SECONDS):
            while self._counts.get(name, 0) < count:
                self._changed.clear()
                await self._changed.wait()


@contextlib.asynccontextmanager
async def supervised(drafter: Path | None) -> AsyncIterator[tuple[LocalStack, Restarts]]:
    restarts = Restarts()
    options = StackOptions(
        target=GOLDEN / "target_qwen3", drafter=drafter, target_flags=("--tapped-layers", "0,1,4,5")
    )
    async with local_stack(options, restarts.take) as stack:
        keeper = asyncio.create_task(stack.supervise(POLICY, lambda line: None))
        try:
            yield stack, restarts
        finally:
            keeper.cancel()
            await asyncio.wait({keeper})


async def read(stack: LocalStack, fault: Callable[[], None] | None = None) -> Answer:
    """Reads one text; calls the fault in the middle of it.

    The client may look for the coordinator again and again, at the one address there is.
    """
    answer = Answer()
    async with AsyncClient(stack.coordinator.address, options=ClientOptions(SECONDS)) as client:
        async for message in client.generate(REQUEST):
            answer.add(message)  # raises at a gap or a repeat
            if fault is not None and len(answer.token_ids) >= 20:
                assert not answer.is_finished, "the text ended before the fault"
                fault()
                fault = None
    assert fault is None
    return answer


async def survive(drafter: Path | None, faults: Sequence[tuple[tuple[str, ...], signal.Signals]]) -> None:
    """Sends each signal to the services in mid-text; every text is the one without faults."""
    async with supervised(drafter) as (stack, restarts):
        expected = (await read(stack)).token_ids
        counts = dict.fromkeys(stack.pids(), 1)
        for names, number in faults:
            pids = [stack.pids()[name] for name in names]

            def fault(pids: Sequence[int] = pids, number: int = number) -> None:
                for pid in pids:
                    os.kill(pid, number)

            assert (await read(stack, fault)).token_ids == expected, (names, number)
            for name in names:
                counts[name] += 1
                await restarts.wait(name, counts[name])
                assert stack.pids()[name] not in pids
        assert (await read(stack)).token_ids == expected


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the coordinator's process: a machine with other work takes its time to start one anew."""
    monkeypatch.setenv("DLITE_COORDINATOR_TARGET_LOSS_SECONDS", str(SECONDS))


async def test_a_killed_target_comes_back_and_the_text_goes_on() -> None:
    await survive(None, [(("target",), signal.SIGKILL)])


@pytest.mark.prove
@pytest.mark.timeout(1200)
async def test_each_service_killed_or_stopped_comes_back_and_the_text_goes_on() -> None:
    await survive(
        DRAFT,
        [
            (("draft",), signal.SIGKILL),
            (("target",), signal.SIGKILL),
            (("coordinator",), signal.SIGKILL),
            (("target", "draft"), signal.SIGKILL),
            (("draft",), signal.SIGSTOP),
            (("target",), signal.SIGSTOP),
            (("target", "draft"), signal.SIGSTOP),
        ],
    )
