"""All requests of all coordinators, and how commands reach them. Only the engine's thread.

Invariant (`check_integrity`): the pool's references are exactly the pages of the sequences.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from target_service.commands import (
    Close,
    Closed,
    Command,
    Event,
    Features,
    Fetch,
    Held,
    Hold,
    Open,
    RequestKey,
    Run,
)
from target_service.fencing import Action, check
from target_service.grammar import GrammarFactory
from target_service.grammars import Grammars
from target_service.limits import EngineLimits
from target_service.page_sharing import PageSharing
from target_service.refusals import mode_refusal, out_of_step, refusal_of, stale_epoch
from target_service.sequence import Answer, Sequence
from target_service.settling import attach_grammar, end_run, replay


class Requests:
    """The table of open requests.

    Args:
        sharing: gives pages back, and finds those of a fork's source.
        limits: what an Open may ask for.
        vocab_size: token ids must be below it.
        clock: seconds, monotonic.
        grammars: compiles grammars; without them they are refused.
    """

    def __init__(
        self,
        sharing: PageSharing,
        limits: EngineLimits,
        vocab_size: int,
        clock: Callable[[], float] = time.monotonic,
        grammars: Grammars | None = None,
    ) -> None:
        self._sharing = sharing
        self._limits = limits
        self._vocab_size = vocab_size
        self._clock = clock
        if grammars is None:
            grammars = Grammars(GrammarFactory(None, vocab_size, limits.eos_ids, False))
        self._grammars = grammars
        self._sequences: dict[RequestKey, Sequence] = {}
        self._closed: dict[str, dict[str, int]] = {}  # coordinator -> request -> last closed epoch
        self._num_arrivals = 0

    def __len__(self) -> int:
        return len(self._sequences)

    def all(self) -> list[Sequence]:
        return list(self._sequences.values())

    def apply(self, command: Command) -> list[Event]:
        """Takes one command between two steps.

        Returns:
            What can be answered at once: refusals, stored answers, Closed, a Fetch's features.
        """
        key = command.address.key
        sequence = self._sequences.get(key)
        closed = self._closed.get(key.coordinator_id, {}).get(key.request_id, 0)
        action = check(command, sequence, closed)
        if action is Action.IGNORE:
            return []
        if action is Action.STALE_EPOCH:
            return [stale_epoch(command)]
        if action is Action.OUT_OF_STEP_UNKNOWN:
            return [out_of_step(command, Held())]
        if isinstance(command, Close):
            return self._close(command, sequence)
        if action is Action.OPEN and isinstance(command, Open):
            return self._open(command, sequence)
        assert sequence is not None
        if action is Action.REPLAY:
            return replay(command, sequence)
        if action is Action.OUT_OF_STEP:
            return [out_of_step(command, sequence.held())]
        return self._begin(command, sequence)

    def _open(self, command: Open, sequence: Sequence | None) -> list[Event]:
        if sequence is not None:
            self._sharing.release(sequence)
            del self._sequences[command.address.key]
        refusal = refusal_of(command, self._limits, self._vocab_size)
        if refusal is not None:
            return [refusal]
        self._num_arrivals += 1
        opened = Sequence(command, self._num_arrivals, self._clock)
        if command.grammar is not None:
            opened.grammar = self._grammars.begin(command.grammar)
        self._sequences[command.address.key] = opened
        source = self._sequences.get(RequestKey(command.address.key.coordinator_id, command.fork_of))
        if source is not None and source is not opened and not opened.wants_prompt_logprobs:
            self._sharing.fork(source, opened)
        return []

    def _begin(self, command: Command, sequence: Sequence) -> list[Event]:
        if isinstance(command, Hold):
            active = sequence.active
            is_run = active is not None and isinstance(active.command, Run)
            return end_run(sequence, self._clock()) if is_run else []
        refusal = refusal_of(command, self._limits, self._vocab_size)
        if refusal is not None:
            return [refusal]
        assert not isinstance(command, Close)
        refusal = mode_refusal(command, sequence.params)
        if refusal is not None:
            return [refusal]
        sequence.begin(command)
        if not isinstance(command, Fetch):
            return []
        assert sequence.pivot_features is not None
        sequence.finish_round(Answer(None, sequence.pivot_features))
        return [Features(command.address, sequence.pivot_features)]

    def _close(self, command: Close, sequence: Sequence | None) -> list[Event]:
        key = command.address.key
        if sequence is not None:
            self._sharing.close(sequence, command.keep_length)
            del self._sequences[key]
        epochs = self._closed.setdefault(key.coordinator_id, {})
        epochs[key.request_id] = max(command.address.epoch, epochs.get(key.request_id, 0))
        return [Closed(command.address)]

    def take_grammars(self) -> list[Event]:
        """Gives sequences the grammars that are compiled by now; refuses those whose is none."""
        events: list[Event] = []
        for sequence in self._sequences.values():
            waits = sequence.awaits_grammar and sequence.finish_reason is None
            if waits and sequence.grammar is not None and sequence.grammar.done():
                events += attach_grammar(sequence, sequence.grammar)
                if sequence.finish_reason is not None:
                    self._sharing.release(sequence)
        return events

    def drop_coordinator(self, coordinator_id: str) -> None:
        """A coordinator's stream has ended: frees its requests and forgets its closed epochs."""
        for key in [key for key in self._sequences if key.coordinator_id == coordinator_id]:
            self._sharing.release(self._sequences.pop(key))
        self._closed.pop(coordinator_id, None)

    def check_integrity(self) -> None:
        """Raises AssertionError when a page or a sequence breaks its invariant."""
        for sequence in self._sequences.values():
            sequence.check_integrity(self._limits.page_size)
        self._sharing.check_integrity(sequence.pages for sequence in self._sequences.values())
