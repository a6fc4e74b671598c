"""An untrained DLite drafter for any target: it shows the whole path of a round, and nothing else.

Its proposals are noise, so its accept length is about 1. Everything that shows it says so.
"""

from __future__ import annotations

from pathlib import Path

from deploy.model_cache import prepared, sha256_of
from protos.errors import ContractMismatch

LABEL = "untrained, accept length about 1"
_RECIPE = "v1"
_MOST_TAPPED = 8
# SmolLM2 has no mask token; an id that text hardly ever holds does as well.
_MASK_TOKEN_ID = 16


def untrained_drafter(target: Path) -> Path:
    """A checkpoint folder for the target, written into the user's cache at the first use.

    Raises:
        ContractMismatch: the target's config lacks a size that a drafter needs.
    """
    name = f"untrained-{sha256_of(target / 'config.json')[:16]}-{_RECIPE}"
    return prepared(name, lambda folder: _write(folder, target))


def _write(folder: Path, target: Path) -> None:
    from draft_service.loader import read_target_config
    from draft_service.untrained import UntrainedOptions, save_untrained

    num_layers = read_target_config(target).get("num_hidden_layers")
    if not isinstance(num_layers, int) or num_layers < 2:
        raise ContractMismatch(f"a drafter needs two target layers, {target} has {num_layers!r}")
    num_tapped = min(_MOST_TAPPED, num_layers)
    save_untrained(folder, target, UntrainedOptions(mask_token_id=_MASK_TOKEN_ID, num_tapped=num_tapped))
