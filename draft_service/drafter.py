"""The DLite drafter: pivot features and the last tokens in, k proposals out; no state in between.

N items, m tapped layers, D width, G anchor group, K most proposals, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from draft_service.model import DraftModel
from draft_service.proposal import DraftDescription, DraftItem, DraftMode, DraftResult, Refusal
from draft_service.sampling import Draw, Rule, draw
from draft_service.validation import check_features, check_round, check_tokens
from protos.errors import ContractMismatch


class Drafter:
    """Batched and stateless; a batch gives what each item alone gives.

    Args:
        model: on the device to compute on.
        embedding: [V, D] float32, the target's, on the same device.
        token_ids: [V_d] the target's id of each logit, on the same device.
        description: what the service says about it.
        now_us: clock for the timings.
    """

    def __init__(
        self,
        model: DraftModel,
        embedding: torch.Tensor,
        token_ids: torch.Tensor,
        description: DraftDescription,
        now_us: Callable[[], int] = lambda: time.perf_counter_ns() // 1000,
    ) -> None:
        config = model.config
        wanted = (config.vocab_size, config.hidden_size)
        if tuple(embedding.shape) != wanted:
            raise ContractMismatch(
                f"the drafter was made for a target embedding {list(wanted)}, this target has "
                f"{list(embedding.shape)}: use the drafter's own target",
                field="vocab_size" if embedding.shape[0] != wanted[0] else "hidden_size",
            )
        self.description = description
        self._model = model
        self._config = config
        self._embedding = embedding
        self._token_ids = token_ids
        self._now_us = now_us

    @torch.inference_mode()
    def propose(self, items: Sequence[DraftItem]) -> list[DraftResult]:
        """One result for each item, in order; an item that does not fit is refused, naming the field."""
        refusals = [self._check(item) for item in items]
        results = [DraftResult(refusal=refusal) for refusal in refusals]
        good = [i for i, refusal in enumerate(refusals) if refusal is None]
        # The head works on the first n items at each step, so the longest come first.
        good.sort(key=lambda i: -items[i].k)
        if good:
            for i, result in zip(good, self._draft([items[i] for i in good]), strict=True):
                results[i] = result
        return results

    def self_test(self) -> None:
        """Drafts one whole block from fixed pseudo-random features.

        Raises:
            ContractMismatch: the round fails, or its law is not finite or the same for every token.
        """
        config = self._config
        shape = (len(config.target_layer_ids), config.hidden_size)
        features = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        tokens = tuple(range(config.vocab_size))[: config.anchor_group_size]
        item = DraftItem(
            "self-test",
            tokens,
            features,
            len(tokens),
            config.num_proposals,
            DraftMode.COUPLED,
            bytes(16),
            1.0,
        )
        (result,) = self.propose([item])
        if result.refusal is not None:
            raise ContractMismatch(
                f"the self-test round was refused: {result.refusal}", field=result.refusal.field
            )
        flat = 1.0 / config.num_logits
        if not all(0.0 < p <= 1.0 for p in result.probabilities) or (
            config.num_logits > 1 and all(abs(p - flat) < 1e-7 * flat for p in result.probabilities)
        ):
            raise ContractMismatch(
                f"the self-test round drew from a useless law: {result.probabilities}",
                field="sequential_head",
            )

    def _check(self, item: DraftItem) -> Refusal | None:
        config = self._config
        shape = (len(config.target_layer_ids), config.hidden_size)
        return (
            check_round(item, config.num_proposals)
            or check_tokens(item, config.anchor_group_size, config.vocab_size)
            or check_features(item.features, shape)
        )

    def _draft(self, items: Sequence[DraftItem]) -> list[DraftResult]:
        started = self._now_us()
        hidden, state = self.encode(items)
        draws: list[Draw] = []
        sample_us = 0

        def choose(step: int, logits: torch.Tensor) -> torch.Tensor:
            nonlocal sample_us
            begun = self._now_us()
            rules = [rule_of(item, step) for item in items[: len(logits)]]
            draws.append(draw(logits, rules, self._token_ids))
            sample_us += self._now_us() - begun
            return draws[-1].tokens

        num_active = [sum(item.k > step for item in items) for step in range(items[0].k)]
        anchors = torch.tensor([item.recent_tokens[-1] for item in items], device=hidden.device)
        self._model.sequential_head.propose(hidden, anchors, state, num_active, choose)
        results = collect(items, draws)
        forward_us = self._now_us() - started - sample_us
        return [replace(result, forward_us=forward_us, sample_us=sample_us) for result in results]

    def encode(self, items: Sequence[DraftItem]) -> tuple[torch.Tensor, torch.Tensor]:
        """The backbone's states [N, K', D] and the head's first state [N, R] of checked items.

        K' is K, or the largest k where the checkpoint was trained with a variable block: fewer mask
        rows would change every state of a checkpoint trained with the full block.
        """
        config, device = self._config, self._embedding.device
        num_tokens = [len(item.recent_tokens) for item in items]
        num_masks = [item.k if config.variable_block else config.num_proposals for item in items]
        width, depth = max(num_tokens), max(num_masks)
        # Left padding repeats the anchor's id; padded rows are never keys.
        rows = [
            [item.recent_tokens[-1]] * (width - len(item.recent_tokens))
            + [*item.recent_tokens, *[config.mask_token_id] * depth]
            for item in items
        ]
        ids = torch.tensor(rows, device=device)  # [N, T + K']
        features = torch.stack([item.features for item in items if item.features is not None]).to(device)
        context = self._model.fuse(features)
        hidden = self._model.hidden(context, self._embedding[ids], num_tokens, num_masks)
        has_before = torch.tensor([count > 1 for count in num_tokens], device=device)
        before_anchor = ids[:, width - 2] if width > 1 else ids[:, 0]
        return hidden, self._model.initial_state(before_anchor, has_before)


def rule_of(item: DraftItem, step: int) -> Rule:
    """How proposal step + 1 of an item is drawn."""
    position = item.position + step + 1
    if item.mode is DraftMode.COUPLED:
        return Rule.coupled(item.key, position, item.temperature)
    if item.mode is DraftMode.REJECTION:
        return Rule.rejection(item.key, position, item.temperature, item.max_law_entries)
    return Rule.greedy()


def collect(items: Sequence[DraftItem], draws: Sequence[Draw]) -> list[DraftResult]:
    """Results from the draws of each step; draw i has a row for each item with k > i."""
    tokens = [one.tokens.tolist() for one in draws]
    probabilities = [one.probabilities.tolist() for one in draws]
    results: list[DraftResult] = []
    for row, item in enumerate(items):
        steps = range(item.k)
        own = tuple(tokens[step][row] for step in steps)
        if item.mode is DraftMode.REJECTION:
            laws = tuple(law for step in steps if (law := draws[step].laws[row]) is not None)
            results.append(DraftResult(own, laws=laws))
        else:
            results.append(DraftResult(own, tuple(probabilities[step][row] for step in steps)))
    return results
