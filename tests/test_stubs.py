"""The committed stubs are what the schema generates."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCHEMAS = sorted((ROOT / "protos").glob("*.proto"))
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stubs")
    outputs = [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    names = [f"protos/{schema.name}" for schema in SCHEMAS]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I.", *outputs, *names], cwd=ROOT, check=True)
    return out / "protos"


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.stem)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_stubs_are_up_to_date(generated: Path, schema: Path, suffix: str) -> None:
    name = schema.stem + suffix
    assert (ROOT / "protos" / name).read_text() == (generated / name).read_text(), (
        "run: python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. protos/*.proto"
    )


def test_no_stub_without_a_schema() -> None:
    expected = {schema.stem + suffix for schema in SCHEMAS for suffix in SUFFIXES}
    assert {path.name for path in (ROOT / "protos").glob("*_pb2*")} == expected
