"""A model's folder may bring code: it runs only when that was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protos.errors import ContractMismatch
from target_service.loader import read_config

MODULE = """
from pathlib import Path
from transformers import LlamaConfig
Path(__file__).with_name("it_ran").touch()
Path({mark!r}).touch()
class OwnConfig(LlamaConfig):
    model_type = "own"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "model"
    folder.mkdir()
    config = {"model_type": "own", "auto_map": {"AutoConfig": "configuration_own.OwnConfig"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "configuration_own.py").write_text(MODULE.format(mark=str(tmp_path / "it_ran")))
    return folder


def test_code_of_a_model_does_not_run(folder: Path) -> None:
    with pytest.raises(ContractMismatch, match="trust_remote_code"):
        read_config(folder)
    assert not (folder.parent / "it_ran").exists()


def test_code_of_a_trusted_model_runs(folder: Path) -> None:
    assert read_config(folder, trust_remote_code=True).model_type == "own"
    assert (folder.parent / "it_ran").exists()
