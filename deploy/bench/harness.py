"""What every yardstick shares: interleaved arms, medians with spread, the form of a result."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

Say = Callable[[str], None]
Measure = Callable[[], Awaitable[float]]


@dataclass(frozen=True)
class BenchOptions:
    """How a yardstick is run.

    Args:
        target: what `resolve_model` takes.
        full: the long form.
        say: takes lines of progress.
        drafter: a checkpoint folder, or "auto", the shipped one; yardsticks of a trained drafter take it.
        prompts: files of prompts for those that measure on given texts.
    """

    target: str
    full: bool
    say: Say
    drafter: str = "auto"
    prompts: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What a yardstick measured.

    Args:
        value: in `unit`; compared with `bar`.
        passed: whether the bar is met; printed, never an exit code.
        runs: one record for each run of an arm, in the order they were made.
        details: more fields of the result.
    """

    value: float
    unit: str
    bar: float
    passed: bool
    runs: Sequence[Mapping[str, Any]]
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Spread:
    """Median and range of repeated runs."""

    median: float
    low: float
    high: float
    num_runs: int = field(default=0)


def spread(values: Sequence[float]) -> Spread:
    """Raises:
    ValueError: no values.
    """
    if not values:
        raise ValueError("no runs")
    return Spread(statistics.median(values), min(values), max(values), len(values))


def abba(names: Sequence[str], num_cycles: int) -> list[str]:
    """The order of runs: forwards and backwards in turn, so that a drifting machine favours no arm."""
    return [name for cycle in range(num_cycles) for name in (names if cycle % 2 == 0 else names[::-1])]


async def interleave(arms: Mapping[str, Measure], num_cycles: int, say: Say) -> list[dict[str, Any]]:
    """Runs every arm `num_cycles` times in A-B-B-A order.

    Returns:
        `{"arm", "value"}` for each run, in order.
    """
    runs = []
    for number, name in enumerate(abba(list(arms), num_cycles)):
        value = await arms[name]()
        say(f"run {number + 1} of {len(arms) * num_cycles}: {name} {value:.2f}")
        runs.append({"arm": name, "value": value})
    return runs


def paired_ratios(runs: Sequence[Mapping[str, Any]], numerator: str, denominator: str) -> list[float]:
    """Ratios of the n-th run of one arm to the n-th of the other: neighbours in time, so that a load
    that comes and goes on the machine hits both."""
    above = [run["value"] for run in runs if run["arm"] == numerator]
    below = [run["value"] for run in runs if run["arm"] == denominator]
    return [a / b for a, b in zip(above, below, strict=True)]


def medians(runs: Sequence[Mapping[str, Any]]) -> dict[str, Spread]:
    """Median and range of each arm."""
    names = dict.fromkeys(run["arm"] for run in runs)
    return {name: spread([run["value"] for run in runs if run["arm"] == name]) for name in names}


def report(name: str, outcome: Outcome) -> dict[str, Any]:
    """The JSON of a result."""
    arms = {}
    if all("value" in run for run in outcome.runs):
        arms = {arm: asdict(values) for arm, values in medians(outcome.runs).items()}
    return {
        "name": name,
        "value": outcome.value,
        "unit": outcome.unit,
        "bar": outcome.bar,
        "pass": outcome.passed,
        "runs": [dict(run) for run in outcome.runs],
        "arms": arms,
        **outcome.details,
        "machine": machine(),
        "commit": commit(),
    }


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
        "grpcio": version("grpcio"),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def commit() -> str:
    """The commit of this tree, with "-dirty" for changes; "unknown" outside a checkout."""
    root = Path(__file__).parent.parent.parent

    def git(*args: str) -> str:
        command = ["git", "-C", str(root), *args]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        dirty = "-dirty" if git("status", "--porcelain", "--untracked-files=no") else ""
        return git("rev-parse", "HEAD") + dirty
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
