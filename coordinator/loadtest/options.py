"""What one load test is to do: the flags, checked. Pure, and light to import."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from protos.errors import InvalidRequest

RANDOM, CUSTOM, AGENT = "random", "custom", "agent"
METRICS = ("ttft", "tpot", "itl", "e2el")


@dataclass(frozen=True)
class Data:
    """What is sent. Lengths in tokens.

    Args:
        name: random, custom or agent.
        path: of a JSONL file, for custom.
        num_prompts: sessions; a session of random has one turn.
        turns: of a session of agent; turn_len: tokens that each later turn adds; pause_seconds: mean.
        shared_prefix_len: tokens that all sessions of random and agent begin with.
        cancel_rate: share of requests that are cancelled in mid-text.
    """

    name: str = RANDOM
    path: Path | None = None
    num_prompts: int = 32
    input_len: int = 128
    output_len: int | None = None
    range_ratio: float = 0.0
    shared_prefix_len: int = 0
    turns: int = 4
    turn_len: int = 32
    pause_seconds: float = 0.0
    cancel_rate: float = 0.0
    raw_prompts: bool = False


@dataclass(frozen=True)
class Slo:
    """Bounds in seconds by metric; a request is good when it keeps all of them."""

    bounds: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Shown:
    """Which figures are given."""

    metrics: tuple[str, ...] = METRICS
    percentiles: tuple[float, ...] = (99.0,)
    slo: Slo = field(default_factory=Slo)


@dataclass(frozen=True)
class Point:
    """One place of a sweep: requests/s (inf: none set) and sessions at once (None: no limit)."""

    rate: float
    concurrency: int | None


def parse_points(rates: str, concurrencies: str | None) -> tuple[Point, ...]:
    """All pairs of two comma-separated lists.

    Raises:
        InvalidRequest: naming the flag.
    """
    try:
        all_rates = [float(each) for each in rates.split(",")]
        if not all(each > 0 for each in all_rates):
            raise ValueError(rates)
    except ValueError as error:
        raise InvalidRequest(f"{rates!r}: rates above 0, or inf", field="--request-rate") from error
    try:
        limits = [int(each) for each in concurrencies.split(",")] if concurrencies else [None]
        if not all(each is None or each > 0 for each in limits):
            raise ValueError(concurrencies)
    except ValueError as error:
        raise InvalidRequest(
            f"{concurrencies!r}: whole numbers above 0", field="--max-concurrency"
        ) from error
    return tuple(Point(rate, limit) for rate in all_rates for limit in limits)


def parse_shown(metrics: str, percentiles: str, goodput: list[str]) -> Shown:
    """Reads `ttft,tpot`, `50,99` and `ttft:200 tpot:50` (milliseconds).

    Raises:
        InvalidRequest: naming the flag.
    """
    names = tuple(each.strip() for each in metrics.split(",") if each.strip())
    if unknown := set(names) - set(METRICS):
        raise InvalidRequest(
            f"{', '.join(sorted(unknown))}: there are {', '.join(METRICS)}", field="--percentile-metrics"
        )
    try:
        percents = tuple(float(each) for each in percentiles.split(",") if each.strip())
        if not all(0 < each <= 100 for each in percents):
            raise ValueError(percentiles)
    except ValueError as error:
        raise InvalidRequest(
            f"{percentiles!r}: numbers above 0 up to 100", field="--metric-percentiles"
        ) from error
    words = [word for value in goodput for word in value.replace(",", " ").split()]
    return Shown(names, percents, Slo(tuple(_bound(word) for word in words)))


def _bound(word: str) -> tuple[str, float]:
    name, _, value = word.partition(":")
    try:
        bound = float(value) / 1e3
    except ValueError:
        bound = math.nan
    if name not in ("ttft", "tpot", "e2el") or not bound >= 0:
        raise InvalidRequest(f"{word!r}: ttft, tpot or e2el, a colon, milliseconds", field="--goodput")
    return name, bound


def parse_metadata(values: list[str]) -> dict[str, str]:
    """Reads `KEY=VALUE` words. Raises InvalidRequest."""
    pairs = [each.partition("=") for each in values]
    if bad := [key for key, sign, _ in pairs if not (sign and key)]:
        raise InvalidRequest(f"{bad[0]!r} is not KEY=VALUE", field="--metadata")
    return {key: value for key, _, value in pairs}


def parse_body(text: str | None) -> dict[str, Any]:
    """Reads a JSON object. Raises InvalidRequest."""
    try:
        body = json.loads(text) if text else {}
    except ValueError as error:
        raise InvalidRequest(f"not JSON: {error}", field="--extra-body") from error
    if not isinstance(body, dict):
        raise InvalidRequest("not a JSON object", field="--extra-body")
    return body


def check_data(data: Data) -> Data:
    """Raises InvalidRequest, naming the flag."""
    if data.name not in (RANDOM, CUSTOM, AGENT):
        raise InvalidRequest(
            f"{data.name!r}: there are {RANDOM}, {CUSTOM} and {AGENT}", field="--dataset-name"
        )
    if (data.path is None) == (data.name == CUSTOM):
        raise InvalidRequest(f"goes with --dataset-name {CUSTOM}, and only with it", field="--dataset-path")
    for name in ("cancel_rate", "range_ratio"):
        if not 0 <= getattr(data, name) <= 1:
            raise InvalidRequest("between 0 and 1", field="--" + name.replace("_", "-"))
    whole = [
        each.name for each in fields(data) if each.name in ("num_prompts", "input_len", "turns", "turn_len")
    ]
    if bad := [name for name in whole if getattr(data, name) < 1]:
        raise InvalidRequest("at least 1", field="--" + bad[0].replace("_", "-"))
    return data
