"""Events from records to protobuf: what goes out, and the target's description of itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from protos import codec, common_pb2, rpc, target_pb2
from protos.errors import InvalidRequest
from protos.noise import NOISE_VERSION
from target_service import commands as c
from target_service.build import TargetDescription
from target_service.logprobs import PositionLogprobs, TokenLogprob

_REFUSAL_CODES = {
    c.RefusalCode.STALE_EPOCH: target_pb2.REFUSAL_CODE_STALE_EPOCH,
    c.RefusalCode.OUT_OF_STEP: target_pb2.REFUSAL_CODE_OUT_OF_STEP,
    c.RefusalCode.INVALID_ARGUMENT: target_pb2.REFUSAL_CODE_INVALID_ARGUMENT,
}
_FINISH_REASONS = {
    None: common_pb2.FINISH_REASON_UNSPECIFIED,
    c.FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    c.FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
}
# Features leave in messages of about this size. What fits into one message leaves in one: a message
# of its own costs more than a verdict waits for the features of a request or two.
FEATURE_MESSAGE_BYTES = 256 * 1024


def refusal_to(command: target_pb2.Command, error: InvalidRequest) -> target_pb2.Event:
    """The answer to a command that cannot be understood; the stream goes on."""
    refused = target_pb2.Refused(
        request_id=command.request_id,
        epoch=command.epoch,
        round=command.round,
        code=target_pb2.REFUSAL_CODE_INVALID_ARGUMENT,
        field=error.field,
        message=error.message,
    )
    return target_pb2.Event(refused=refused)


def _timing_to(timing: c.Timing) -> common_pb2.Timing:
    parts = (timing.queue_seconds, timing.forward_seconds, timing.sample_seconds, timing.total_seconds)
    queue_us, forward_us, sample_us, total_us = (max(0, round(part * 1e6)) for part in parts)
    message = common_pb2.Timing(
        queue_us=queue_us, forward_us=forward_us, sample_us=sample_us, total_us=total_us
    )
    if timing.step is not None:
        message.step, message.step_rows = timing.step.number, timing.step.rows
        message.step_prefill_rows, message.step_context = timing.step.prefill_rows, timing.step.context
        message.step_us = max(0, round(timing.step_seconds * 1e6))
    return message


def _named(address: c.Address) -> dict[str, object]:
    return {"request_id": address.key.request_id, "epoch": address.epoch}


def _verdict_to(event: c.Verdict) -> target_pb2.Verdict:
    return target_pb2.Verdict(
        **_named(event.address),  # type: ignore[arg-type]
        round=event.address.round,
        committed_length=event.committed_length,
        tokens=event.tokens,
        num_accepted=event.num_accepted,
        num_verified=event.num_verified,
        done=event.done,
        finish_reason=_FINISH_REASONS[event.finish_reason],
        timing=_timing_to(event.timing),
        recomputed_tokens=event.recomputed_tokens,
        cached_tokens=event.cached_tokens,
        logprobs=[_logprobs_to(entry) for entry in event.logprobs],
        prompt_logprobs=[_logprobs_to(entry) for entry in event.prompt_logprobs],
        forced_tokens=event.forced_tokens,
    )


def _logprobs_to(entry: PositionLogprobs) -> common_pb2.PositionLogprobs:
    def one(item: TokenLogprob) -> common_pb2.TokenLogprob:
        return common_pb2.TokenLogprob(token_id=item.token_id, logprob=item.logprob)

    chosen = None if entry.chosen is None else one(entry.chosen)
    return common_pb2.PositionLogprobs(chosen=chosen, top=[one(item) for item in entry.top])


def _write_features(message: target_pb2.Features, event: c.Features, dtype: str | None) -> None:
    if dtype is None and event.tensor.dtype == torch.float64:
        dtype = "f32"  # a float64 target is for proofs; drafters compute in float32
    message.request_id, message.epoch = event.address.key.request_id, event.address.epoch
    message.round = event.address.round
    message.part, message.parts = 0, 1
    codec.encode_into(message.tensor, event.tensor, dtype)


def _refused_to(event: c.Refused) -> target_pb2.Refused:
    return target_pb2.Refused(
        **_named(event.address),  # type: ignore[arg-type]
        round=event.address.round,
        code=_REFUSAL_CODES[event.code],
        field=event.field,
        message=event.message,
        held_epoch=event.held.epoch,
        held_round=max(event.held.round, 0),  # -1 while its Open is computed: none is done
        held_committed_length=event.held.committed_length,
    )


def event_to(event: c.Event, feature_dtype: str | None = None) -> target_pb2.Event:
    """One event."""
    message = target_pb2.Event()
    _write_event(message, event, feature_dtype)
    return message


def _write_event(message: target_pb2.Event, event: c.Event, feature_dtype: str | None) -> None:
    """Writes an event where it belongs; large ones are never copied from message to message."""
    if isinstance(event, c.Verdict):
        message.verdict.CopyFrom(_verdict_to(event))
    elif isinstance(event, c.Features):
        _write_features(message.features, event, feature_dtype)
    elif isinstance(event, c.Progress):
        progress = target_pb2.Progress(
            step=event.step,
            queued_rows=event.queued_rows,
            pages_held=event.pages_held,
            pages_cached=event.pages_cached,
        )
        message.progress.CopyFrom(progress)
    elif isinstance(event, c.Preempted):
        message.preempted.CopyFrom(target_pb2.Preempted(**_named(event.address)))  # type: ignore[arg-type]
    elif isinstance(event, c.Closed):
        message.closed.CopyFrom(target_pb2.Closed(**_named(event.address)))  # type: ignore[arg-type]
    else:
        message.refused.CopyFrom(_refused_to(event))


def messages_to(events: Sequence[c.Event], feature_dtype: str | None = None) -> list[target_pb2.TargetEvent]:
    """Packs events into stream messages: everything small first, features after, in order."""
    small = [event for event in events if not isinstance(event, c.Features)]
    features = [event for event in events if isinstance(event, c.Features)]
    if sum(map(_feature_bytes, features)) <= FEATURE_MESSAGE_BYTES:
        return [_message([*small, *features], feature_dtype)]
    messages = [_message(small, feature_dtype)] if small else []
    pending: list[c.Event] = []
    size = 0
    for event in features:
        num_bytes = _feature_bytes(event)
        if pending and size + num_bytes > FEATURE_MESSAGE_BYTES:
            messages.append(_message(pending, feature_dtype))
            pending, size = [], 0
        pending.append(event)
        size += num_bytes
    return [*messages, _message(pending, feature_dtype)]


def _feature_bytes(event: c.Features) -> int:
    """About what it takes on the wire: a dtype of the wire's own may halve it."""
    return event.tensor.numel() * min(event.tensor.element_size(), 4)


