"""Which target layers a drafter reads (L layers, m of them tapped); target and drafter must agree."""

from __future__ import annotations


def build_target_layer_ids(num_layers: int, num_tapped: int) -> tuple[int, ...]:
    """The released rule: `{0, L-1}` and `1 + round(i (L-3)/(m-3))`, rounding half to even.

    Raises:
        ValueError: fewer than 2 layers asked for, or no m distinct ones exist.
    """
    if num_tapped < 2:
        raise ValueError(f"at least 2 tapped layers are needed, {num_tapped} asked for")
    if num_tapped == 2:
        inner = []
    elif num_tapped == 3:
        inner = [1 + round((num_layers - 3) / 2)]
    else:
        inner = [1 + round(i * (num_layers - 3) / (num_tapped - 3)) for i in range(num_tapped - 2)]
    ids = tuple(sorted({0, num_layers - 1, *inner}))
    if len(ids) != num_tapped or ids[0] < 0:
        raise ValueError(f"a target of {num_layers} layers has no {num_tapped} distinct layers to tap")
    return ids
