"""Answers to many prompts through the engine, at full batch, with the states behind them.

Answers come out in the order of their prompts, so what an interrupted run has written is a prefix of
what it would have written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from protos.shards import CapturedSequence
from target_service.commands import Address, Close, Open, RequestKey, Run, SamplingParams, Verdict
from target_service.engine import Engine
from target_service.recording import Recorder

_COORDINATOR = "answering"


@dataclass(frozen=True)
class Question:
    """One prompt and how it is answered.

    Attributes:
        prompt: token ids.
        sampling_key: 16 bytes; with it the text is a function of the prompt alone.
        source: where the prompt comes from.
    """

    prompt: tuple[int, ...]
    params: SamplingParams
    sampling_key: bytes
    source: str


@dataclass(eq=False)
class _Open:
    index: int
    question: Question
    key: RequestKey
    tokens: list[int]
    is_running: bool = False


class Answering:
    """Keeps `concurrency` requests in an engine until all questions are answered.

    Args:
        engine: whose model is the recorder.
        recorder: of that engine.
        concurrency: requests at a time.
    """

    def __init__(self, engine: Engine, recorder: Recorder, concurrency: int) -> None:
        recorder.sequences = engine.requests.all
        self._engine = engine
        self._recorder = recorder
        self._concurrency = concurrency
        self._open: dict[RequestKey, _Open] = {}

    def answers(self, questions: Iterable[Question]) -> Iterator[CapturedSequence]:
        """One captured sequence for each question, in order.

        Raises:
            InvalidRequest: the engine refuses a question.
        """
        waiting = enumerate(questions)
        finished: dict[int, CapturedSequence] = {}
        next_index = 0
        while True:
            while len(self._open) < self._concurrency:
                item = next(waiting, None)
                if item is None:
                    break
                self._begin(*item)
            if not self._open:
                return
            for done in self._step():
                finished[done.index] = self._captured(done)
            while next_index in finished:
                yield finished.pop(next_index)
                next_index += 1

    def _begin(self, index: int, question: Question) -> None:
        key = RequestKey(_COORDINATOR, str(index))
        prompt, params = question.prompt, question.params
        self._open[key] = _Open(index, question, key, list(prompt))
        self._engine.apply(
            Open(Address(key, 1, 0), prompt, len(prompt), question.sampling_key, params, False)
        )

    def _step(self) -> list[_Open]:
        done = []
        for event in self._engine.step():
            if not isinstance(event, Verdict):
                continue
            request = self._open[event.address.key]
            request.tokens += event.tokens
            if event.finish_reason is not None:
                done.append(self._open.pop(request.key))
                self._engine.apply(Close(Address(request.key, 1, 0), len(request.tokens)))
            elif not request.is_running:
                request.is_running = True
                most = request.question.params.max_tokens
                self._engine.apply(Run(Address(request.key, 1, 1), len(request.tokens), most, False))
        return done

    def _captured(self, done: _Open) -> CapturedSequence:
        question = done.question
        first = len(question.prompt) - 1
        recorded = self._recorder.take(done.key)
        rows = [recorded[position] for position in range(first, len(done.tokens) - 1)]
        return CapturedSequence(
            token_ids=torch.tensor(done.tokens, dtype=torch.int32),
            prompt_length=len(question.prompt),
            temperature=question.params.temperature,
            source=question.source,
            first_position=first,
            features=torch.stack([row.features for row in rows]),
            greedy_tokens=torch.tensor([row.greedy_token for row in rows], dtype=torch.int32),
            log_normalisers=torch.tensor([row.log_normaliser for row in rows]),
            sampling_key=question.sampling_key,
        )
