"""Between the protobuf messages of the draft service and the drafter's dataclasses."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draft_service.batcher import Answer, Owner, Ticket
from draft_service.proposal import DraftDescription, DraftItem, DraftMode
from protos import codec, common_pb2, draft_pb2, rpc
from protos.errors import DliteError, InvalidRequest
from protos.noise import NOISE_VERSION

DEFAULT_LAW_ENTRIES = 64
_MODES = {
    common_pb2.MODE_GREEDY: DraftMode.GREEDY,
    common_pb2.MODE_COUPLED: DraftMode.COUPLED,
    common_pb2.MODE_REJECTION: DraftMode.REJECTION,
    common_pb2.MODE_MATCH: DraftMode.MATCH,
}


def read_item(message: draft_pb2.ProposeItem) -> DraftItem:
    """An item as the drafter wants it; features of every wire dtype become float32.

    Raises:
        InvalidRequest: the mode is unknown, or the features are no tensor.
    """
    if message.mode not in _MODES:
        raise InvalidRequest(f"{message.mode} is not a mode", field="mode")
    features: torch.Tensor | None = None
    if message.HasField("features"):
        features = codec.decode(message.features, "features").to(torch.float32)
    return DraftItem(
        request_id=message.request_id,
        recent_tokens=tuple(message.recent_tokens),
        features=features,
        position=message.position,
        k=message.k,
        mode=_MODES[message.mode],
        key=message.sampling_key,
        temperature=message.temperature,
        max_law_entries=message.max_law_entries or DEFAULT_LAW_ENTRIES,
    )


def read_ticket(message: draft_pb2.ProposeItem, owner: Owner, now_seconds: float) -> Ticket:
    """A queueable ticket.

    Raises:
        InvalidRequest: as `read_item`.
    """
    deadline = now_seconds + message.time_left_ms / 1000 if message.time_left_ms else None
    return Ticket(read_item(message), message.epoch, message.round, owner, now_seconds, deadline)


def write_answers(answers: Sequence[Answer]) -> draft_pb2.ProposalBatch | None:
    """One message for the answers that still matter; None when all were too late."""
    proposals = [_write_answer(answer) for answer in answers if answer.result is not None]
    if not proposals:
        return None
    return draft_pb2.ProposalBatch(proposals=draft_pb2.ProposalList(proposals=proposals))


def _write_answer(answer: Answer) -> draft_pb2.Proposal:
    ticket, result, batch = answer.ticket, answer.result, answer.batch
    assert result is not None
    proposal = draft_pb2.Proposal(
        request_id=ticket.item.request_id,
        epoch=ticket.epoch,
        round=ticket.round,
        tokens=result.tokens,
        probabilities=result.probabilities,
        law=[
            common_pb2.TruncatedLaw(token_ids=law.token_ids, probabilities=law.probabilities)
            for law in result.laws
        ],
        timing=common_pb2.Timing(
            queue_us=answer.queue_us,
            forward_us=result.forward_us,
            sample_us=result.sample_us,
            total_us=answer.total_us,
        ),
    )
    if batch is not None:
        proposal.timing.step, proposal.timing.step_rows = batch.number, batch.num_items
        proposal.timing.step_us = batch.compute_us
    if result.refusal is not None:
        proposal.refusal.field = result.refusal.field
        proposal.refusal.message = result.refusal.message
    return proposal


def write_refusal(message: draft_pb2.ProposeItem, error: DliteError) -> draft_pb2.Proposal:
    """The answer to an item that could not even be queued."""
    refusal = draft_pb2.DraftRefusal(field=error.field, message=error.message)
    return draft_pb2.Proposal(
        request_id=message.request_id, epoch=message.epoch, round=message.round, refusal=refusal
    )


def write_description(description: DraftDescription, num_threads: int) -> common_pb2.Describe:
    """What `GetDescription` and the welcome say."""
    return common_pb2.Describe(
        protocol=common_pb2.Protocol(major=rpc.PROTOCOL_MAJOR, minor=rpc.PROTOCOL_MINOR),
        noise_version=NOISE_VERSION,
        model=description.model,
        fingerprint=description.fingerprint,
        embedding_hash=description.embedding_hash,
        vocab_size=description.vocab_size,
        hidden_size=description.hidden_size,
        num_layers=description.num_target_layers,
        tapped_layers=description.tapped_layers,
        block_size=description.block_size,
        anchor_group_size=description.anchor_group_size,
        dtype=description.dtype,
        attention_kernel="sdpa",
        max_message_bytes=rpc.MAX_MESSAGE_BYTES,
        drafter_kind=description.drafter_kind,
        trained_for_fingerprint=description.trained_for_fingerprint,
        variable_block=description.variable_block,
        kv_bytes_per_token=description.kv_bytes_per_token,
        notes=description.notes,
        num_threads=num_threads,
        max_verify_block_size=description.block_size,
    )
