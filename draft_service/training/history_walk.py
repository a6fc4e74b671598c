"""Walking greedy texts with a history-keeping net: it gets every stored row up to the pivot.

N texts walked at a time, L rows, K proposals, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from draft_service.training.forward import Frozen
from draft_service.training.history_net import Cache, HistoryNet
from draft_service.training.walk import Walk, WalkOptions, begin
from protos.shards import CapturedSequence


class HistoryWalker:
    """A net with what it needs of the target.

    Args:
        net: on the device to compute on.
        frozen: embedding, and the LM head's rows of the drafter's vocabulary.
        token_ids: [V_d] the target's id of each logit.
    """

    def __init__(self, net: HistoryNet, frozen: Frozen, token_ids: torch.Tensor) -> None:
        self.net = net
        self._frozen = frozen
        self._token_ids = token_ids

    @torch.inference_mode()
    def walk_all(
        self, sequences: Sequence[CapturedSequence], options: WalkOptions, batch: int = 16
    ) -> Iterator[Walk]:
        """Walks texts to their ends; those of similar length together, since rows are padded."""
        ordered = sorted(sequences, key=lambda one: len(one.features))
        for start in range(0, len(ordered), batch):
            yield from self._walk(ordered[start : start + batch], options)

    def _walk(self, sequences: Sequence[CapturedSequence], options: WalkOptions) -> list[Walk]:
        walks = [begin(sequence, options) for sequence in sequences]
        caches, positions = self._remember(sequences, options)
        while True:
            active = [row for row, walk in enumerate(walks) if walk.asked() >= 1]
            if not active:
                return walks
            # A batch gives what each text alone gives: only equal blocks go together.
            asked = {row: walks[row].asked() for row in active}
            for k in sorted(set(asked.values())):
                self._round([row for row in active if asked[row] == k], walks, caches, positions)

    def _round(
        self, rows: list[int], walks: list[Walk], caches: list[Cache], positions: torch.Tensor
    ) -> None:
        chosen = [walks[row] for row in rows]
        anchors = torch.tensor([walk.position for walk in chosen])
        tokens = torch.tensor([int(walk.sequence.token_ids[walk.position]) for walk in chosen])
        own = [Cache(one.keys[rows], one.values[rows]) for one in caches]
        visible = positions[rows] < anchors[:, None]
        proposed = self.propose(tokens, anchors, own, visible, chosen[0].asked())
        for walk, found in zip(chosen, proposed.tolist(), strict=True):
            walk.take(tuple(found))

    def _remember(
        self, sequences: Sequence[CapturedSequence], options: WalkOptions
    ) -> tuple[list[Cache], torch.Tensor]:
        """Caches of all rows, and their positions [N, L]; padding lies beyond every anchor."""
        lengths = [len(one.features) for one in sequences]
        most = max(lengths)
        layers = list(options.layers) or list(range(sequences[0].features.shape[1]))
        features = torch.zeros(len(sequences), most, len(layers), sequences[0].features.shape[2])
        beyond = torch.iinfo(torch.int64).max
        positions = torch.full((len(sequences), most), beyond)
        for row, (one, length) in enumerate(zip(sequences, lengths, strict=True)):
            features[row, :length] = one.features[:, layers].to(torch.float32)
            positions[row, :length] = torch.arange(one.first_position, one.first_position + length)
        return self.net.caches(features, positions.clamp_max(1 << 20)), positions

    @torch.inference_mode()
    def propose(
        self,
        tokens: torch.Tensor,  # [N] the anchors' ids
        anchors: torch.Tensor,  # [N] absolute positions
        caches: list[Cache],
        visible: torch.Tensor,  # [N, L]
        k: int,
    ) -> torch.Tensor:
        """Greedy proposals [N, k] as target ids; a block always has all of its rows."""
        config = self.net.config
        rows = k if config.variable_block else config.num_proposals
        ids = torch.cat([tokens[:, None], tokens.new_full((len(tokens), rows), config.mask_token_id)], dim=1)
        states = self.net.states(self._frozen.embedding[ids], anchors, caches, visible)  # [N, rows, D]
        if self.net.markov is None:
            logits = self.net.logits(states[:, :k], ids[:, :k], self._frozen.lm_head)
            return self._token_ids[logits.argmax(dim=-1)]
        # All positions read the LM head at once; the bias follows the own proposals.
        base = states[:, :k] @ self._frozen.lm_head.T  # [N, k, V_d]
        found, previous = [], tokens
        for step in range(k):
            previous = self._token_ids[(base[:, step] + self.net.markov(previous)).argmax(dim=-1)]
            found.append(previous)
        return torch.stack(found, dim=1)
