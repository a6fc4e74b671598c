"""What `dlite generate` does: one request, streamed to a terminal or told as JSON."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Any

from coordinator.client import Answer, AsyncClient
from coordinator.coordinator import SOURCES
from protos import coordinator_pb2
from protos.common_pb2 import (
    FINISH_REASON_LENGTH,
    FINISH_REASON_STOP,
    FINISH_REASON_TOOL_CALLS,
    FinishReason,
)
from protos.errors import DliteError, InvalidRequest

OFF = "off"


@dataclass(frozen=True)
class GenerateOptions:
    """One prompt and its options; None means not given.

    Args:
        source: a name in `SOURCES`, or "off".
        as_chat: send the prompt as a user message instead of as it is.
    """

    prompt: str
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    source: str | None = None
    num_draft_tokens: int | None = None
    verify_block_size: int | None = None
    as_chat: bool = True


def build_request(options: GenerateOptions) -> coordinator_pb2.GenerateRequest:
    """The request of these options.

    Raises:
        InvalidRequest: an unknown source, or a number that has no place in the request.
    """
    request = coordinator_pb2.GenerateRequest(stop=options.stop)
    if options.as_chat:
        request.messages.add(role="user", content=options.prompt)
    else:
        request.prompt = options.prompt
    speculation = request.speculation
    if options.source == OFF:
        speculation.mode = coordinator_pb2.SPECULATION_MODE_OFF
    elif options.source is not None:
        if options.source not in SOURCES:
            raise InvalidRequest(
                f"unknown {options.source!r}: one of {', '.join(SOURCES)} or off", field="--source"
            )
        speculation.source = SOURCES[options.source]
    for message, name in (
        (request, "max_tokens"),
        (request, "temperature"),
        (request, "seed"),
        (speculation, "num_draft_tokens"),
        (speculation, "verify_block_size"),
    ):
        value = getattr(options, name)
        if value is not None:
            try:
                setattr(message, name, value)
            except ValueError as error:
                raise InvalidRequest(
                    f"{value} is not possible: {error}", field="--" + name.replace("_", "-")
                ) from error
    return request


async def run_generate(address: str, options: GenerateOptions, as_json: bool) -> int:
    """Runs the request and prints the answer; returns the exit code.

    Raises:
        DliteError: the coordinator is not there or refuses the request.
    """
    answer = Answer()
    started = time.monotonic()
    async with AsyncClient(address) as client:
        async for message in client.generate(build_request(options)):
            text = answer.add(message)
            if text and not as_json:
                print(text, end="", flush=True)
    if not answer.is_finished:
        raise DliteError("the stream ended without a Finished message")
    report = _report(answer, time.monotonic() - started)
    if as_json:
        print(json.dumps(report))
    else:
        print()
        print(_summary(report), file=sys.stderr)
    good = (FINISH_REASON_STOP, FINISH_REASON_LENGTH, FINISH_REASON_TOOL_CALLS)
    return 0 if answer.finish_reason in good else 1


def _report(answer: Answer, seconds: float) -> dict[str, Any]:
    """The JSON object: text, ids, finish, usage, accept length (null without drafts)."""
    finished, ledger = answer.finished, answer.finished.ledger
    usage = {field.name: getattr(finished.usage, field.name) for field in finished.usage.DESCRIPTOR.fields}
    return {
        "request_id": answer.request_id,
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": FinishReason.Name(finished.finish_reason).removeprefix("FINISH_REASON_").lower(),
        "error": finished.error,
        "usage": usage,
        "accept_length": ledger.accept_length if ledger.HasField("accept_length") else None,
        "acceptance_rate": ledger.acceptance_rate if ledger.HasField("acceptance_rate") else None,
        "rounds": ledger.num_rounds,
        "draft_rounds": ledger.num_draft_rounds,
        "lookup_rounds": ledger.num_lookup_rounds,
        "undrafted_rounds": ledger.num_undrafted_rounds,
        "reopens": ledger.num_reopens,
        "near_tie_possible": ledger.near_tie_possible,
        "milliseconds": {
            "draft": ledger.draft_ms,
            "verify": ledger.verify_ms,
            "network": ledger.network_ms,
            "scheduling": ledger.scheduling_ms,
        },
        "tokens_per_second": finished.usage.completion_tokens / seconds if seconds > 0 else None,
    }


def _summary(report: dict[str, Any]) -> str:
    usage, accept_length = report["usage"], report["accept_length"]
    accepted = "no drafts" if accept_length is None else f"accept length {accept_length:.2f}"
    return (
        f"[{report['finish_reason']}] {usage['prompt_tokens']} prompt ({usage['cached_tokens']} cached) + "
        f"{usage['completion_tokens']} tokens, {report['tokens_per_second']:.1f} tokens/s, {accepted} "
        f"({report['draft_rounds']} of {report['rounds']} rounds drafted, "
        f"{report['lookup_rounds']} by lookup)"
    )
