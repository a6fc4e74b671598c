"""What `dlite generate` does with a request: streams it to a terminal, or tells it as JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from typing import Any

from coordinator.client import Answer, AsyncClient, ChoiceAnswer
from coordinator.metrics import reason_name
from protos import coordinator_pb2
from protos.common_pb2 import (
    FINISH_REASON_LENGTH,
    FINISH_REASON_STOP,
    FINISH_REASON_TOOL_CALLS,
    PositionLogprobs,
)
from protos.errors import DliteError
from protos.security import Address

_GOOD = (FINISH_REASON_STOP, FINISH_REASON_LENGTH, FINISH_REASON_TOOL_CALLS)


async def run_generate(address: Address, request: coordinator_pb2.GenerateRequest, as_json: bool) -> int:
    """Runs the request and prints the answer; returns the exit code.

    One text is printed as it comes, several when all have ended.

    Raises:
        DliteError: the coordinator is not there or refuses the request.
    """
    answer = Answer()
    streams = not as_json and request.n <= 1
    started = time.monotonic()
    async with AsyncClient(address) as client:
        async for message in client.generate(request):
            text = answer.add(message)
            if text and streams:
                print(text, end="", flush=True)
    if not answer.is_finished:
        raise DliteError("the stream ended without a Finished message")
    report = _report(answer, time.monotonic() - started)
    if as_json:
        print(json.dumps(report))
    else:
        _print_rest(answer, streams)
        print(_summary(report), file=sys.stderr)
    return 0 if all(choice.finish_reason in _GOOD for choice in answer.choices) else 1


def _print_rest(answer: Answer, streamed: bool) -> None:
    """What is not on the terminal yet: all of several texts, tool calls of any."""
    for index, choice in enumerate(answer.choices):
        if not streamed:
            print(f"--- choice {index} [{reason_name(choice.finish_reason)}]")
            print(choice.text, end="")
        print()
        for call in _calls(choice):
            print(json.dumps(call))


def _report(answer: Answer, seconds: float) -> dict[str, Any]:
    """The JSON object: text, ids, finish, usage, accept length (null without drafts) of the first choice,
    and every choice."""
    ledger = answer.finished.ledger
    first = _choice(answer.choices[0], 0)
    num_tokens = sum(choice.finished.usage.completion_tokens for choice in answer.choices)
    return {
        "request_id": answer.request_id,
        **{name: value for name, value in first.items() if name != "index"},
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
        "tokens_per_second": num_tokens / seconds if seconds > 0 else None,
        "prompt_logprobs": _logprobs(answer.prompt_logprobs),
        "choices": [_choice(choice, index) for index, choice in enumerate(answer.choices)],
    }


def _choice(choice: ChoiceAnswer, index: int) -> dict[str, Any]:
    finished, usage = choice.finished, choice.finished.usage
    return {
        "index": index,
        "text": choice.text,
        "token_ids": choice.token_ids,
        "finish_reason": reason_name(finished.finish_reason),
        "stop_string": finished.stop_string,
        "stop_token_id": finished.stop_token_id if finished.HasField("stop_token_id") else None,
        "error": finished.error,
        "tool_calls": _calls(choice),
        "logprobs": _logprobs(choice.logprobs),
        "usage": {field.name: getattr(usage, field.name) for field in usage.DESCRIPTOR.fields},
    }


def _calls(choice: ChoiceAnswer) -> list[dict[str, str]]:
    return [
        {"id": call.id, "name": call.name, "arguments": call.arguments_json} for call in choice.tool_calls
    ]


def _logprobs(positions: Iterable[PositionLogprobs]) -> list[dict[str, Any]]:
    """Of each position; empty when they were not asked for."""
    return [
        {
            "token_id": position.chosen.token_id,
            "logprob": position.chosen.logprob,
            "top": [{"token_id": one.token_id, "logprob": one.logprob} for one in position.top],
        }
        for position in positions
    ]


def _summary(report: dict[str, Any]) -> str:
    usages = [choice["usage"] for choice in report["choices"]]
    num_tokens = sum(usage["completion_tokens"] for usage in usages)
    accept_length = report["accept_length"]
    accepted = "no drafts" if accept_length is None else f"accept length {accept_length:.2f}"
    reasons = ", ".join(choice["finish_reason"] for choice in report["choices"])
    return (
        f"[{reasons}] {usages[0]['prompt_tokens']} prompt ({usages[0]['cached_tokens']} cached) + "
        f"{num_tokens} tokens, {report['tokens_per_second']:.1f} tokens/s, {accepted} "
        f"({report['draft_rounds']} of {report['rounds']} rounds drafted, "
        f"{report['lookup_rounds']} by lookup)"
    )
