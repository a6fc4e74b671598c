"""Test doubles that speak the real protocols: tiny random targets and a table target.

Also the shortest way to drive an engine without a thread or a wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from draft_service.drafter import collect, rule_of
from draft_service.proposal import DraftDescription, DraftItem, DraftResult
from draft_service.sampling import Draw, draw
from draft_service.validation import check_round
from target_service import commands as c
from target_service.build import BuiltTarget, TargetDescription
from target_service.engine import Engine, StepOutput
from target_service.grammars import Grammars
from target_service.limits import EngineLimits
from target_service.model import TargetModel
from target_service.packing import PackedStep
from target_service.rejection import TruncatedLaw

GOLDEN = Path(__file__).parent / "golden"
KEY = bytes(range(16))
ARCHITECTURES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def tiny_target(
    architecture: str = "llama", *, tied: bool = False, dtype: torch.dtype = torch.float64, vocab: int = 61
) -> PreTrainedModel:
    """A random model of 3 layers; weights large enough that argmax margins are far from rounding."""
    config_type, model_type = ARCHITECTURES[architecture]
    config = config_type(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    state = torch.random.get_rng_state()
    torch.manual_seed(7)
    model = model_type(config).to(dtype).eval().requires_grad_(False)
    torch.random.set_rng_state(state)
    model.generation_config.eos_token_id = None
    return model


@dataclass(eq=False)
class TableTarget:
    """Logits are a row of a table chosen by the last token; no network, no KV.

    Features of a row are its token id and position, so that tests can tell rows apart.
    """

    table: torch.Tensor  # [V, V]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def vocab_size(self) -> int:
        return int(self.table.shape[0])

    def copy_page(self, source: int, destination: int) -> None:
        """No KV, nothing to copy."""

    def forward(self, step: PackedStep) -> StepOutput:
        tokens = step.token_ids[step.decision_rows]
        positions = step.positions[step.decision_rows]
        features = torch.stack([tokens, positions], dim=1).to(torch.float32)[:, None, :]  # [R, 1, 2]
        return StepOutput(self.table[tokens], features)


def limits_for(**changes: object) -> EngineLimits:
    """Engine limits of the tests; keyword arguments replace fields."""
    values: dict[str, object] = {
        "page_size": 16,
        "num_pages": 64,
        "prefill_rows": 64,
        "max_context": 512,
        "max_verify_block_size": 16,
        "eos_ids": frozenset(),
    }
    return EngineLimits(**{**values, **changes})  # type: ignore[arg-type]


def table_engine(table: torch.Tensor, grammars: Grammars | None = None, **changes: object) -> Engine:
    return Engine(TableTarget(table), limits_for(**changes), grammars=grammars)


def table_built(table: torch.Tensor, grammars: Grammars | None = None, **changes: object) -> BuiltTarget:
    """A table target with the description a service gives."""
    engine = table_engine(table, grammars, **changes)
    limits, vocab_size = engine.limits, int(table.shape[0])
    description = TargetDescription(
        instance_id="table",
        model="table",
        fingerprint="table",
        embedding_hash="",
        tokenizer_hash="",
        vocab_size=vocab_size,
        hidden_size=2,
        num_layers=1,
        tapped_layers=(0,),
        dtype="float32",
        attention_kernel="none",
        linear_kernel="none",
        max_context=limits.max_context,
        page_size=limits.page_size,
        num_pages=limits.num_pages,
        max_verify_block_size=limits.max_verify_block_size,
        eos_ids=tuple(sorted(limits.eos_ids)),
        temperature=None,
        top_p=None,
        top_k=None,
        threads=1,
    )
    return BuiltTarget(engine, description, {})


def tiny_engine(model: PreTrainedModel, layers: Sequence[int] = (0, 1, 2), **changes: object) -> Engine:
    """An engine over a transformers model (which keeps our attention afterwards)."""
    limits = limits_for(**changes)
    return Engine(TargetModel(model, layers, limits.num_pages, limits.page_size), limits)


class TableDrafter:
    """Proposals from a table of draft logits [V, V], each drawn given the one before it."""

    def __init__(self, table: torch.Tensor, num_proposals: int) -> None:
        self.table = table
        self.description = DraftDescription(
            drafter_kind="table",
            model="table",
            fingerprint="",
            embedding_hash="",
            vocab_size=int(table.shape[0]),
            hidden_size=2,
            num_target_layers=1,
            tapped_layers=(0,),
            block_size=num_proposals + 1,
            anchor_group_size=1,
            dtype="",
        )

    def self_test(self) -> None:
        """Nothing to test."""

    def propose(self, items: Sequence[DraftItem]) -> list[DraftResult]:
        refusals = [check_round(item, self.description.block_size - 1) for item in items]
        results = [DraftResult(refusal=refusal) for refusal in refusals]
        good = sorted((i for i, r in enumerate(refusals) if r is None), key=lambda i: -items[i].k)
        chosen = [items[i] for i in good]
        draws: list[Draw] = []
        tokens = torch.tensor([item.recent_tokens[-1] for item in chosen], dtype=torch.int64)
        for step in range(max((item.k for item in chosen), default=0)):
            active = [item for item in chosen if item.k > step]
            rules = [rule_of(item, step) for item in active]
            draws.append(draw(self.table[tokens[: len(active)]], rules, torch.arange(len(self.table))))
            tokens = draws[-1].tokens
        for i, result in zip(good, collect(chosen, draws), strict=True):
            results[i] = result
        return results


class Driver:
    """Sends commands to an engine and steps it until they are answered. One request each.

    Keeps the round, epoch and committed length a coordinator would keep.
    """

    def __init__(self, engine: Engine, name: str = "r", epoch: int = 1) -> None:
        self.engine = engine
        self.key = c.RequestKey("test", name)
        self.epoch = epoch
        self.round = -1
        self.tokens: list[int] = []
        self.events: list[c.Event] = []
        self.finish_reason: c.FinishReason | None = None
        self.features: torch.Tensor | None = None
        self.num_prompt = 0

    @property
    def committed_length(self) -> int:
        return len(self.tokens)

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.num_prompt :]

    def address(self) -> c.Address:
        return c.Address(self.key, self.epoch, self.round)

    def open_command(self, prompt: Sequence[int], params: c.SamplingParams) -> c.Open:
        self.round, self.tokens, self.num_prompt = 0, list(prompt), len(prompt)
        return c.Open(self.address(), tuple(prompt), len(prompt), KEY, params, want_features=True)

    def open(self, prompt: Sequence[int], params: c.SamplingParams) -> c.Verdict:
        return self.round_trip(self.open_command(prompt, params))

    def verify_command(
        self, proposals: Sequence[int], cohort: int = 0, laws: Sequence[TruncatedLaw] = ()
    ) -> c.Verify:
        self.round += 1
        return c.Verify(self.address(), self.committed_length, tuple(proposals), cohort, True, tuple(laws))

    def verify(self, proposals: Sequence[int], laws: Sequence[TruncatedLaw] = ()) -> c.Verdict:
        return self.round_trip(self.verify_command(proposals, laws=laws))

    def run(self, max_tokens: int) -> c.Verdict:
        self.round += 1
        return self.round_trip(c.Run(self.address(), self.committed_length, max_tokens, True))

    def close(self, keep_length: int | None = None) -> None:
        """Closes the request; of its tokens stand all, or `keep_length`."""
        keep_length = self.committed_length if keep_length is None else keep_length
        self.engine.apply(c.Close(self.address(), keep_length))

    def round_trip(self, command: c.RoundCommand) -> c.Verdict:
        """Applies a round and steps until its last verdict."""
        self.take(self.engine.apply(command))
        for _ in range(10_000):
            verdict = self.last_verdict()
            if verdict is not None and verdict.address == command.address and verdict.done:
                return verdict
            self.take(self.engine.step())
            self.engine.requests.check_integrity()
        raise AssertionError("the round does not end")

    def last_verdict(self) -> c.Verdict | None:
        verdicts = [event for event in self.events if isinstance(event, c.Verdict)]
        return verdicts[-1] if verdicts else None

    def take(self, events: Sequence[c.Event]) -> None:
        """Commits what is addressed to this request."""
        for event in events:
            if isinstance(event, c.Progress) or event.address.key != self.key:
                continue
            self.events.append(event)
            if isinstance(event, c.Refused):
                raise AssertionError(f"refused: {event}")
            if isinstance(event, c.Features):
                self.features = event.tensor
            if isinstance(event, c.Verdict):
                assert event.committed_length - len(event.tokens) == self.committed_length
                self.tokens += event.tokens
                self.finish_reason = event.finish_reason


def plain_greedy(model: PreTrainedModel, prompt: Sequence[int], count: int) -> list[int]:
    """transformers' own `generate`, greedy, without any stop."""
    kernel = model.config._attn_implementation
    model.set_attn_implementation("sdpa")
    ids = torch.tensor([list(prompt)])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0
    )
    model.set_attn_implementation(kernel)
    return [int(token) for token in output[0, len(prompt) :]]


def params(max_tokens: int, temperature: float = 0.0, **changes: object) -> c.SamplingParams:
    return c.SamplingParams(temperature=temperature, max_tokens=max_tokens, **changes)  # type: ignore[arg-type]
