"""Texts that run while faults strike, and whether each of them came out as it should.

What a text should be is plain decoding's answer, asked for while nothing fails.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coordinator.answer import Answer
from coordinator.client import AsyncClient, ClientOptions
from deploy.asking import plain_arm
from deploy.bench.comparison import Comparison, compare
from deploy.bench.reference import Reference
from protos import coordinator_pb2
from protos.errors import DliteError

PATIENCE_SECONDS = 240.0
SPECULATION = (
    coordinator_pb2.Speculation(
        source=coordinator_pb2.PROPOSAL_SOURCE_DRAFTER, num_draft_tokens=3, verify_block_size=4
    ),
    coordinator_pb2.Speculation(source=coordinator_pb2.PROPOSAL_SOURCE_DRAFTER),
)


@dataclass(frozen=True)
class Text:
    """One text of the load: the same whenever it is asked for.

    Args:
        temperature: 0 is greedy, above it is coupled.
        speculation: how it is drafted.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float
    seed: int
    speculation: coordinator_pb2.Speculation

    def request(
        self, prefix: Sequence[int] = (), speculation: coordinator_pb2.Speculation | None = None
    ) -> coordinator_pb2.GenerateRequest:
        """What is asked, after a part of the answer; noise belongs to positions, so the rest is the same."""
        return coordinator_pb2.GenerateRequest(
            token_ids=[*self.prompt, *prefix],
            temperature=self.temperature,
            max_tokens=self.max_tokens - len(prefix),
            seed=self.seed,
            ignore_eos=True,
            speculation=speculation or self.speculation,
        )


def texts_of(prompts: Sequence[Sequence[int]], max_tokens: int) -> list[Text]:
    """Each prompt greedy and coupled, with a fixed block and with the tuner."""
    kinds = list(itertools.product((0.0, 1.0), SPECULATION))
    return [
        Text(tuple(prompt), max_tokens, temperature, number + 1, speculation)
        for number, prompt in enumerate(prompts)
        for temperature, speculation in kinds
    ]


@dataclass(frozen=True)
class Expected:
    """Plain decoding's ids, and the key of its noise."""

    token_ids: tuple[int, ...]
    key: bytes


class Judge:
    """Compares texts with plain decoding's.

    Args:
        model: the target, for the gaps of near-ties; None where there is no excuse (float64).
    """

    def __init__(self, texts: Sequence[Text], model: Path | None) -> None:
        self.texts = texts
        self._model = model
        self._expected: dict[int, Expected] = {}
        self._reference: Reference | None = None

    async def learn(self, client: AsyncClient) -> None:
        """Asks for every text without speculation."""
        for number, text in enumerate(self.texts):
            answer = await client.complete(text.request(speculation=plain_arm().speculation))
            self._expected[number] = Expected(tuple(answer.token_ids), answer.sampling_key)

    async def judge(self, client: AsyncClient, number: int, got: Sequence[int]) -> Comparison:
        """One answer to text `number`; `mismatch` is empty when it is as it should be."""
        text, expected = self.texts[number], self._expected[number]

        async def continue_from(n: int) -> Sequence[int]:
            return (await client.complete(text.request(expected.token_ids[:n]))).token_ids

        def gap_at(n: int) -> float:
            if self._model is None:
                return float("inf")
            self._reference = self._reference or Reference(self._model, 1)
            prefix = [*text.prompt, *expected.token_ids[:n]]
            if text.temperature > 0:
                return self._reference.coupled_gap(prefix, expected.key, text.temperature)
            return self._reference.greedy_gap(prefix)

        return await compare(expected.token_ids, got, continue_from, gap_at)


@dataclass(eq=False)
class Worker:
    """Asks for one text after the other. Times are of the event loop."""

    pauses: list[tuple[float, float]] = field(default_factory=list)
    num_done: int = 0
    is_running: bool = False
    num_tokens: int = 0


class Load:
    """Keeps `num_workers` texts running from `start` to `finish`.

    Args:
        addresses: of the coordinators; every text begins at the first.
        on_change: called after every message.
    """

    def __init__(
        self, addresses: Sequence[str], judge: Judge, num_workers: int, on_change: Callable[[], None]
    ):
        self.failures: list[str] = []
        self.ledgers: Counter[str] = Counter()
        self.answers: list[tuple[int, tuple[int, ...]]] = []
        self.workers = [Worker() for _ in range(num_workers)]
        self._addresses = addresses
        self._judge = judge
        self._on_change = on_change
        self._numbers = itertools.cycle(range(len(judge.texts)))
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._work(worker)) for worker in self.workers]

    async def finish(self) -> None:
        """Waits until the texts that run have ended; begins no more."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    def cancel(self) -> None:
        """Gives up."""
        for task in self._tasks:
            task.cancel()

    @property
    def is_under_way(self) -> bool:
        """Every worker has tokens of a text that is not over."""
        return all(worker.is_running and worker.num_tokens for worker in self.workers)

    def longest_pause(self, since: float) -> float:
        """Seconds of the longest wait for tokens that ended after `since`, whoever waited."""
        lasting = [end - start for worker in self.workers for start, end in worker.pauses if end >= since]
        return max(lasting, default=0.0)

    async def _work(self, worker: Worker) -> None:
        async with AsyncClient(*self._addresses, options=ClientOptions(PATIENCE_SECONDS)) as client:
            while not self._stopping:
                number = next(self._numbers)
                try:
                    await self._one(worker, client, number)
                except DliteError as error:
                    self.failures.append(f"{type(error).__name__}: {error}")
                    await asyncio.sleep(0.1)
                worker.is_running = False
                worker.num_done += 1
                self._on_change()

    async def _one(self, worker: Worker, client: AsyncClient, number: int) -> None:
        loop = asyncio.get_running_loop()
        answer, last = Answer(), loop.time()
        worker.is_running, worker.num_tokens = True, 0
        async for message in client.generate(self._judge.texts[number].request()):
            answer.add(message)  # raises at a gap or a repeat
            worker.pauses.append((last, loop.time()))
            worker.num_tokens, last = len(answer.token_ids), loop.time()
            self._on_change()
        if answer.finished.error or not answer.is_finished:
            raise DliteError(answer.finished.error or "the stream ended without a Finished message")
        ledger = answer.finished.ledger
        self.ledgers.update(
            reopens=ledger.num_reopens, undrafted=ledger.num_undrafted_rounds, rounds=ledger.num_rounds
        )
        self.answers.append((number, tuple(answer.token_ids)))
