"""How likely a proposal stands, per request, position and class of traffic.

`a_j` is the conditional acceptance of proposal j (1-based): that it is accepted, given that all
before it were. It is estimated only from rounds that verified j and reached it. A plain average of
accepted counts would be censored by `v`: what was not verified would look like a miss.
`S_j = a_1 .. a_j`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from coordinator.tuner.running import RunningRate

# Half-lives are in committed tokens, of the request and of its class.
_REQUEST_WINDOW, _REQUEST_HALF_LIFE, _REQUEST_FLOOR = 100.0, 400.0, 2.0
_CLASS_WINDOW, _CLASS_HALF_LIFE, _CLASS_FLOOR = 128.0, 2000.0, 4.0
# So many rounds of its own weigh as much as the class.
_SHRINKAGE = 4.0
# A position of a class that was never seen is taken to be as good as the one before it, and a
# drafter that was never seen to be a good one: what is thought poor is hardly tried.
_PRIOR_WEIGHT = 4.0
_FIRST_ACCEPTANCE = 0.8
# Standard deviations of hope, where it ends, and the least deviation of a rate near 0 or 1.
_HOPE = 0.7
_MOST_HOPE = 0.9
_SMOOTHING = 0.02


@dataclass(frozen=True)
class Verified:
    """What a round showed.

    Args:
        num_verified: proposals verified; num_accepted: how many of them stand.
        is_cut: the text ended inside the block, so what follows was not judged.
    """

    num_verified: int
    num_accepted: int
    is_cut: bool = False

    def outcomes(self) -> tuple[bool, ...]:
        """For each proposal that was verified and reached, whether it stands."""
        accepted = (True,) * self.num_accepted
        if self.num_accepted < self.num_verified and not self.is_cut:
            return (*accepted, False)
        return accepted


class Positions:
    """One rate for each position, with a count of committed tokens as its clock."""

    def __init__(self, window: float, half_life: float, floor: float) -> None:
        self._shape = (window, half_life, floor)
        self._rates: list[RunningRate] = []
        self.num_tokens = 0

    def note(self, verified: Verified) -> None:
        for index, stands in enumerate(verified.outcomes()):
            if index == len(self._rates):
                self._rates.append(self._new_rate())
            self._rates[index].note(stands, self.num_tokens)

    def shrunk(self, index: int, prior: float, prior_weight: float) -> float:
        """The rate at a 0-based position, drawn to a prior of so many rounds."""
        if index >= len(self._rates):
            return prior
        rate = self._rates[index]
        weight = rate.weight(self.num_tokens)
        return (rate.rate * weight + prior * prior_weight) / (weight + prior_weight)

    def weight(self, index: int) -> float:
        """How many rounds the rate at a 0-based position stands for."""
        return self._rates[index].weight(self.num_tokens) if index < len(self._rates) else 0.0

    def _new_rate(self) -> RunningRate:
        window, half_life, floor = self._shape
        return RunningRate(window, half_life, floor)


class Survival:
    """Estimates for all requests under way. A class names traffic and source ("chat/drafter")."""

    def __init__(self) -> None:
        self._classes: dict[str, Positions] = {}
        self._requests: dict[tuple[str, str], Positions] = {}

    def note(self, request_id: str, class_name: str, verified: Verified) -> None:
        """Takes a verified round."""
        self._class(class_name).note(verified)
        self._request(request_id, class_name).note(verified)

    def note_tokens(self, request_id: str, class_name: str, num_tokens: int) -> None:
        """Tokens were committed, however they were decided: older evidence loses weight."""
        self._class(class_name).num_tokens += num_tokens
        self._request(request_id, class_name).num_tokens += num_tokens

    def forget(self, request_id: str) -> None:
        """The request is over; its class keeps what it showed."""
        for key in [key for key in self._requests if key[0] == request_id]:
            del self._requests[key]

    def acceptance(self, request_id: str, class_name: str, num_positions: int) -> tuple[float, ...]:
        """`a_1 .. a_K`, each in [0, 1]."""
        of_class = self._classes.get(class_name)
        of_request = self._requests.get((request_id, class_name))
        prior, found = _FIRST_ACCEPTANCE, []
        for index in range(num_positions):
            if of_class:
                prior = of_class.shrunk(index, prior, _PRIOR_WEIGHT)
            found.append(of_request.shrunk(index, prior, _SHRINKAGE) if of_request else prior)
        return tuple(found)

    def survival(self, request_id: str, class_name: str, num_positions: int) -> tuple[float, ...]:
        """`S_1 .. S_K`, non-increasing."""
        return survival_of(self.acceptance(request_id, class_name, num_positions))

    def hoped_survival(self, request_id: str, class_name: str, num_positions: int) -> tuple[float, ...]:
        """`S_1 .. S_K` with every `a_j` at the upper end of what is known about it.

        Speculation shows whether it is worth it and `Run` does not, so doubt speaks for speculation
        (upper confidence bounds, Auer et al. 2002). With evidence the doubt goes.
        """
        of_class = self._classes.get(class_name)
        of_request = self._requests.get((request_id, class_name))
        hoped = []
        for index, rate in enumerate(self.acceptance(request_id, class_name, num_positions)):
            count = sum(found.weight(index) for found in (of_class, of_request) if found)
            variance = (rate + _SMOOTHING) * (1.0 - rate + _SMOOTHING) / (count + _PRIOR_WEIGHT)
            hoped.append(min(rate + _HOPE * math.sqrt(variance), max(rate, _MOST_HOPE)))
        return survival_of(tuple(hoped))

    def _class(self, name: str) -> Positions:
        return self._classes.setdefault(name, Positions(_CLASS_WINDOW, _CLASS_HALF_LIFE, _CLASS_FLOOR))

    def _request(self, request_id: str, class_name: str) -> Positions:
        key = (request_id, class_name)
        return self._requests.setdefault(key, Positions(_REQUEST_WINDOW, _REQUEST_HALF_LIFE, _REQUEST_FLOOR))


def survival_of(acceptance: tuple[float, ...]) -> tuple[float, ...]:
    """The running product of conditional acceptances."""
    product, found = 1.0, []
    for rate in acceptance:
        product *= rate
        found.append(product)
    return tuple(found)
