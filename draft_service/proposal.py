"""What goes into a drafter and what comes out: the boundary that every drafter keeps.

m tapped layers, D width, G anchor group size, K most proposals, V_d logits of one position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import torch


class DraftMode(Enum):
    GREEDY = "greedy"
    COUPLED = "coupled"
    REJECTION = "rejection"
    MATCH = "match"


@dataclass(frozen=True, eq=False)
class DraftItem:
    """One request's round.

    Attributes:
        request_id: used by the replay drafter only.
        recent_tokens: the last 1..G committed tokens, the anchor last.
        features: pivot features [m, D] float32; None where the drafter needs none.
        position: absolute position of the anchor; proposal j is for position + j.
        k: proposals wanted, 1..K.
        key: 16-byte sampling key (coupled and rejection).
        temperature: coupled and rejection, > 0.
        max_law_entries: rejection: the most entries of a truncated law.
    """

    request_id: str
    recent_tokens: tuple[int, ...]
    features: torch.Tensor | None
    position: int
    k: int
    mode: DraftMode
    key: bytes = b""
    temperature: float = 0.0
    max_law_entries: int = 0


@dataclass(frozen=True)
class DraftLaw:
    """q of one position as target ids and float32 probabilities: exactly what was drawn from."""

    token_ids: tuple[int, ...]
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class Refusal:
    """Why one item was not answered, and the field at fault."""

    field: str
    message: str


@dataclass(frozen=True)
class DraftResult:
    """Proposals as target ids, or a refusal.

    Attributes:
        probabilities: the drafter's own of each token; empty in rejection mode, where nothing may
            look at a proposal before it is verified.
        laws: rejection mode: what each token was drawn from.
    """

    tokens: tuple[int, ...] = ()
    probabilities: tuple[float, ...] = ()
    laws: tuple[DraftLaw, ...] = ()
    refusal: Refusal | None = None
    forward_us: int = 0
    sample_us: int = 0


@dataclass(frozen=True)
class DraftDescription:
    """What a coordinator checks before it uses a drafter. Zero or empty: unknown, not checked.

    Args:
        kv_bytes_per_token: what this drafter would keep for a token if it kept a history; it keeps none.
    """

    drafter_kind: str
    model: str
    fingerprint: str
    embedding_hash: str
    vocab_size: int
    hidden_size: int
    num_target_layers: int
    tapped_layers: tuple[int, ...]
    block_size: int
    anchor_group_size: int
    dtype: str
    trained_for_fingerprint: str = ""
    variable_block: bool = False
    kv_bytes_per_token: int = 0
    notes: tuple[str, ...] = field(default=())


class ProposesTokens(Protocol):
    """A drafter: stateless, called from one thread at a time."""

    @property
    def description(self) -> DraftDescription: ...

    def propose(self, items: Sequence[DraftItem]) -> list[DraftResult]:
        """One result for each item, in order; a bad item is refused without harm to the others."""
        ...

    def self_test(self) -> None:
        """One whole draft round.

        Raises:
            ContractMismatch: the drafter cannot draft.
        """
        ...
