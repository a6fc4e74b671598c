"""What rounds teach: costs once a step however many requests were in it, acceptance once a round."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coordinator.tuner.calibration import Calibration
from coordinator.tuner.survival import Verified
from coordinator.tuner.tuner import TunedRequest, Tuner

# Batches of several drafters come mixed up; each of them has a number of its own.
_BATCHES_REMEMBERED = 32


@dataclass(frozen=True)
class Measured:
    """A step of the target, or a batch of the drafter.

    Args:
        number: of the step, 0 when it was not told. rows: or items.
        extra: context read, or proposals asked for.
    """

    number: int
    rows: int
    seconds: float
    extra: float = 0.0


def judged(proposals: Sequence[int], verified: Verified, anchor: int | None) -> Verified:
    """What a greedy or coupled round showed, the proposal behind the verified ones included: when all
    before it stand, the token that the target decided in its place says whether it would have.

    Args:
        anchor: the last token decided; None when the text has ended.
    """
    is_whole = verified.num_accepted == verified.num_verified < len(proposals)
    if anchor is None or not is_whole:
        return verified
    stands = proposals[verified.num_verified] == anchor
    return Verified(verified.num_verified + 1, verified.num_accepted + stands)


class Learning:
    """Feeds a tuner; knows the calibration of confidences by class."""

    def __init__(self, tuner: Tuner, draw: Callable[[], float]) -> None:
        self._tuner = tuner
        self._draw = draw
        self._calibrations: dict[str, Calibration] = {}
        self._last_step = 0
        self._last_batches: deque[int] = deque(maxlen=_BATCHES_REMEMBERED)

    def note_step(self, measured: Measured) -> None:
        """Takes a verdict's step; the verdicts of one step come one after the other."""
        if measured.number and measured.number != self._last_step and measured.rows:
            self._last_step = measured.number
            self._tuner.costs.verify.note(measured.rows, measured.seconds, measured.extra)

    def note_batch(self, measured: Measured) -> None:
        """Takes an answer's batch; answers of one batch may come between those of another drafter's."""
        if measured.number and measured.number not in self._last_batches and measured.rows:
            self._last_batches.append(measured.number)
            self._tuner.costs.draft.note(measured.rows, measured.seconds, measured.extra)

    def note_draft(
        self, request: TunedRequest, verified: Verified, confidences: Sequence[float], was_probe: bool
    ) -> None:
        """Takes a drafter's round; no confidences in a blind one."""
        self._tuner.note_block(request, verified, was_probe)
        if confidences:
            self._calibrations.setdefault(request.class_name, Calibration()).note(confidences, verified)

    def note_offer(self, request_id: str, class_name: str, verified: Verified) -> None:
        """Takes a round of a lookup or a kept tail."""
        survival = self._tuner.survival
        survival.note(request_id, class_name, verified)
        survival.note_tokens(request_id, class_name, verified.num_accepted + 1)

    def acceptance(self, class_name: str, confidences: Sequence[float]) -> tuple[float, ...]:
        """`a_1 .. a_k` of a draft by its confidences."""
        return self._calibrations.setdefault(class_name, Calibration()).acceptance(confidences)

    def survival(self, request_id: str, class_name: str, num_positions: int) -> tuple[float, ...]:
        """`S_1 .. S_k` of an offer, as hoped."""
        return self._tuner.survival.hoped_survival(request_id, class_name, num_positions)

    def looks_anyway(self) -> bool:
        """Whether an offer that seems to be worth less than a Run is taken all the same: a probe."""
        return self._draw() < self._tuner.probes.most
