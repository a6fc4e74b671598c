"""Every kind of bad value in every field of GenerateRequest, generated from the schema (ENGINE).

A request is refused with an error that names the field, or it is served; nothing else may happen,
and a request that runs beside it ends with its own text.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from deploy.bench.hostile import bad_values
from deploy.in_process import InProcess, in_process
from protos import coordinator_pb2
from protos.errors import DliteError, InvalidRequest
from tests.fakes import table_built

VOCAB = 61
MAX_TOKENS = 3


def messages_with(descriptor: Any, build: Any, depth: int = 0) -> Iterator[tuple[str, Message]]:
    """(path of the field, a message with one bad value) for every field, nested ones included."""
    for field in descriptor.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for key, value in ((2**32 - 1, 1.0), (1, math.nan), (1, math.inf), (1, 1e30)):
                message = build()
                getattr(message, field.name)[key] = value
                yield field.name, message
        elif field.message_type is not None:
            yield from _nested(field, build, depth)
        else:
            for value in bad_values(field):
                message = build()
                if field.is_repeated:
                    getattr(message, field.name).extend([value] * 3)
                else:
                    setattr(message, field.name, value)
                yield field.name, message


def _nested(field: FieldDescriptor, build: Any, depth: int) -> Iterator[tuple[str, Message]]:
    if depth > 2:
        return
    factory = field.message_type._concrete_class

    def inner() -> Message:
        return factory()

    for path, part in messages_with(field.message_type, inner, depth + 1):
        message = build()
        if field.is_repeated:
            getattr(message, field.name).append(part)
        else:
            getattr(message, field.name).CopyFrom(part)
        yield f"{field.name}.{path}", message
    empty = build()
    if field.is_repeated:
        getattr(empty, field.name).add()
    else:
        getattr(empty, field.name).SetInParent()
    yield field.name, empty


def base() -> coordinator_pb2.GenerateRequest:
    return coordinator_pb2.GenerateRequest(
        token_ids=[1, 2, 3], max_tokens=MAX_TOKENS, temperature=0.0, seed=1
    )


CASES = [
    (f"{path}-{number}", path, message)
    for number, (path, message) in enumerate(messages_with(coordinator_pb2.GenerateRequest.DESCRIPTOR, base))
]


async def serve(system: InProcess, message: coordinator_pb2.GenerateRequest) -> list[int]:
    generation = await system.coordinator.admit(message)
    ids: list[int] = []
    num_finished = 0
    async for response in generation.attach().messages():
        if response.HasField("delta") and response.delta.index == 0:
            ids += response.delta.token_ids
        num_finished += response.HasField("finished")
    assert num_finished >= 1
    return ids


def cycle() -> torch.Tensor:
    table = torch.zeros(VOCAB, VOCAB)
    for token in range(VOCAB):
        table[token, (token + 1) % VOCAB] = 5.0
    return table


async def test_every_bad_value_is_refused_by_name_or_served() -> None:
    served, refused = 0, 0
    async with in_process(table_built(cycle(), num_pages=256), None) as system:
        neighbour_request = base()
        neighbour_request.max_tokens = 400
        neighbour = asyncio.create_task(serve(system, neighbour_request))
        for name, path, message in CASES:
            async with asyncio.timeout(20):
                try:
                    await serve(system, message)
                    served += 1
                except DliteError as error:
                    refused += 1
                    if isinstance(error, InvalidRequest) and not error.field:
                        pytest.fail(f"{name} ({path}): {error} names no field")
                except Exception as error:
                    pytest.fail(f"{name} ({path}): {error!r}")
        ids = await neighbour
        assert ids == [(4 + i) % VOCAB for i in range(400)]
        for _ in range(200):
            if system.coordinator.num_running == 0:
                break
            await asyncio.sleep(0)
        assert system.target.failure is None
    assert refused > 40
    assert served > 40
    assert len(CASES) > 150
