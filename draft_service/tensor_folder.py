"""A folder of safetensors files, single or sharded, read one tensor at a time."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from protos.errors import ContractMismatch, InvalidRequest

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class TensorFolder:
    """The tensors of `model.safetensors`, or of the files that its index names.

    Raises:
        InvalidRequest: the folder has neither.
        ContractMismatch: a file is damaged or the index does not fit it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file_of = self._locate()

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(self._file_of)

    @property
    def files(self) -> list[Path]:
        return sorted({self._path / name for name in self._file_of.values()})

    def load(self, key: str) -> torch.Tensor:
        """One tensor as stored.

        Raises:
            ContractMismatch: there is no such tensor, or its file is damaged.
        """
        if key not in self._file_of:
            raise ContractMismatch(f"{self._path} has no tensor {key}", field=key)
        file = self._path / self._file_of[key]
        try:
            with safe_open(file, framework="pt") as tensors:
                tensor: torch.Tensor = tensors.get_tensor(key)
        except (OSError, SafetensorError) as error:
            raise ContractMismatch(f"cannot read {key} from {file}: {error}", field=key) from error
        return tensor

    def _locate(self) -> dict[str, str]:
        index, single = self._path / INDEX, self._path / SINGLE
        if index.exists():
            try:
                weight_map = json.loads(index.read_text())["weight_map"]
                return {str(key): str(name) for key, name in weight_map.items()}
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ContractMismatch(f"{index} is damaged", field=INDEX) from error
        if not single.exists():
            raise InvalidRequest(f"{self._path} has neither {SINGLE} nor {INDEX}", field=str(self._path))
        try:
            with safe_open(single, framework="pt") as tensors:
                return dict.fromkeys(tensors.keys(), SINGLE)
        except (OSError, SafetensorError) as error:
            raise ContractMismatch(f"{single} is damaged: {error}", field=SINGLE) from error
