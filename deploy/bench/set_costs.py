"""What fake services cost and how often the fake drafter is right, and how both are written in flags.

    T_V   "1:0.02,8:0.03+1e-6"               20 ms up to 1 row, 30 ms up to 8, and 1 us a context token
    T_D   "3=1:0.004,8:0.006;7=1:0.008"      k up to 3: 4 ms alone, 6 ms up to 8 items; k up to 7: 8 ms
    a_j   "0.8,0.5;chat=0.8x7;code=0.9x7|200:0.1x7"
          position by position; by class of traffic; from position 200 of a text on something else

A request's class is what stands before the first "/" of its id.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from protos.errors import InvalidRequest

Sleep = Callable[[float], None]
# time.sleep returns some 0.1 ms late, and later on a busy machine.
_SPIN_SECONDS = 0.0003
CLASS_SEPARATOR = "/"


def precise_sleep(seconds: float) -> None:
    """Sleeps almost all of it, then gives way until the time has come: right to some 20 us."""
    deadline = time.perf_counter() + seconds
    if seconds > _SPIN_SECONDS:
        time.sleep(seconds - _SPIN_SECONDS)
    while time.perf_counter() < deadline:
        time.sleep(0)


@dataclass(frozen=True)
class CostTable:
    """Seconds by size: a staircase, as kernels have it.

    Args:
        sizes: ascending upper ends of the steps; beyond the last one its cost is scaled up.
        seconds: cost of each step.
    """

    sizes: tuple[int, ...] = (1,)
    seconds: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        if len(self.sizes) != len(self.seconds) or not self.sizes or list(self.sizes) != sorted(self.sizes):
            raise InvalidRequest(f"{self.sizes} and {self.seconds}: one cost for each ascending size")

    def __call__(self, size: int) -> float:
        """Cost of `size` rows (or items)."""
        step = bisect.bisect_left(self.sizes, size)
        if step < len(self.sizes):
            return self.seconds[step]
        return self.seconds[-1] * size / self.sizes[-1]


@dataclass(frozen=True)
class VerifyCosts:
    """T_V: by rows of a step, and for every context token its sequences have."""

    rows: CostTable = field(default_factory=CostTable)
    context_seconds: float = 0.0

    def __call__(self, num_rows: int, num_context: int) -> float:
        return self.rows(num_rows) + self.context_seconds * num_context


@dataclass(frozen=True)
class DraftCosts:
    """T_D: by batch, for each longest draft.

    Args:
        tables: (most k, seconds by batch), k ascending; the last one stands for every longer draft.
    """

    tables: tuple[tuple[int, CostTable], ...] = ((255, CostTable()),)

    def __call__(self, batch: int, k: int) -> float:
        ends = [most for most, _ in self.tables]
        return self.tables[min(bisect.bisect_left(ends, k), len(ends) - 1)][1](batch)


@dataclass(frozen=True)
class Phase:
    """From a position of the text on, proposal j is right with probability acceptance[j - 1]."""

    first_position: int
    acceptance: tuple[float, ...]


@dataclass(frozen=True)
class Acceptance:
    """How often the fake drafter is right.

    Args:
        classes: phases by class, ascending; "" stands for every class that has no entry.
    """

    classes: Mapping[str, tuple[Phase, ...]]

    @property
    def num_proposals(self) -> int:
        """K: what the drafter gives at most."""
        return max(len(phase.acceptance) for phases in self.classes.values() for phase in phases)

    def at(self, request_id: str, position: int) -> tuple[float, ...]:
        """a_1 .. a_K of a request at the position of its anchor."""
        name = request_id.split(CLASS_SEPARATOR, 1)[0]
        phases = self.classes.get(name) or self.classes[""]
        index = bisect.bisect_right([phase.first_position for phase in phases], position)
        return phases[max(index - 1, 0)].acceptance


def parse_costs(text: str) -> CostTable:
    """ "1:0.02,8:0.03" -> 20 ms up to one row, 30 ms up to 8, scaled beyond."""
    try:
        pairs = [part.split(":") for part in text.split(",")]
        return CostTable(tuple(int(size) for size, _ in pairs), tuple(float(cost) for _, cost in pairs))
    except ValueError as error:
        raise InvalidRequest(f"{text!r}: expected SIZE:SECONDS with commas", field="costs") from error


def format_costs(table: CostTable) -> str:
    return ",".join(f"{size}:{seconds!r}" for size, seconds in zip(table.sizes, table.seconds, strict=True))


def parse_verify_costs(text: str) -> VerifyCosts:
    rows, _, slope = text.partition("+")
    return VerifyCosts(parse_costs(rows), float(slope or 0.0))


def format_verify_costs(costs: VerifyCosts) -> str:
    return f"{format_costs(costs.rows)}+{costs.context_seconds!r}"


def parse_draft_costs(text: str) -> DraftCosts:
    parts = [part.rpartition("=") for part in text.split(";")]
    return DraftCosts(tuple((int(most or 255), parse_costs(costs)) for most, _, costs in parts))


def format_draft_costs(costs: DraftCosts) -> str:
    return ";".join(f"{most}={format_costs(table)}" for most, table in costs.tables)


def uniform(acceptance: float, k: int) -> Acceptance:
    """Every proposal of every request with the same probability."""
    return Acceptance({"": (Phase(0, (acceptance,) * k),)})


def parse_acceptance(text: str) -> Acceptance:
    """See the module.

    Raises:
        InvalidRequest: not of this form, or no class "" for requests of no other class.
    """
    try:
        parts = [part.rpartition("=") for part in text.split(";")]
        classes = {name: tuple(map(_parse_phase, phases.split("|"))) for name, _, phases in parts}
    except ValueError as error:
        raise InvalidRequest(
            f"{text!r}: expected [CLASS=]A,A,..[|POSITION:A,A,..]", field="acceptance"
        ) from error
    if "" not in classes:
        raise InvalidRequest(f"{text!r} says nothing of other classes", field="acceptance")
    return Acceptance(classes)


def _parse_phase(text: str) -> Phase:
    position, _, values = text.rpartition(":")
    acceptance: list[float] = []
    for part in values.split(","):
        value, _, count = part.partition("x")
        acceptance += [float(value)] * int(count or 1)
    return Phase(int(position or 0), tuple(acceptance))


def format_acceptance(acceptance: Acceptance) -> str:
    return ";".join(
        f"{name}=" * bool(name) + "|".join(map(_format_phase, phases))
        for name, phases in acceptance.classes.items()
    )


def _format_phase(phase: Phase) -> str:
    return f"{phase.first_position}:{','.join(map(repr, phase.acceptance))}"


def survival(acceptance: Sequence[float]) -> tuple[float, ...]:
    """S_1 .. S_K."""
    values, product = [], 1.0
    for each in acceptance:
        product *= each
        values.append(product)
    return tuple(values)
