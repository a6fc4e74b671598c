"""Walking a text with a drafter as serving does: anchor a, A of its proposals stand, next anchor a + A + 1.

It uses the served `Drafter` and the served order of things, so with the same text, features and key
the list of A is the served list, round by round. P prompt tokens, n tokens in all, m tapped layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from draft_service.proposal import DraftItem, DraftMode, DraftResult
from protos.errors import ContractMismatch
from protos.shards import CapturedSequence


class Proposes(Protocol):
    """The part of a drafter that a walk uses."""

    def propose(self, items: Sequence[DraftItem]) -> list[DraftResult]: ...


@dataclass(frozen=True)
class WalkOptions:
    """How a text is walked.

    Attributes:
        num_proposals: the most that are asked for in a round.
        max_tokens: the request's limit; near it fewer are asked for, as in serving. 0: as many as the
            text has.
        layers: indices of the shard's tapped layers that the drafter reads; empty means all.
        group_size: G, the last tokens given to the drafter.
    """

    num_proposals: int
    max_tokens: int = 0
    layers: tuple[int, ...] = ()
    group_size: int = 1


@dataclass(frozen=True)
class Round:
    """One draft round: the anchor's position, proposals asked for and made, and how many stood."""

    position: int
    asked: int
    proposals: tuple[int, ...]
    accepted: int


@dataclass(eq=False)
class Walk:
    """The rounds of one text so far; `position` is that of the next anchor."""

    sequence: CapturedSequence
    options: WalkOptions
    mode: DraftMode
    position: int
    rounds: list[Round] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens that the rounds committed."""
        return self.position - self.sequence.prompt_length

    def asked(self) -> int:
        """Proposals to ask for now; 0 when the text is over, or one token is left, which is not drafted."""
        length, first = len(self.sequence.token_ids), self.sequence.prompt_length
        most = self.options.max_tokens or length - first
        if self.position >= length - 1:
            return 0
        return min(self.options.num_proposals, most - (self.position - first + 1) - 1)

    def item(self, name: str) -> DraftItem:
        """What the drafter is asked at this anchor."""
        sequence, at = self.sequence, self.position
        features = sequence.features[at - 1 - sequence.first_position].to(torch.float32)
        if self.options.layers:
            features = features[list(self.options.layers)]
        recent = sequence.token_ids[max(at + 1 - self.options.group_size, 0) : at + 1]
        return DraftItem(
            request_id=name,
            recent_tokens=tuple(recent.tolist()),
            features=features,
            position=at,
            k=self.asked(),
            mode=self.mode,
            key=sequence.sampling_key,
            temperature=sequence.temperature,
        )

    def take(self, proposals: tuple[int, ...]) -> None:
        """Compares proposals with the text and moves the anchor."""
        text = self.sequence.token_ids[self.position + 1 :].tolist()
        accepted = count_accepted(proposals, text)
        self.rounds.append(Round(self.position, self.asked(), proposals, accepted))
        self.position = min(self.position + accepted + 1, len(self.sequence.token_ids) - 1)
        if self.position == self.rounds[-1].position:  # pragma: no cover
            raise AssertionError("a round commits a token")


def count_accepted(proposals: Sequence[int], text: Sequence[int]) -> int:
    """A: the proposals before the first that is not the text's token."""
    count = 0
    for proposal, token in zip(proposals, text, strict=False):
        if proposal != token:
            break
        count += 1
    return count


def begin(sequence: CapturedSequence, options: WalkOptions) -> Walk:
    """A walk whose first anchor is the first response token.

    Raises:
        ContractMismatch: the text was drawn with noise that is not known, so no round can be coupled.
    """
    mode = DraftMode.GREEDY
    if sequence.temperature > 0:
        mode = DraftMode.COUPLED
        if not sequence.sampling_key:
            raise ContractMismatch(
                "a sampled text without its sampling key cannot be walked; use `dlite data generate`",
                field="sampling_keys",
            )
    return Walk(sequence, options, mode, sequence.prompt_length)


def walk_all(
    drafter: Proposes, sequences: Sequence[CapturedSequence], options: WalkOptions, batch: int = 32
) -> Iterator[Walk]:
    """Walks texts to their ends, up to `batch` at a time; a batch gives what each alone gives.

    Raises:
        ContractMismatch: the drafter refuses an item.
    """
    waiting = [begin(sequence, options) for sequence in reversed(sequences)]
    active: list[Walk] = []
    while waiting or active:
        while waiting and len(active) < batch:
            active.append(waiting.pop())
        yield from (walk for walk in active if walk.asked() < 1)
        active = [walk for walk in active if walk.asked() >= 1]
        results = drafter.propose([walk.item(str(i)) for i, walk in enumerate(active)])
        for walk, result in zip(active, results, strict=True):
            if result.refusal is not None:
                raise ContractMismatch(f"the drafter refused a round: {result.refusal}", field="drafter")
            walk.take(result.tokens)
