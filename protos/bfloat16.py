"""Matrix products in bfloat16 inside a float32 model: several times faster on CPUs with such instructions.

Weights and inputs are rounded to bfloat16, sums and everything else stay in float32. Not for a target
that verifies: its ids are those of float32. For training data, and for drafters, whose proposals are
checked anyway.
"""

from __future__ import annotations

import torch
from torch import nn

from protos.layers import swap_linear


class Bfloat16Linear(nn.Module):
    """x @ weight.T + bias of a float32 layer, the product in bfloat16. [.., N] -> [.., M], as x's type."""

    def __init__(self, stock: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = stock.in_features, stock.out_features
        self.weight = nn.Buffer(stock.weight.detach().to(torch.bfloat16), persistent=False)
        bias = stock.bias
        self.bias = None if bias is None else nn.Buffer(bias.detach().to(torch.bfloat16), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = nn.functional.linear(x.to(torch.bfloat16), self.weight, self.bias)
        return product.to(x.dtype)


def use_bfloat16(model: nn.Module, keep: str) -> None:
    """Swaps the linear layers of a float32 model in place; embeddings and norms stay.

    Args:
        keep: the name of the layer that makes the logits: rounded to 8 bits, they would tie.
    """
    swap_linear(model, Bfloat16Linear, keep)
