"""Every string and every list of a request has a limit, and beyond it an error with both sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from coordinator import sizes
from coordinator.sizes import refuse_oversized
from protos import coordinator_pb2
from protos.errors import DliteError, InvalidRequest, TooLarge
from tests.coordinator_fakes import TableEngine
from tests.coordinator_harness import TablePort, make_coordinator, request

STRINGS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


def fields(descriptor: Descriptor, prefix: str = "") -> Iterator[tuple[str, FieldDescriptor]]:
    """Every field of a message, nested ones by path."""
    for field in descriptor.fields:
        yield prefix + field.name, field
        if field.message_type is not None and not sizes.is_map(field):
            yield from fields(field.message_type, f"{prefix}{field.name}.")


ALL = dict(fields(coordinator_pb2.GenerateRequest.DESCRIPTOR))


def test_every_list_and_every_string_of_the_schema_has_a_limit() -> None:
    lists = {path for path, field in ALL.items() if field.is_repeated}
    strings = {path for path, field in ALL.items() if field.type in STRINGS}
    assert lists == set(sizes.COUNTS)
    assert strings == set(sizes.LENGTHS) | sizes.TEXTS


def message_with(path: str, value: Any) -> coordinator_pb2.GenerateRequest:
    """A request with one field set; for a list, `value` is its entries."""
    message = coordinator_pb2.GenerateRequest()
    target: Any = message
    *parents, name = path.split(".")
    for parent in parents:
        inner = getattr(target, parent)
        target = inner.add() if hasattr(inner, "add") else inner
    if sizes.is_map(ALL[path]):
        getattr(target, name).update(dict.fromkeys(range(len(value)), 1.0))
    elif ALL[path].is_repeated and ALL[path].message_type is not None:
        for _ in value:
            getattr(target, name).add()
    elif ALL[path].is_repeated:
        getattr(target, name).extend(value)
    else:
        setattr(target, name, value)
    return message


@pytest.mark.parametrize("path", sizes.COUNTS)
def test_a_list_beyond_its_limit(path: str) -> None:
    most = sizes.COUNTS[path]
    entry: Any = "x" if ALL[path].type in STRINGS else 1
    refuse_oversized(message_with(path, [entry] * min(most, 10_000)))
    with pytest.raises(InvalidRequest, match=f"{most + 1} entries, at most {most}") as caught:
        refuse_oversized(message_with(path, [entry] * (most + 1)))
    assert caught.value.field == path


@pytest.mark.parametrize("path", sizes.LENGTHS)
def test_a_name_beyond_its_limit(path: str) -> None:
    most = sizes.LENGTHS[path]

    def text(length: int) -> Any:
        value: Any = "x" * length if ALL[path].type == FieldDescriptor.TYPE_STRING else b"x" * length
        return [value] if ALL[path].is_repeated else value

    refuse_oversized(message_with(path, text(most)))
    with pytest.raises(InvalidRequest, match=f"{most + 1} characters, at most {most}") as caught:
        refuse_oversized(message_with(path, text(most + 1)))
    assert caught.value.field == path


@pytest.mark.parametrize("path", sorted(sizes.TEXTS))
def test_text_beyond_its_limit(path: str) -> None:
    def text(length: int) -> Any:
        return ["x" * length] if ALL[path].is_repeated else "x" * length

    most = sizes.MAX_TEXT_BYTES
    refuse_oversized(message_with(path, text(most)))
    with pytest.raises(TooLarge, match=f"{most + 1} bytes.*at most {most}") as caught:
        refuse_oversized(message_with(path, text(most + 1)))
    assert caught.value.field == path


def test_texts_count_together_and_in_bytes() -> None:
    message = coordinator_pb2.GenerateRequest()
    for _ in range(5):
        message.messages.add(role="user", content="é" * (sizes.MAX_TEXT_BYTES // 8))
    with pytest.raises(TooLarge) as caught:
        refuse_oversized(message)
    assert caught.value.field == "messages.content"


async def test_the_coordinator_looks_before_anything_else() -> None:
    coordinator = make_coordinator(TablePort(TableEngine()))
    for message in (request(prompt="x" * (sizes.MAX_TEXT_BYTES + 1)), request(stop=["x"] * 65)):
        with pytest.raises(DliteError, match="at most"):
            await coordinator.admit(message)
    with pytest.raises(TooLarge):
        await coordinator.tokenize(coordinator_pb2.TokenizeRequest(prompt="x" * (sizes.MAX_TEXT_BYTES + 1)))
    assert coordinator.info().num_running == 0
