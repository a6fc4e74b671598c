"""Builds the commands to the target and the items to the drafter. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coordinator.request import Request
from coordinator.session import Session
from coordinator.tenants import prefix_salt
from protos import common_pb2, draft_pb2, target_pb2

# A token id takes at most 3 bytes below 2^21, so a part stays far below 1 MiB.
OPEN_PART_TOKENS = 64 * 1024
# Entries of a truncated law: what a drafter's law has beyond them is lost acceptance, not exactness.
MAX_LAW_ENTRIES = 64
_ITEM_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "int8": 1}


def open_commands(request: Request, session: Session, want_features: bool) -> tuple[target_pb2.Command, ...]:
    """Round 0 with all committed tokens, in parts when they are many."""
    tokens = session.tokens
    parts = max(math.ceil(len(tokens) / OPEN_PART_TOKENS), 1)
    commands = []
    for part in range(parts):
        command = target_pb2.Command(request_id=request.request_id, epoch=session.epoch, round=0)
        begin = part * OPEN_PART_TOKENS
        command.open.token_ids.extend(tokens[begin : begin + OPEN_PART_TOKENS])
        if parts > 1:
            command.open.part, command.open.parts = part, parts
        commands.append(command)
    last = commands[-1].open
    last.num_prompt_tokens = session.num_prompt_tokens
    last.sampling_key = request.sampling_key
    last.params.CopyFrom(request.params)
    last.want_features = want_features
    last.fork_of = request.fork_of
    last.prefix_salt = prefix_salt(request.tenant)
    if request.response_format is not None:
        last.grammar.CopyFrom(request.response_format)
    return tuple(commands)


def round_command(request_id: str, session: Session) -> target_pb2.Command:
    """A command of the session's newest round, without its kind."""
    return target_pb2.Command(request_id=request_id, epoch=session.epoch, round=session.round)


def verify_command(
    request_id: str,
    session: Session,
    proposals: Sequence[int],
    laws: Sequence[common_pb2.TruncatedLaw],
    want_features: bool,
) -> target_pb2.Command:
    """A verification; `laws` in rejection mode only, one for each proposal."""
    command = round_command(request_id, session)
    command.verify.committed_length = len(session.tokens)
    command.verify.proposals.extend(proposals)
    command.verify.law.extend(laws)
    command.verify.want_features = want_features
    return command


def run_command(
    request_id: str, session: Session, max_tokens: int, want_features: bool
) -> target_pb2.Command:
    command = round_command(request_id, session)
    command.run.max_tokens = max_tokens
    command.run.committed_length = len(session.tokens)
    command.run.want_features = want_features
    return command


def fetch_command(request_id: str, session: Session) -> target_pb2.Command:
    command = round_command(request_id, session)
    command.fetch.committed_length = len(session.tokens)
    return command


def hold_command(request_id: str, epoch: int) -> target_pb2.Command:
    command = target_pb2.Command(request_id=request_id, epoch=epoch)
    command.hold.SetInParent()
    return command


def close_command(request_id: str, epoch: int, keep_length: int) -> target_pb2.Command:
    command = target_pb2.Command(request_id=request_id, epoch=epoch)
    command.close.keep_length = keep_length
    return command


def propose_item(
    request: Request, session: Session, features: common_pb2.Tensor, k: int, num_recent: int
) -> draft_pb2.ProposeItem:
    """The drafter's question about the next positions.

    Args:
        features: pivot features [m, D], passed on unopened.
        num_recent: the drafter's anchor group G; the anchor comes last.
    """
    return draft_pb2.ProposeItem(
        request_id=request.request_id,
        epoch=session.epoch,
        round=session.round + 1,
        recent_tokens=session.tokens[-max(num_recent, 1) :],
        features=features,
        position=len(session.tokens) - 1,
        k=k,
        sampling_key=request.sampling_key,
        mode=request.params.mode,
        temperature=request.params.temperature,
        max_law_entries=MAX_LAW_ENTRIES if request.plan.is_blind else 0,
    )


def tensor_bytes(tensor: common_pb2.Tensor) -> int:
    """Size of a tensor's data by its shape: reading `data` would copy it."""
    return math.prod(tensor.shape) * _ITEM_BYTES.get(tensor.dtype, 0)


class FeatureParts:
    """Puts the parts of one round's features together; parts are rows of the first dimension."""

    def __init__(self) -> None:
        self._parts: dict[int, common_pb2.Tensor] = {}

    def add(self, features: target_pb2.Features) -> common_pb2.Tensor | None:
        """Takes a part; returns the tensor when it was the last one missing."""
        if features.parts <= 1:
            return features.tensor
        self._parts[features.part] = features.tensor
        if len(self._parts) < features.parts:
            return None
        parts = [self._parts[index] for index in sorted(self._parts)]
        shape = [sum(part.shape[0] for part in parts), *parts[0].shape[1:]]
        return common_pb2.Tensor(
            dtype=parts[0].dtype,
            shape=shape,
            data=b"".join(part.data for part in parts),
            scales=b"".join(part.scales for part in parts),
        )
