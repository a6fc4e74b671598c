"""Other matrix products in the place of a model's linear layers."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


def swap_linear(model: nn.Module, make: Callable[[nn.Linear], nn.Module], keep: str = "") -> None:
    """Swaps the linear layers of a model in place; embeddings and norms stay.

    Args:
        make: the layer that takes the place of one.
        keep: the name of a layer that stays.
    """
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and name != keep:
                setattr(module, name, make(child))
