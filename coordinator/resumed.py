"""Whether the tokens that a caller brings along are the whole text already. Pure.

A caller whose connection broke after the last token and before Finished resumes a text that is
complete; it is answered by Finished at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.text import Decode
from coordinator.textstream import TextStream
from protos import common_pb2
from protos.common_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP, FinishReason


@dataclass(frozen=True)
class Ended:
    """How a resumed text has ended; `stop_string` is empty unless one ended it."""

    finish_reason: FinishReason
    stop_string: str = ""


def find_end(
    token_ids: Sequence[int],
    params: common_pb2.SamplingParams,
    stop: tuple[str, ...],
    eos_token_ids: frozenset[int],
    decode: Decode,
) -> Ended | None:
    """How the generated tokens end a text, or None when more are to come.

    A stop is tested before the limit.
    """
    if not token_ids:
        return None
    stop_ids = set(params.stop_token_ids) | (set() if params.ignore_eos else eos_token_ids)
    if token_ids[-1] in stop_ids:
        return Ended(FINISH_REASON_STOP)
    if stop:
        text = TextStream(decode, stop, (), params.min_tokens)
        found = text.push(tuple(token_ids)).stop or text.flush().stop
        if found:
            return Ended(FINISH_REASON_STOP, found)
    if len(token_ids) >= params.max_tokens:
        return Ended(FINISH_REASON_LENGTH)
    return None
