"""The replay drafter: proposes recorded target text with a set acceptance and a set compute time.

It measures the system without a model's quality in the way. Acceptance 1 up to position j and 0
after it makes the scripted drafter j: its first j proposals are the target's own tokens.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from draft_service.proposal import DraftDescription, DraftItem, DraftLaw, DraftMode, DraftResult, Refusal
from draft_service.validation import check_round
from protos.errors import InvalidRequest


@dataclass(frozen=True)
class ReplayOptions:
    """How a recording is played.

    Attributes:
        acceptance: [K] probability that proposal j = 1.. is the recorded token.
        compute_ms: time one batch takes, whatever its size.
        seed: of the coins.
        vocab_size: V of the target; 0 takes the largest recorded id + 1.
        embedding_hash: of the target, when known.
    """

    acceptance: tuple[float, ...]
    compute_ms: float = 0.0
    seed: int = 0
    vocab_size: int = 0
    embedding_hash: str = ""


class ReplayDrafter:
    """Same interface as `Drafter`; needs no features. Every coin is a hash of (seed, request id,
    position, j), so an answer depends on nothing but its item.

    Args:
        recordings: request id -> prompt and response token ids, by absolute position.
        options: how to play them.
        sleep: waits for seconds; called once a batch when compute_ms > 0.
    """

    def __init__(
        self,
        recordings: Mapping[str, Sequence[int]],
        options: ReplayOptions,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not options.acceptance or not all(0.0 <= a <= 1.0 for a in options.acceptance):
            raise InvalidRequest(
                f"{options.acceptance} are not probabilities, one a position", field="acceptance"
            )
        self._recordings = {name: tuple(ids) for name, ids in recordings.items()}
        self._options = options
        self._sleep = sleep
        largest = max((max(ids, default=0) for ids in self._recordings.values()), default=0)
        self._vocab_size = options.vocab_size or max(largest + 1, 2)
        if largest >= self._vocab_size:
            raise InvalidRequest(
                f"recorded token {largest} is outside the target's vocabulary of {self._vocab_size}",
                field="replay",
            )
        self.description = DraftDescription(
            drafter_kind="replay",
            model="replay",
            fingerprint="",
            embedding_hash=options.embedding_hash,
            vocab_size=options.vocab_size,
            hidden_size=0,
            num_target_layers=0,
            tapped_layers=(),
            block_size=len(options.acceptance) + 1,
            anchor_group_size=1,
            dtype="",
            notes=(f"replays {len(self._recordings)} recorded texts; a measuring aid, not a model",),
        )

    def propose(self, items: Sequence[DraftItem]) -> list[DraftResult]:
        """One result for each item; fewer than k tokens where the recording ends."""
        if self._options.compute_ms:
            self._sleep(self._options.compute_ms / 1000)
        return [self._answer(item) for item in items]

    def self_test(self) -> None:
        """Nothing to test: the recording was checked when it was read."""

    def _answer(self, item: DraftItem) -> DraftResult:
        refusal = check_round(item, len(self._options.acceptance)) or self._check_text(item)
        if refusal is not None:
            return DraftResult(refusal=refusal)
        recorded = self._recordings[item.request_id][item.position + 1 : item.position + 1 + item.k]
        tokens = tuple(self._proposal(item, j, token) for j, token in enumerate(recorded, start=1))
        if item.mode is DraftMode.REJECTION:
            # No draw from a law: given the recording the token is certain.
            return DraftResult(tokens, laws=tuple(DraftLaw((token,), (1.0,)) for token in tokens))
        return DraftResult(tokens, self._options.acceptance[: len(tokens)])

    def _check_text(self, item: DraftItem) -> Refusal | None:
        text = self._recordings.get(item.request_id)
        if text is None:
            return Refusal("request_id", f"no recording of {item.request_id!r}")
        count = len(item.recent_tokens)
        if not 1 <= count <= item.position + 1:
            return Refusal("recent_tokens", f"{count} tokens at position {item.position}")
        expected = text[max(item.position + 1 - count, 0) : item.position + 1]
        if item.position < len(text) and expected != item.recent_tokens:
            return Refusal(
                "recent_tokens",
                f"at position {item.position} the text is {item.recent_tokens}, the recording {expected}",
            )
        return None

    def _proposal(self, item: DraftItem, j: int, recorded: int) -> int:
        coin, other = self._coins(item, j)
        if coin < self._options.acceptance[j - 1]:
            return recorded
        return (recorded + 1 + other % (self._vocab_size - 1)) % self._vocab_size

    def _coins(self, item: DraftItem, j: int) -> tuple[float, int]:
        """A number in [0, 1) and an integer, from (seed, request id, position, j) alone."""
        text = f"{self._options.seed}/{item.position}/{j}/{item.request_id}"
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        coin = (int.from_bytes(digest[:8], "little") >> 11) * 2.0**-53
        return coin, int.from_bytes(digest[8:], "little")


def read_recordings(file: Path) -> dict[str, tuple[int, ...]]:
    """Reads JSONL lines `{"request_id": .., "token_ids": [..]}`; other keys are ignored.

    Raises:
        InvalidRequest: no such file, or a line that is no recording or repeats a request id.
    """
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot read {file}: {error}", field="replay") from error
    recordings: dict[str, tuple[int, ...]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        request_id, token_ids = _recording(line, f"{file}:{number}")
        if request_id in recordings:
            raise InvalidRequest(f"{file}:{number}: a second recording of {request_id!r}", field="replay")
        recordings[request_id] = token_ids
    if not recordings:
        raise InvalidRequest(f"{file} has no recordings", field="replay")
    return recordings


def _recording(line: str, where: str) -> tuple[str, tuple[int, ...]]:
    try:
        record = json.loads(line)
        request_id, token_ids = record["request_id"], record["token_ids"]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(
            f"{where}: expected an object with request_id and token_ids", field="replay"
        ) from error
    if not isinstance(request_id, str) or not isinstance(token_ids, list):
        raise InvalidRequest(f"{where}: request_id is a string and token_ids a list", field="replay")
    if not all(type(token) is int and token >= 0 for token in token_ids):
        raise InvalidRequest(f"{where}: token_ids are integers from 0 up", field="replay")
    return request_id, tuple(token_ids)
