"""The sequential head: a small recurrent net that makes each proposal depend on the one before.

    v = E_R[d_{i-1}];  [g; c] = W_s [s; v] + b_s;  s = sig(g) * s + (1 - sig(g)) * tanh(c)
    r = W_h [s; u_i] + b_h;  logits_i = W_o r

N items, K positions, D width, R rank, V target vocabulary, V_d drafter vocabulary.
`block_logits` (all positions at once, true previous tokens) and `propose` (one after the other, own
tokens) are the two forms of the same function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from draft_service.checkpoint import DraftCheckpointConfig

# (step 0.., logits [n, V_d] of the first n items) -> their tokens [n], as target ids.
Choose = Callable[[int, torch.Tensor], torch.Tensor]


class SequentialHead(nn.Module):
    """The only path from the backbone's states to logits; there is no base LM head."""

    def __init__(self, config: DraftCheckpointConfig) -> None:
        super().__init__()
        rank = config.rank
        self.prev_token_embedding = nn.Embedding(config.vocab_size, rank)
        self.output_proj = nn.Linear(rank, config.num_logits, bias=False)
        self.state_proj = nn.Linear(2 * rank, 2 * rank)
        self.state_hidden_mlp = nn.Linear(rank + config.hidden_size, rank)

    def zero_state(self, num_items: int) -> torch.Tensor:
        """The state [N, R] before any token."""
        return self.prev_token_embedding.weight.new_zeros(num_items, self.output_proj.in_features)

    def advance(self, state: torch.Tensor, prev_tokens: torch.Tensor) -> torch.Tensor:
        """The state [N, R] after seeing prev_tokens [N]."""
        return self._advance(state, self.prev_token_embedding(prev_tokens))

    def _advance(self, state: torch.Tensor, seen_token: torch.Tensor) -> torch.Tensor:
        seen = torch.cat([state, seen_token], dim=-1)  # [N, 2R]
        gate, candidate = self.state_proj(seen).chunk(2, dim=-1)
        keep = torch.sigmoid(gate)
        advanced: torch.Tensor = keep * state + (1 - keep) * torch.tanh(candidate)
        return advanced

    def logits(self, state: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [.., V_d] from states [.., R] and backbone states [.., D]."""
        out: torch.Tensor = self.output_proj(self.state_hidden_mlp(torch.cat([state, hidden], dim=-1)))
        return out

    def block_logits(
        self,
        hidden: torch.Tensor,  # [N, K, D]
        prev_tokens: torch.Tensor,  # [N, K]: the anchor, then the true tokens
        state: torch.Tensor,  # [N, R]
    ) -> torch.Tensor:
        """Logits [N, K, V_d] of every position with the true tokens before it."""
        states = []
        # One look-up for all positions: its gradient is as large as the table.
        for seen_token in self.prev_token_embedding(prev_tokens).unbind(dim=1):
            state = self._advance(state, seen_token)
            states.append(state)
        return self.logits(torch.stack(states, dim=1), hidden)

    def propose(
        self,
        hidden: torch.Tensor,  # [N, K, D]
        anchors: torch.Tensor,  # [N]
        state: torch.Tensor,  # [N, R]
        num_active: Sequence[int],  # [K], not growing: the first n items still want proposal i
        choose: Choose,
    ) -> None:
        """Proposes position after position; each token goes to `choose`, which keeps it."""
        tokens = anchors
        for step, n in enumerate(num_active):
            state = self.advance(state[:n], tokens[:n])
            tokens = choose(step, self.logits(state, hidden[:n, step]))
