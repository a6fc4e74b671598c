"""Targets are taken out and put in while texts run: no text is lost, and none changes."""

from __future__ import annotations

import asyncio
import random

import pytest

from protos import coordinator_pb2 as pb
from tests.target_world import Running, World, settles
from tests.test_target_pool import COUNT, PROMPTS, all_end_with_their_text, several


async def test_a_target_that_drains_gets_no_new_text_and_is_gone_when_its_texts_have_ended() -> None:
    world = World("ab", drain_seconds=60.0)
    world.hold()
    texts = await several(world, 4)
    world.members.set_addresses(["b"])
    late = [
        await world.start(request_id=f"late{index}", token_ids=PROMPTS[index], max_tokens=COUNT)
        for index in range(4)
    ]
    assert world.num_texts == {"a": 2, "b": 6}
    assert [each.state for each in world.members.replicas()] == [
        pb.REPLICA_STATE_DRAINING,
        pb.REPLICA_STATE_SERVING,
    ]
    world.release()
    await all_end_with_their_text([*texts, *late])
    await settles(lambda: [each.address for each in world.members] == ["b"])
    assert not world["a"].is_connected
    assert all(text.answer.finished.ledger.num_reopens == 0 for text in texts)


@pytest.mark.parametrize("num_right", [None, 2])
async def test_texts_that_take_too_long_move_and_free_what_they_held(num_right: int | None) -> None:
    world = World("ab", num_right, drain_seconds=0.02)
    world.hold()
    texts = await several(world, 4)
    world.members.set_addresses(["b"])
    await settles(lambda: world.num_texts == {"a": 0, "b": 4})
    await settles(lambda: [each.address for each in world.members] == ["b"])
    assert [kind for _, kind in world["a"].engine.log].count("close") == 2
    world.release()
    await all_end_with_their_text(texts)
    assert sorted(text.answer.finished.ledger.num_reopens for text in texts) == [0, 0, 1, 1]


async def test_the_same_list_again_changes_nothing_and_an_address_may_come_back() -> None:
    world = World("ab", drain_seconds=60.0)
    world.hold()
    texts = await several(world, 2)
    before = world["a"]
    world.members.set_addresses(["b"])
    world.members.set_addresses(["b"])
    assert len(world.members) == 2
    world.members.set_addresses(["a", "b"])
    await asyncio.sleep(0)
    assert all(each.is_serving for each in world.members)
    assert world["a"] is before
    world.release()
    await all_end_with_their_text(texts)
    await asyncio.sleep(0.05)
    assert len(world.members) == 2


async def test_the_last_target_stays_until_another_one_serves() -> None:
    world = World("a", drain_seconds=0.0)
    world.hold()
    texts = await several(world, 2)
    # Its successor is still loading its weights.
    world.loading = True
    world.members.set_addresses(["b"])
    await asyncio.sleep(0.05)
    assert world.coordinator.is_ready
    texts.append(await world.start(request_id="meanwhile", token_ids=PROMPTS[9], max_tokens=COUNT))
    assert world.num_texts == {"a": 3, "b": 0}
    world["b"].is_held = True
    world["b"].come()
    await settles(lambda: world.num_texts == {"a": 0, "b": 3})
    await settles(lambda: len(world.members) == 1)
    world.release()
    await all_end_with_their_text(texts)


async def test_lists_that_change_all_the_time_lose_no_text() -> None:
    draw = random.Random(3)
    world = World("abcd", num_right=3, drain_seconds=0.0)
    running: list[Running] = []
    for index in range(40):
        if index % 3 == 0:
            there = draw.sample("abcd", draw.randint(1, 4))
            world.members.set_addresses(there)
        elif index % 7 == 0:
            serving = [each for each in world.members if each.is_serving]
            if len(serving) > 1:
                world[draw.choice(serving).address].lose()
        for port in world.ports.values():
            port.is_held = draw.random() < 0.5
        running.append(
            await world.start(request_id=f"r{index}", token_ids=PROMPTS[index % 50], max_tokens=COUNT)
        )
        for port in world.ports.values():
            if not port.is_connected:
                port.come()
            if draw.random() < 0.5:
                port.release()
    world.release()
    await all_end_with_their_text(running)
    assert sum(text.answer.finished.ledger.num_reopens for text in running) > 5
