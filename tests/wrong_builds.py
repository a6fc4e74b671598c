"""Wrong builds that the suite must catch: each replaces one public function and names its check.

A check is a test function that is called in process, with the build's arguments, while the wrong
function is in place; it must raise AssertionError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from protos import noise

Apply = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class WrongBuild:
    """A mistake that has been made before.

    Args:
        says: what is wrong.
        apply: puts the mistake in place.
        check: the test that catches it.
        arguments: keyword arguments of a parametrised test function.
    """

    says: str
    apply: Apply
    check: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


def _exponential_rounded_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(h: torch.Tensor) -> torch.Tensor:
        return -torch.log1p(-(h.to(torch.float32).add(0.5).mul(2.0**-32)))

    monkeypatch.setattr(noise, "exponential", wrong)


def _gumbel_by_two_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(h: torch.Tensor) -> torch.Tensor:
        return -torch.log(h.to(torch.float32).add(0.5).mul(2.0**-32))

    monkeypatch.setattr(noise, "exponential", wrong)


WRONG_BUILDS: dict[str, WrongBuild] = {
    "u-rounded-to-one": WrongBuild(
        says="u is rounded to 1 in float32, so E is infinite for h >= 2^32 - 128",
        apply=_exponential_rounded_to_one,
        check="tests/test_noise.py::test_edge_values_give_finite_positive_variates",
    ),
    "log-of-rounded-u": WrongBuild(
        says="E = -log u with u rounded to 1 is zero, and log E is -inf: a token of any law wins",
        apply=_gumbel_by_two_logs,
        check="tests/test_noise.py::test_edge_values_give_finite_positive_variates",
    ),
}
