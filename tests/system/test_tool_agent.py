"""The example agent: two real functions, called under a schema; every call parses."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from coordinator.client import Client
from deploy.demo_model import DEMO_MODEL
from deploy.local import local_stack
from deploy.up import UNTRAINED, stack_options
from tests.coordinator_fakes import V
from tests.system.stack import stack
from tests.test_tools import byte_target

ROOT = Path(__file__).parent.parent.parent
NUM_QUESTIONS = 10


def tool_agent() -> ModuleType:
    path = ROOT / "docs" / "examples" / "tool_agent.py"
    spec = importlib.util.spec_from_file_location("tool_agent", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tool_agent"] = module
    spec.loader.exec_module(module)
    return module


def run_example(address: str, files: list[Path]) -> list[Any]:
    agent = tool_agent()
    with Client(address) as client:
        steps: list[Any] = agent.run(client, files, NUM_QUESTIONS)
    assert len(steps) == NUM_QUESTIONS
    names = {path.name: path for path in files}
    for step in steps:
        arguments = {**step.arguments, "path": names[step.arguments["path"]]}
        assert step.result == agent.FUNCTIONS[step.name](**arguments)
    return steps


async def test_every_call_parses_even_of_a_random_model(tmp_path: Path) -> None:
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path in files:
        path.write_text(f"the text\nof {path.name}\n" * 3)
    table = torch.randn(V, V, generator=torch.Generator().manual_seed(3))
    async with stack(byte_target(table, max_context=4096), None) as system:
        await asyncio.to_thread(run_example, system.coordinator.address, files)


@pytest.mark.prove
@pytest.mark.timeout(1800)
async def test_ten_of_ten_calls_of_smollm2_parse() -> None:
    options = stack_options(DEMO_MODEL, UNTRAINED, target_threads=1, draft_threads=1, coordinator_flags=())
    files = [ROOT / "README.md", ROOT / "pyproject.toml", ROOT / "Makefile"]
    async with local_stack(options, print) as running:
        steps = await running.guard(asyncio.to_thread(run_example, running.coordinator.address, files))
    assert {step.name for step in steps} == {"count_lines", "find_word"}
