"""Target and drafter that cost next to nothing: they answer each message on the event loop, from a script.

No engine, no pages, no threads, one encoded feature tensor for everybody. What a coordinator can do
shows only if its services do not take the cores it runs on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deploy.bench.fakes import VOCAB_SIZE
from protos import common_pb2, draft_pb2, rpc, target_pb2
from protos.splice import Spliced
from protos.stream import Outbox, Stamps, read_all, write_all

# Everything that is sent in one message, features included.
_MOST_BYTES = 256 * 1024


@dataclass(eq=False)
class _Text:
    """A text that counts upwards."""

    num_tokens: int
    last_token: int
    num_left: int


class LeanTarget:
    """Decides the next numbers; proposals are counted as far as they are right.

    Args:
        describe: told to coordinators.
        features: of every text.
    """

    def __init__(self, describe: common_pb2.Describe, features: common_pb2.Tensor) -> None:
        self._describe = describe
        self._features = features
        self._texts: dict[str, _Text] = {}

    def service(self) -> rpc.Service:
        return rpc.Service("dlite.v1.Target", {"Decode": rpc.duplex(self._decode), **_tokenizer()})

    async def _decode(self, context: rpc.Context) -> None:
        await _converse(context, self._take)

    def _take(self, data: bytes, stamps: Stamps, outbox: Outbox) -> bool:
        message = target_pb2.TargetCommand.FromString(data)
        stamps.note(message.stamp)
        if message.HasField("hello"):
            welcome = common_pb2.Welcome(instance_id="lean", describe=self._describe)
            outbox.put(target_pb2.TargetEvent(welcome=welcome))
        elif message.HasField("end"):
            outbox.put(target_pb2.TargetEvent(end=message.end))
            return False
        events: list[bytes] = []
        for command in message.commands.commands:
            events += self._events(command)
        fields = target_pb2.TargetEvent.EVENTS_FIELD_NUMBER, target_pb2.EventList.EVENTS_FIELD_NUMBER
        while events:
            size, count = 0, 0
            while count < len(events) and size < _MOST_BYTES:
                size += len(events[count])
                count += 1
            outbox.put(Spliced(*fields, events[:count]))
            del events[:count]
        return True

    def _events(self, command: target_pb2.Command) -> list[bytes]:
        kind = command.WhichOneof("kind")
        if kind == "close":
            self._texts.pop(command.request_id, None)
            closed = target_pb2.Closed(request_id=command.request_id, epoch=command.epoch)
            return [target_pb2.Event(closed=closed).SerializeToString()]
        if kind == "open":
            ids = command.open.token_ids
            text = _Text(len(ids), ids[-1], command.open.params.max_tokens)
            self._texts[command.request_id] = text
            return self._decided(command, text, (), command.open.want_features)
        text = self._texts[command.request_id]
        return self._decided(command, text, command.verify.proposals, command.verify.want_features)

    def _decided(
        self, command: target_pb2.Command, text: _Text, proposals: Any, wants_features: bool
    ) -> list[bytes]:
        right = [(text.last_token + j) % VOCAB_SIZE for j in range(1, len(proposals) + 2)]
        num_accepted = [*(a == b for a, b in zip(proposals, right, strict=False)), False].index(False)
        tokens = right[: min(num_accepted + 1, text.num_left)]
        text.last_token, text.num_tokens = tokens[-1], text.num_tokens + len(tokens)
        text.num_left -= len(tokens)
        event = target_pb2.Event()
        verdict = event.verdict
        verdict.request_id, verdict.epoch, verdict.round = command.request_id, command.epoch, command.round
        verdict.committed_length, verdict.done = text.num_tokens, True
        verdict.tokens.extend(tokens)
        verdict.num_accepted, verdict.num_verified = min(num_accepted, len(tokens)), len(proposals)
        if not text.num_left:
            verdict.finish_reason = common_pb2.FINISH_REASON_LENGTH
        events = [event.SerializeToString()]
        if wants_features and text.num_left:
            event = target_pb2.Event()
            features = event.features
            features.request_id, features.epoch, features.round = (
                command.request_id,
                command.epoch,
                command.round,
            )
            features.parts = 1
            features.tensor.CopyFrom(self._features)
            events.append(event.SerializeToString())
        return events


class LeanDrafter:
    """Proposes the next numbers."""

    def __init__(self, describe: common_pb2.Describe) -> None:
        self._describe = describe

    def service(self) -> rpc.Service:
        return rpc.Service("dlite.v1.Draft", {"Propose": rpc.duplex(self._propose)})

    async def _propose(self, context: rpc.Context) -> None:
        await _converse(context, self._take)

    def _take(self, data: bytes, stamps: Stamps, outbox: Outbox) -> bool:
        message = draft_pb2.ProposeBatch.FromString(data)
        stamps.note(message.stamp)
        if message.HasField("hello"):
            welcome = common_pb2.Welcome(instance_id="lean", describe=self._describe)
            outbox.put(draft_pb2.ProposalBatch(welcome=welcome))
        elif message.HasField("end"):
            outbox.put(draft_pb2.ProposalBatch(end=message.end))
            return False
        else:
            batch = draft_pb2.ProposalBatch()
            for item in message.items.items:
                anchor = item.recent_tokens[-1]
                proposal = batch.proposals.proposals.add()
                proposal.request_id, proposal.epoch, proposal.round = item.request_id, item.epoch, item.round
                proposal.tokens.extend((anchor + j) % VOCAB_SIZE for j in range(1, item.k + 1))
                proposal.probabilities.extend((1.0,) * item.k)
            outbox.put(batch)
        return True


async def _converse(context: rpc.Context, take: Callable[[bytes, Stamps, Outbox], bool]) -> None:
    outbox, stamps = Outbox(), Stamps()
    writer = asyncio.create_task(write_all(outbox, context.write, stamps))
    try:
        await read_all(context.read, lambda data: take(data, stamps, outbox))
        outbox.close()
        await writer
    finally:
        writer.cancel()


def _tokenizer() -> dict[str, Any]:
    """No files: texts are ids."""

    async def none(_request: target_pb2.GetTokenizerRequest, _context: rpc.Context) -> Any:
        nothing: tuple[target_pb2.TokenizerChunk, ...] = ()
        for chunk in nothing:
            yield chunk

    return {"GetTokenizer": rpc.server_stream(target_pb2.GetTokenizerRequest, none)}
