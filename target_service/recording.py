"""Online capture: the states behind every decision, taken while an engine decides. No second pass.

A recorder stands between engine and model. It tells whose row it sees by the page that the row is
written to: a page that is being written belongs to one sequence alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from target_service.commands import RequestKey
from target_service.engine import Model, StepOutput
from target_service.packing import PackedStep
from target_service.sequence import Sequence


@dataclass(frozen=True, eq=False)
class RecordedRow:
    """The state at one position and two numbers of the law it gives.

    Attributes:
        features: [m, D] on the CPU.
        greedy_token: the argmax.
        log_normaliser: logsumexp of the logits.
    """

    features: torch.Tensor
    greedy_token: int
    log_normaliser: float


class Recorder:
    """A model that keeps its deciding rows, by request and position.

    Args:
        model: computes.
        page_size: of its pages.
        dtype: in which features are kept.
    """

    def __init__(self, model: Model, page_size: int, dtype: torch.dtype) -> None:
        self._model = model
        self._page_size = page_size
        self._dtype = dtype
        self._rows: dict[RequestKey, dict[int, RecordedRow]] = {}
        self.sequences: Callable[[], Iterable[Sequence]] = tuple

    @property
    def device(self) -> torch.device:
        return self._model.device

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    def copy_page(self, source: int, destination: int) -> None:
        self._model.copy_page(source, destination)

    def forward(self, step: PackedStep) -> StepOutput:
        """As the model's, with one recorded row for each deciding row."""
        output = self._model.forward(step)
        if len(step.decision_rows):
            self._record(step, output)
        return output

    def take(self, key: RequestKey) -> dict[int, RecordedRow]:
        """What was recorded of a request, by position; it is forgotten here."""
        return self._rows.pop(key, {})

    def _record(self, step: PackedStep, output: StepOutput) -> None:
        owners = {page: one.key for one in self.sequences() for page in one.pages}
        pages = (step.slots[step.decision_rows] // self._page_size).tolist()
        positions = step.positions[step.decision_rows].tolist()
        features = output.features.to("cpu", self._dtype)
        greedy = output.logits.argmax(dim=-1).tolist()
        normalisers = torch.logsumexp(output.logits.to(torch.float32), dim=-1).tolist()
        for i, (page, position) in enumerate(zip(pages, positions, strict=True)):
            # A clone: a view would keep the whole step's features alive.
            row = RecordedRow(features[i].clone(), greedy[i], normalisers[i])
            self._rows.setdefault(owners[page], {})[position] = row
