"""Wrong builds of shipped drafters and of what they are measured on. See `wrong_builds`."""

from __future__ import annotations

import pytest
import torch

from deploy import agent_held_out
from deploy.agent_prompts import MadePrompt, agent_prompts
from deploy.trace_words import TRAINING
from draft_service import row_scales
from tests.wrong_builds import WrongBuild, everywhere


def _scales_of_the_next_row(monkeypatch: pytest.MonkeyPatch) -> None:
    right = row_scales.dequantise

    def wrong(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return right(values, scales.roll(-1))

    monkeypatch.setattr(row_scales, "dequantise", wrong)


def _held_out_is_only_another_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(count: int, seed: int = agent_held_out.SEED) -> list[MadePrompt]:
        return agent_prompts(count, seed)

    everywhere(agent_held_out.held_out_prompts, wrong)(monkeypatch)


def _traces_are_told_in_training_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_held_out, "HELD_OUT", TRAINING)


SHIPPING_BUILDS = {
    "scales-of-the-next-row": WrongBuild(
        "a table's row is expanded with the scale of the row after it",
        _scales_of_the_next_row,
        "tests/test_row_scales.py::test_no_value_is_off_by_more_than_half_a_scale",
    ),
    "held-out-by-seed-alone": WrongBuild(
        "agent prompts for measuring are made by the generator of training prompts, with another seed",
        _held_out_is_only_another_seed,
        "tests/test_agent_traces.py::test_held_out_prompts_share_no_tool_and_no_line_with_training",
    ),
    "held-out-traces-in-training-words": WrongBuild(
        "traces for measuring use the tools and log lines of training traces",
        _traces_are_told_in_training_words,
        "tests/test_agent_traces.py::test_training_prompts_hold_no_run_of_held_out_ones",
    ),
}
