"""Turns of an agent on real services: the second one computes what is new, and less than a page more."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import sys
import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from coordinator.client import Answer, AsyncClient, Client
from coordinator.tokenizer import tokenizer_hash
from deploy.demo_model import DEMO_MODEL
from deploy.local import local_stack
from deploy.up import UNTRAINED, stack_options
from protos import coordinator_pb2
from target_service.build import BuiltTarget, assemble
from target_service.config import TargetConfig
from target_service.loader import from_model
from tests.coordinator_fakes import CHAT_TEMPLATE
from tests.fakes import GOLDEN, tiny_target
from tests.system.stack import stack

ROOT = Path(__file__).parent.parent.parent
PAGE = 16
VOCAB = 300


@lru_cache
def tokenizer_files() -> dict[str, bytes]:
    """Bytes and many merges: what a random model writes hardly ever tokenises back to its own ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(a, b) for a in "abcdefg" for b in "tuvwx"]
    vocab = {token: i for i, token in enumerate([*alphabet, *(a + b for a, b in pairs)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|start|>", special=True), AddedToken("<|end|>", special=True)])
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "tokenizer.json"
        tokenizer.save(str(path))
        content = path.read_bytes()
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    return {
        "tokenizer.json": content,
        "tokenizer_config.json": json.dumps(config).encode(),
        "chat_template.jinja": CHAT_TEMPLATE.encode(),
    }


def talking_target() -> BuiltTarget:
    """A tiny real model with a tokenizer and a chat template."""
    torch.set_num_threads(1)
    config = TargetConfig.load(None, target="tiny", num_pages=256, num_tapped_layers=3)
    built = assemble(from_model(tiny_target("llama", vocab=VOCAB), GOLDEN / "target_qwen3"), config)
    files = tokenizer_files()
    description = replace(built.description, tokenizer_hash=tokenizer_hash(files), eos_ids=())
    return replace(built, description=description, tokenizer_files=files)


def asking(messages: list[dict[str, str]], session_id: str, **fields: Any) -> coordinator_pb2.GenerateRequest:
    values: dict[str, Any] = {"temperature": 0.0, "max_tokens": 21, "ignore_eos": True}
    return coordinator_pb2.GenerateRequest(messages=messages, session_id=session_id, **{**values, **fields})


async def converse(client: AsyncClient, session_id: str, num_turns: int, **fields: Any) -> list[Answer]:
    messages: list[dict[str, str]] = []
    answers = []
    for number in range(num_turns):
        messages.append({"role": "user", "content": f"cat {number} ate a bat " * 2})
        answers.append(await client.complete(asking(messages, session_id, **fields)))
        messages.append({"role": "assistant", "content": answers[-1].text})
    return answers


@pytest.mark.parametrize("fields", [{}, {"temperature": 1.0, "seed": 3}, {"max_tokens": 40}])
async def test_a_later_turn_computes_less_than_a_page_and_what_is_new(fields: dict[str, Any]) -> None:
    async with (
        stack(talking_target(), None) as system,
        AsyncClient(system.coordinator.address) as client,
    ):
        answers = await converse(client, "s", 4, **fields)
        forgetful = await converse(client, "", 4, **fields)
    for before, after in itertools.pairwise(answers):
        known = before.num_prompt_tokens + len(before.token_ids)
        assert after.prompt_token_ids[before.num_prompt_tokens : known] == before.token_ids
        computed = after.num_prompt_tokens - after.usage.cached_tokens
        # The answer's last token was decided, not computed: it is new too.
        assert computed < PAGE + after.num_prompt_tokens - (known - 1)
    # Without a session the text is tokenised again, to other ids, and the answer is computed again.
    last, lost = answers[-1].usage, forgetful[-1].usage
    assert lost.prompt_tokens != last.prompt_tokens
    assert last.prompt_tokens - last.cached_tokens < lost.prompt_tokens - lost.cached_tokens


async def test_a_turn_resumed_where_the_session_is_unknown_is_the_same_text() -> None:
    async with stack(talking_target(), None) as system, AsyncClient(system.coordinator.address) as client:
        answers = await converse(client, "s", 2, temperature=1.0, seed=5)
        messages = [
            {"role": "user", "content": "cat 0 ate a bat " * 2},
            {"role": "assistant", "content": answers[0].text},
            {"role": "user", "content": "cat 1 ate a bat " * 2},
        ]
        resume = coordinator_pb2.Resume(
            token_ids=answers[1].token_ids[:9],
            sampling_key=answers[1].sampling_key,
            prompt_token_ids=answers[1].prompt_token_ids,
        )
        rest = await client.complete(asking(messages, "unknown", temperature=1.0, resume=resume))
        assert answers[1].token_ids[:9] + rest.token_ids == answers[1].token_ids


def agent_loop() -> ModuleType:
    path = ROOT / "docs" / "examples" / "agent_loop.py"
    spec = importlib.util.spec_from_file_location("agent_loop", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["agent_loop"] = module
    spec.loader.exec_module(module)
    return module


def run_example(address: str, files: list[Path], max_tokens: int) -> list[Any]:
    lines: list[str] = []
    with Client(address) as client:
        reports = agent_loop().run(client, files, max_tokens, lines.append)
    print("\n".join(lines))
    assert len(reports) == len(files) + 1
    for report in reports[1:]:
        assert report.computed_tokens < PAGE + report.new_tokens
    return reports


async def test_the_example_runs(tmp_path: Path) -> None:
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path in files:
        path.write_text(f"the text of {path.name} " * 3)
    async with stack(talking_target(), None) as system:
        await asyncio.to_thread(run_example, system.coordinator.address, files, 20)


@pytest.mark.prove
@pytest.mark.timeout(1200)
async def test_the_example_on_smollm2_over_real_files() -> None:
    options = stack_options(DEMO_MODEL, UNTRAINED, target_threads=1, draft_threads=1, coordinator_flags=())
    files = [ROOT / "README.md", ROOT / "pyproject.toml", ROOT / "Makefile"]
    async with local_stack(options, print) as running:
        work = asyncio.to_thread(run_example, running.coordinator.address, files, 50)
        reports = await running.guard(work)
    assert all(report.cached_tokens > 0 for report in reports[1:])
