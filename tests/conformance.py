"""What the conformance suite runs: a small vocabulary with text, a table target, every parameter.

B = 8 rows, K = 7 proposals. The scripted drafter's first j proposals are the plain text's own tokens
and the rest are wrong, so every place of a block is accepted, corrected and bonus at some (v, j).
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from coordinator import tokenizer as coordinator_tokenizer
from coordinator.answer import Answer, ChoiceAnswer
from coordinator.bounds import limits_of
from coordinator.planning import PlanDefaults
from coordinator.request import RequestContext, parse_request
from coordinator.tokenizer import load_tokenizer
from deploy.in_process import InProcess
from draft_service.proposal import DraftItem, DraftLaw, DraftMode, DraftResult, Refusal
from protos import coordinator_pb2
from protos.common_pb2 import PositionLogprobs, SamplingParams
from protos.errors import DliteError
from target_service.build import BuiltTarget
from target_service.grammar import GrammarFactory
from target_service.grammars import Grammars
from target_service.wire import describe_to
from tests.fakes import TableDrafter, table_built

BLOCK = 8
MAX_TOKENS = 20
SEED = 7
# Float32 log-probabilities of equal rows may differ by rounding in another place of the batch.
LOGPROB_TOLERANCE = 1e-4
_CHARACTERS = [*'abcdefghij0123456789{}[]":,.-', "Ġ"]
_MERGES = [("a", "b"), ("c", "d"), ("Ġ", "a"), ("ab", "cd"), ('"', ":"), ("{", '"')]
EOS_TEXT = "<|end|>"


def make_tokenizer() -> Tokenizer:
    """One token for each of 30 characters, six longer ones, and EOS."""
    pieces = [*_CHARACTERS, *("".join(pair) for pair in _MERGES)]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=_MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(EOS_TEXT, special=True)])
    return tokenizer


@lru_cache
def tokenizer_files() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "tokenizer.json"
        make_tokenizer().save(str(path))
        content = path.read_bytes()
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS_TEXT}
    return {"tokenizer.json": content, "tokenizer_config.json": json.dumps(config).encode()}


@lru_cache
def tokenizer() -> coordinator_tokenizer.Tokenizer:
    files = tokenizer_files()
    return load_tokenizer(files, coordinator_tokenizer.tokenizer_hash(files))


V = make_tokenizer().get_vocab_size()
EOS = V - 1


def encode(text: str) -> list[int]:
    return tokenizer().encode_rendered(text)


def make_table(seed: int, scale: float) -> torch.Tensor:
    """[V, V] logits given the last token."""
    return torch.randn(V, V, generator=torch.Generator().manual_seed(seed)) * scale


TABLE = make_table(35, 2.0)
TABLE[:, EOS] = 2.5
DRAFT_TABLE = TABLE + make_table(2, 1.0)
# Greedy text of the first ends early, of the second it repeats itself; coupled the other way about.
PROMPTS = (encode('ab cd{"a":1,'), encode("ab.ab.ba"))


def grammar_factory(no_forcing: bool = False) -> GrammarFactory:
    return GrammarFactory(tokenizer_files()["tokenizer.json"], V, frozenset({EOS}), no_forcing)


def target(**limits: object) -> BuiltTarget:
    values: dict[str, object] = {"num_pages": 1024, "eos_ids": frozenset({EOS}), "prefill_rows": 512}
    files = tokenizer_files()
    built = table_built(TABLE, Grammars(grammar_factory()), **{**values, **limits})
    description = replace(built.description, tokenizer_hash=coordinator_tokenizer.tokenizer_hash(files))
    return replace(built, description=description, tokenizer_files=files)


# Bounded, so that a text of MAX_TOKENS may be whole; `abcd` is forced.
SCHEMA = {
    "type": "object",
    "properties": {"abcd": {"type": "integer", "minimum": 0, "maximum": 999}},
    "required": ["abcd"],
    "additionalProperties": False,
}

# Each parameter by name, with values under which it changes texts of this target.
PARAMETERS: dict[str, dict[str, Any]] = {
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.6},
    "min_p": {"min_p": 0.2},
    "temperature": {"temperature": 1.7},
    "presence_penalty": {"presence_penalty": 1.5},
    "frequency_penalty": {"frequency_penalty": 1.2},
    "repetition_penalty": {"repetition_penalty": 1.6},
    "logit_bias": {"logit_bias": {3: 4.0, 5: -100.0, 11: 2.5}},
    "allowed_token_ids": {"allowed_token_ids": [*range(0, V - 1, 2), EOS]},
    "bad_words": {"bad_words": ["a", "bc", "1", "e{"]},
    "min_tokens": {"min_tokens": 12},
    "ignore_eos": {"ignore_eos": True},
    "stop_token_ids": {"stop_token_ids": [17, 33]},
    "stop": {"stop": ["b", "1h", "gj"]},
    "max_tokens": {"max_tokens": 13},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "prompt_logprobs": {"prompt_logprobs": True},
    "n": {"n": 3},
    "json_schema": {"response_format": {"json_schema": json.dumps(SCHEMA)}},
    "regex": {"response_format": {"regex": "[ab]{2,6}(cd|ij)+"}},
    "choice": {"response_format": {"choice": {"values": ["abc", "abj", "dad"]}}},
    "grammar": {"response_format": {"grammar": 'start: "{" (item ",")* item "}"\nitem: /[0-9]{1,3}/'}},
}
# They shape the draw, which greedy has not.
FILTERS = ("top_k", "top_p", "min_p", "temperature")
MODES = {"greedy": 0.0, "coupled": 1.0}


def request(
    name: str, fields: Mapping[str, Any], temperature: float, v: int, prompt: int = 0
) -> coordinator_pb2.GenerateRequest:
    """v = 0 is plain decoding; `prompt` numbers PROMPTS."""
    values = {
        "temperature": temperature,
        "max_tokens": MAX_TOKENS,
        "seed": SEED,
        "token_ids": PROMPTS[prompt],
        **fields,
    }
    if temperature == 0.0:
        values["temperature"] = 0.0
    speculation = coordinator_pb2.Speculation(source=coordinator_pb2.PROPOSAL_SOURCE_DRAFTER)
    if v == 0:
        speculation.mode = coordinator_pb2.SPECULATION_MODE_OFF
    else:
        speculation.num_draft_tokens, speculation.verify_block_size = max(v - 1, 1), v
    return coordinator_pb2.GenerateRequest(request_id=name, speculation=speculation, **values)


def sent_params(message: coordinator_pb2.GenerateRequest) -> SamplingParams:
    """What the target gets to see of a request."""
    defaults = PlanDefaults(BLOCK - 1, BLOCK, coordinator_pb2.PROPOSAL_SOURCE_AUTO)
    limits = limits_of(describe_to(target().description))
    return parse_request(message, "id", RequestContext(limits, tokenizer(), defaults, bytes)).params


@dataclass(eq=False)
class Outcome:
    """An answer, and the error that ended it, if one did."""

    answer: Answer = field(default_factory=Answer)
    error: str = ""


async def generate(system: InProcess, message: coordinator_pb2.GenerateRequest) -> Outcome:
    outcome = Outcome()
    try:
        generation = await system.coordinator.admit(message)
        outlet = generation.attach()
        async for response in outlet.messages():
            outcome.answer.add(response)
    except DliteError as error:
        outcome.error = str(error)
    return outcome


async def generate_all(
    system: InProcess, messages: Sequence[coordinator_pb2.GenerateRequest]
) -> list[Outcome]:
    return list(await asyncio.gather(*[generate(system, message) for message in messages]))


class ScriptedDrafter(TableDrafter):
    """First `num_right[request]` proposals are the recorded text, then wrong ones."""

    def __init__(self) -> None:
        super().__init__(DRAFT_TABLE, BLOCK - 1)
        self.texts: dict[str, list[int]] = {}
        self.num_right: dict[str, int] = {}

    def propose(self, items: Sequence[DraftItem]) -> list[DraftResult]:
        return [self._scripted(item) for item in items]

    def _scripted(self, item: DraftItem) -> DraftResult:
        text = self.texts[item.request_id]
        if list(item.recent_tokens) != text[item.position : item.position + 1]:
            return DraftResult(refusal=Refusal("recent_tokens", "the text has left the recording"))
        tokens = []
        for j in range(item.k):
            place = item.position + 1 + j
            right = text[place] if place < len(text) else EOS
            tokens.append(right if j < self.num_right[item.request_id] else (right + 1 + j % 3) % V)
        if item.mode is DraftMode.REJECTION:
            return DraftResult(tuple(tokens), laws=tuple(DraftLaw((token,), (1.0,)) for token in tokens))
        return DraftResult(tuple(tokens), (0.5,) * item.k)

    def record(self, message: coordinator_pb2.GenerateRequest, reference: Outcome, j: int) -> None:
        """Takes in the plain text of a request (all its choices)."""
        for index, choice in enumerate(reference.answer.choices):
            name = f"{message.request_id}\x1f{index}" if index else message.request_id
            self.texts[name] = [*message.token_ids, *choice.token_ids]
            self.num_right[name] = j


class GatedDrafter(ScriptedDrafter):
    """Holds its n-th answer until the gate opens."""

    def __init__(self, hold_at: int) -> None:
        super().__init__()
        self.reached, self.gate = threading.Event(), threading.Event()
        self._left = hold_at

    def propose(self, items: Sequence[DraftItem]) -> list[DraftResult]:
        self._left -= len(items)
        if self._left <= 0 and not self.reached.is_set():
            self.reached.set()
            assert self.gate.wait(60), "nobody opened the gate"
        return super().propose(items)


def differences(found: Outcome, expected: Outcome) -> list[str]:
    """What distinguishes an answer from the plain one: ids, text, ends, usage, log-probabilities."""
    wrong = [] if found.error == expected.error else [f"error {found.error!r}, plain {expected.error!r}"]
    if len(found.answer.choices) != len(expected.answer.choices):
        return [*wrong, "another number of choices"]
    wrong += _logprob_differences("prompt", found.answer.prompt_logprobs, expected.answer.prompt_logprobs)
    for index, (one, other) in enumerate(zip(found.answer.choices, expected.answer.choices, strict=True)):
        for name in ("token_ids", "text"):
            if getattr(one, name) != getattr(other, name):
                wrong.append(f"choice {index} {name}: {getattr(one, name)}, plain {getattr(other, name)}")
        for name in ("finish_reason", "stop_string", "stop_token_id"):
            if getattr(one.finished, name) != getattr(other.finished, name):
                wrong.append(f"choice {index} {name}: {getattr(one.finished, name)!r}")
        wrong += _usage_differences(one, other)
        wrong += _logprob_differences(f"choice {index}", one.logprobs, other.logprobs)
    return wrong


def _usage_differences(one: ChoiceAnswer, other: ChoiceAnswer) -> list[str]:
    wrong = []
    if one.finished.usage.completion_tokens != len(one.token_ids):
        wrong.append("completion_tokens is not the number of ids")
    if one.logprobs and len(one.logprobs) != len(one.token_ids):
        wrong.append(f"{len(one.logprobs)} log-probabilities of {len(one.token_ids)} ids")
    if bool(one.logprobs) != bool(other.logprobs):
        wrong.append("log-probabilities are there in one answer only")
    return wrong


def _logprob_differences(
    what: str, found: Sequence[PositionLogprobs], expected: Sequence[PositionLogprobs]
) -> list[str]:
    if len(found) != len(expected):
        return [f"{what}: {len(found)} log-probabilities, plain {len(expected)}"]
    wrong = []
    for place, (one, other) in enumerate(zip(found, expected, strict=True)):
        pairs = [(one.chosen, other.chosen), *zip(one.top, other.top, strict=True)]
        far = [a.logprob - b.logprob for a, b in pairs if abs(a.logprob - b.logprob) > LOGPROB_TOLERANCE]
        if far or any(a.token_id != b.token_id for a, b in pairs):
            wrong.append(f"{what} log-probabilities at {place} differ by {far}")
    return wrong
