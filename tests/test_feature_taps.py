"""Kept rows are read only after they have arrived."""

from __future__ import annotations

import torch

from target_service.feature_taps import FeatureTaps
from target_service.model import TargetModel
from target_service.packing import Extension, pack
from tests.fakes import tiny_target

CPU = torch.device("cpu")


class SlowRows:
    """A device whose copies arrive at `wait` only."""

    def __init__(self) -> None:
        self.on_their_way: list[tuple[torch.Tensor, torch.Tensor]] = []

    def keep(self, rows: torch.Tensor) -> torch.Tensor:
        host = torch.full_like(rows, torch.nan)
        self.on_their_way.append((host, rows))
        return host

    def wait(self) -> None:
        for host, rows in self.on_their_way:
            host.copy_(rows)
        self.on_their_way.clear()


@torch.inference_mode()
def test_features_are_complete_when_taken() -> None:
    step = pack([Extension((1, 2, 3, 4), 0, (0,), 2)], 16, CPU)
    expected = TargetModel(tiny_target(), (0, 1, 2), 4, 16).forward(step).features
    model = tiny_target()
    target = TargetModel(model, (), 4, 16)
    taps = FeatureTaps(model, (0, 1, 2), SlowRows())
    taps.start(step.decision_rows)
    assert target.forward(step).features.numel() == 0
    assert torch.equal(taps.take(), expected)
    assert expected.shape == (2, 3, 32)
