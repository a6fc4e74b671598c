"""The library's own decoding of a model: an independent judge of ids and near-ties."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from protos.noise import Domain, exponential, hash_rows, row_state


class Reference:
    """A causal LM of `transformers` in float32 on the CPU."""

    def __init__(self, folder: Path, num_threads: int) -> None:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(num_threads)
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._model = model.eval()

    @torch.inference_mode()
    def generate(self, prompt: Sequence[int], max_tokens: int) -> list[int]:
        """Greedy ids after the prompt, EOS included."""
        ids = torch.tensor([list(prompt)])
        output = self._model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False
        )
        new: list[int] = output[0, len(prompt) :].tolist()
        return new

    @torch.inference_mode()
    def _next_logits(self, prefix: Sequence[int]) -> torch.Tensor:
        logits: torch.Tensor = self._model(torch.tensor([list(prefix)]), logits_to_keep=1).logits[0, -1]
        return logits

    def greedy_gap(self, prefix: Sequence[int]) -> float:
        """Gap of the two best logits after the prefix."""
        return _top_two_gap(self._next_logits(prefix))

    def coupled_gap(self, prefix: Sequence[int], key: bytes, temperature: float) -> float:
        """Gap of the two best `log p - log E` for the decision after the prefix."""
        log_law = torch.log_softmax(self._next_logits(prefix).float() / temperature, dim=-1)
        state = row_state(key, Domain.TOKEN, len(prefix))
        noise = exponential(hash_rows([state], torch.arange(len(log_law))))[0]
        return _top_two_gap(log_law - torch.log(noise))


def _top_two_gap(scores: torch.Tensor) -> float:
    best = scores.topk(2).values
    return float(best[0] - best[1])
