"""Builds of one major protocol work together; another major is refused in plain words (CLUSTER).

`versions/protocol_1_0.binpb` is the schema as it was when the protocol was 1.0 (`protoc --include_imports
--descriptor_set_out`). Whatever passes through an old build's classes has lost what the old build does not
know: that is all the wire shows of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from coordinator.client import Answer, AsyncClient
from coordinator.pairing import check_protocol
from deploy.asking import plain_arm
from deploy.bench.fault_load import texts_of
from deploy.bench.fault_proxy import Change
from protos import common_pb2, coordinator_pb2, draft_pb2, rpc, target_pb2
from protos.errors import ContractMismatch, Unavailable
from tests.fault_world import PROMPTS, between, coordinator, models

OLD = Path(__file__).parent / "versions" / "protocol_1_0.binpb"
PACKAGE = "dlite.v1."
# Of every method that a test sends messages through.
METHODS = {
    "/dlite.v1.Target/Decode": ("TargetCommand", "TargetEvent"),
    "/dlite.v1.Draft/Propose": ("ProposeBatch", "ProposalBatch"),
    "/dlite.v1.Coordinator/Generate": ("GenerateRequest", "GenerateResponse"),
}
MODULES = (common_pb2, draft_pb2, target_pb2, coordinator_pb2)
# A field of a number that nobody has given out, with three bytes in it.
UNKNOWN = b"\xfa\xfa\x03\x03new"
Edit = Callable[[str, bytes], bytes]
# Of the same texts without anybody in the middle.
EXPECTED: list[list[int]] = []


@cache
def old_files() -> descriptor_pb2.FileDescriptorSet:
    return descriptor_pb2.FileDescriptorSet.FromString(OLD.read_bytes())


@cache
def old_pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for file in old_files().file:
        pool.Add(file)
    return pool


def old_class(name: str) -> type[Message]:
    return message_factory.GetMessageClass(old_pool().FindMessageTypeByName(PACKAGE + name))


def new_class(name: str) -> type[Message]:
    found: type[Message]
    (found,) = [getattr(module, name) for module in MODULES if hasattr(module, name)]
    return found


def through_old(name: str, data: bytes) -> bytes:
    """What an old build reads of it, and would write."""
    message = old_class(name).FromString(data)
    message.DiscardUnknownFields()
    return message.SerializeToString()


def with_more(name: str, data: bytes) -> bytes:
    """As a later build would write it: a field that nobody knows in every message, nested ones too."""
    message = new_class(name).FromString(data)
    for each in list(parts(message)):
        each.MergeFromString(UNKNOWN)
    return message.SerializeToString()


def with_less(name: str, data: bytes) -> bytes:
    """As a simpler build would write it: without what is only measured."""
    message = new_class(name).FromString(data)
    for each in parts(message):
        for field in ("stamp", "timing", "time_left_ms", "cohort", "cached_tokens", "progress"):
            if field in each.DESCRIPTOR.fields_by_name:
                each.ClearField(field)
    return message.SerializeToString()


def parts(message: Any) -> Iterator[Message]:
    """A message and all that are in it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in value if field.is_repeated else (value,):
            yield from parts(each)


def protocol(**change: int) -> Edit:
    """Whoever says Hello or Welcome is of another version."""

    def edit(name: str, data: bytes) -> bytes:
        if name.startswith("Generate"):
            return data
        message: Any = new_class(name).FromString(data)
        body = message.WhichOneof("body")
        place = message.hello if body == "hello" else message.welcome.describe if body == "welcome" else None
        if place is not None:
            for field, value in change.items():
                setattr(place.protocol, field, value)
        return bytes(message.SerializeToString())

    return edit


class Build:
    """Stands for a build in the middle: `edit` is what it makes of each message."""

    def __init__(self, edit: Edit) -> None:
        self._edit = edit
        self.num_messages = 0

    def ways(self, method: str) -> tuple[Change, Change] | None:
        if method not in METHODS:
            return None

        def way(name: str) -> Change:
            def change(data: bytes, _stream: int) -> Iterator[tuple[float, bytes]]:
                self.num_messages += 1
                yield 0.0, self._edit(name, data)

            return change

        to_service, from_service = METHODS[method]
        return way(to_service), way(from_service)

    def forget(self, stream: int) -> None:
        """Nothing is remembered."""


async def answers(*edits: Edit) -> list[Answer]:
    """Texts through the services, with these builds before target, drafter and coordinator."""
    builds = [Build(edit) for edit in edits]
    async with AsyncExitStack() as entered:
        target, draft = await entered.enter_async_context(models())
        if builds:
            target = (await entered.enter_async_context(between(builds[0], target))).address
            draft = (await entered.enter_async_context(between(builds[1], draft))).address
        address = (await entered.enter_async_context(coordinator(target, draft))).address
        if builds:
            address = (await entered.enter_async_context(between(builds[2], address))).address
        client = await entered.enter_async_context(AsyncClient(address))
        found = []
        for text in texts_of(PROMPTS[:2], 24):
            found.append(await client.complete(text.request()))
            found.append(await client.complete(text.request(speculation=plain_arm().speculation)))
    assert all(build.num_messages for build in builds)
    return found