def _message(events: Sequence[c.Event], feature_dtype: str | None) -> target_pb2.TargetEvent:
    message = target_pb2.TargetEvent()
    for event in events:
        _write_event(message.events.events.add(), event, feature_dtype)
    return message


def describe_to(d: TargetDescription) -> common_pb2.Describe:
    """The target's Describe."""
    defaults = common_pb2.GenerationDefaults(temperature=d.temperature, top_p=d.top_p, top_k=d.top_k)
    return common_pb2.Describe(
        protocol=common_pb2.Protocol(major=rpc.PROTOCOL_MAJOR, minor=rpc.PROTOCOL_MINOR),
        noise_version=NOISE_VERSION,
        model=d.model,
        fingerprint=d.fingerprint,
        embedding_hash=d.embedding_hash,
        tokenizer_hash=d.tokenizer_hash,
        vocab_size=d.vocab_size,
        hidden_size=d.hidden_size,
        num_layers=d.num_layers,
        tapped_layers=d.tapped_layers,
        dtype=d.dtype,
        attention_kernel=d.attention_kernel,
        linear_kernel=d.linear_kernel,
        max_context=d.max_context,
        max_message_bytes=rpc.MAX_MESSAGE_BYTES,
        page_size=d.page_size,
        num_pages=d.num_pages,
        max_verify_block_size=d.max_verify_block_size,
        eos_token_ids=d.eos_ids,
        generation_defaults=defaults,
        num_threads=d.threads,
    )