@pytest.mark.parametrize("edit", [through_old, with_more, with_less])
async def test_the_other_side_may_be_older_or_newer(edit: Edit) -> None:
    """At every service at once: commands, events, questions, proposals, requests and answers."""
    if not EXPECTED:
        EXPECTED.extend(answer.token_ids for answer in await answers())
    got = await answers(edit, edit, edit)
    assert [answer.token_ids for answer in got] == EXPECTED
    drafted = [answer for answer in got if answer.usage.accepted_tokens]
    assert drafted, "the drafter of another build is used"


def test_an_old_build_loses_what_it_does_not_know_and_a_new_one_keeps_it() -> None:
    """The edits do what they are for."""
    command = target_pb2.TargetCommand(hello=common_pb2.Hello(coordinator_id="c"))
    newer = with_more("TargetCommand", command.SerializeToString())
    assert newer.count(UNKNOWN) == 2
    assert through_old("TargetCommand", newer) == command.SerializeToString()
    stamped = target_pb2.TargetCommand(stamp=common_pb2.Stamp(sent_ns=5), hello=command.hello)
    assert with_less("TargetCommand", stamped.SerializeToString()) == command.SerializeToString()


def test_no_field_of_the_old_schema_has_changed_or_gone() -> None:
    """The law behind it: numbers, names and types stay; methods stay."""
    for file in old_files().file:
        for message in file.message_type:
            descriptor = new_class(message.name).DESCRIPTOR
            old = old_class(message.name).DESCRIPTOR
            for field in old.fields:
                same = descriptor.fields_by_number[field.number]
                assert (same.name, same.type, same.is_repeated) == (field.name, field.type, field.is_repeated)
        for enum in file.enum_type:
            (now,) = [getattr(m, enum.name).DESCRIPTOR for m in MODULES if hasattr(m, enum.name)]
            assert {v.name: v.number for v in enum.value}.items() <= {
                v.name: v.number for v in now.values
            }.items()
        for service in file.service:
            (now,) = [
                m.DESCRIPTOR.services_by_name[service.name]
                for m in MODULES
                if service.name in m.DESCRIPTOR.services_by_name
            ]
            for method in service.method:
                found = now.methods_by_name[method.name]
                assert found.input_type.full_name == method.input_type.lstrip(".")
                assert found.output_type.full_name == method.output_type.lstrip(".")


async def test_another_minor_version_is_taken() -> None:
    edit = protocol(minor=7)
    got = await answers(edit, edit, edit)
    assert any(answer.usage.accepted_tokens for answer in got)


async def refusal_of(address: str, method: str, message: Message) -> tuple[grpc.StatusCode, str]:
    """How a service ends a stream that begins with this message."""
    async with rpc.open_channel(address) as channel:
        kind: Any = channel.stream_stream(method)
        call = kind(timeout=30)
        await call.write(message.SerializeToString())
        with contextlib.suppress(grpc.aio.AioRpcError):
            while isinstance(await call.read(), bytes):
                pass
        return await call.code(), await call.details()


async def test_a_service_refuses_a_coordinator_of_another_major_version() -> None:
    major = rpc.PROTOCOL_MAJOR + 1
    other = common_pb2.Protocol(major=major)
    hello = common_pb2.Hello(coordinator_id="c", stream_generation=1, protocol=other)
    async with models() as (target, draft):
        found = [
            await refusal_of(target, "/dlite.v1.Target/Decode", target_pb2.TargetCommand(hello=hello)),
            await refusal_of(draft, "/dlite.v1.Draft/Propose", draft_pb2.ProposeBatch(hello=hello)),
        ]
    for code, details in found:
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert f"protocol {major}" in details
        assert str(rpc.PROTOCOL_MAJOR) in details


def test_a_coordinator_refuses_a_service_of_another_major_version() -> None:
    said = ""
    try:
        check_protocol(common_pb2.Describe(protocol=common_pb2.Protocol(major=2)), 1)
    except ContractMismatch as error:
        said = str(error)
    assert "speaks protocol 2, this coordinator speaks 1" in said


async def test_a_drafter_of_another_major_version_is_a_warning_and_texts_go_on() -> None:
    async with (
        models() as (target, draft),
        between(Build(protocol(major=2)), draft) as proxy,
        coordinator(target, proxy.address) as running,
        AsyncClient(running.address) as client,
    ):
        info = await client.server_info()
        answer = await client.complete(texts_of(PROMPTS[:1], 8)[0].request())
    assert not info.drafter_connected
    assert any("protocol 2" in warning for warning in info.warnings), list(info.warnings)
    assert len(answer.token_ids) == 8


async def test_a_target_of_another_major_version_is_no_target() -> None:
    said = ""
    async with models() as (target, draft), between(Build(protocol(major=2)), target) as proxy:
        try:
            async with coordinator(proxy.address, draft, connect_seconds=3.0):
                pass
        except Unavailable as error:
            said = str(error)
    assert "protocol 2" in said
