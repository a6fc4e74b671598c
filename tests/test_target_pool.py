"""Which target a text goes to, and that it goes on elsewhere when that one is gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator.affinity import SLACK_TEXTS
from coordinator.breaker import Breaker
from protos import coordinator_pb2 as pb
from protos.errors import Busy, Unavailable
from tests.coordinator_fakes import counting
from tests.coordinator_harness import request
from tests.target_world import Running, World, settles

COUNT = 40
TEXT = [counting([0] * index) for index in range(COUNT)]
PROMPTS = [[base] * 40 for base in range(1, 60)]


async def several(world: World, number: int, **fields: Any) -> list[Running]:
    """Texts with nothing in common."""
    return [
        await world.start(request_id=f"r{index}", token_ids=PROMPTS[index], max_tokens=COUNT, **fields)
        for index in range(number)
    ]


async def all_end_with_their_text(texts: list[Running]) -> None:
    for text in texts:
        assert (await text.end()).token_ids == TEXT


async def test_texts_that_share_nothing_go_where_there_is_least_to_do() -> None:
    world = World("abc")
    world.hold()
    texts = await several(world, 9)
    assert world.num_texts == {"a": 3, "b": 3, "c": 3}
    world.release()
    await all_end_with_their_text(texts)
    assert world.num_texts == {"a": 0, "b": 0, "c": 0}


async def test_turns_of_a_session_go_where_the_session_is() -> None:
    world = World("ab")
    world.hold()
    homes = {}
    for name in ("s", "t"):
        text = await world.start(request_id=name, session_id=name, token_ids=PROMPTS[0], max_tokens=2)
        (homes[name],) = world.where(name)
        world.release()
        await text.end()
        world.hold()
    for turn in range(6):
        for name in ("t", "s"):
            tokens = PROMPTS[5 + turn]
            text = await world.start(
                request_id=f"{name}{turn}", session_id=name, token_ids=tokens, max_tokens=2
            )
            assert world.where(f"{name}{turn}") == [homes[name]], f"turn {turn} of {name}"
            world.release()
            await text.end()
            world.hold()


async def test_a_prompt_goes_where_its_beginning_is() -> None:
    world = World("ab")
    world.hold()
    first = await world.start(request_id="first", token_ids=[*PROMPTS[0], 1, 2], max_tokens=COUNT)
    (home,) = world.where("first")
    others = [
        await world.start(request_id=f"o{index}", token_ids=[*PROMPTS[0], *PROMPTS[index]], max_tokens=COUNT)
        for index in (1, 2)
    ]
    assert world.where("o1") == world.where("o2") == [home]
    world.release()
    await all_end_with_their_text([first, *others])


async def test_of_two_tenants_with_one_prompt_neither_draws_the_other() -> None:
    """They share no page either."""
    world = World("ab")
    world.hold()
    message = request(request_id="r", token_ids=PROMPTS[0], max_tokens=COUNT)
    texts = [Running(await world.coordinator.admit(message, tenant)) for tenant in ("x", "y")]
    await settles(lambda: world.num_texts == {"a": 1, "b": 1})
    world.release()
    await all_end_with_their_text(texts)


async def test_a_favourite_with_much_more_to_do_is_passed_over() -> None:
    world = World("ab")
    world.hold()
    texts = [
        await world.start(request_id=f"r{index}", session_id="s", token_ids=PROMPTS[index], max_tokens=COUNT)
        for index in range(SLACK_TEXTS + 2)
    ]
    assert sorted(world.num_texts.values()) == [1, SLACK_TEXTS + 1]
    world.release()
    await all_end_with_their_text(texts)


async def test_choices_of_a_request_share_its_target() -> None:
    world = World("ab")
    world.hold()
    generation = await world.coordinator.admit(
        request(n=8, token_ids=PROMPTS[0], temperature=1.0, max_tokens=5)
    )
    outlet = generation.attach()
    await settles(lambda: sorted(world.num_texts.values()) == [0, 8])
    world.release()
    assert sum([message.HasField("finished") async for message in outlet.messages()]) == 8


@pytest.mark.parametrize("num_right", [None, 0, 3])
async def test_texts_of_a_lost_target_go_on_elsewhere_spread_out(num_right: int | None) -> None:
    world = World("abc", num_right)
    world.hold()
    # All of one session and one beginning: without the loss they would stay together.
    texts = [
        await world.start(request_id=f"r{i}", session_id="s", token_ids=PROMPTS[0], max_tokens=COUNT)
        for i in range(4)
    ]
    (home,) = (name for name, count in world.num_texts.items() if count == 4)
    world[home].lose()
    await settles(lambda: sum(world.num_texts.values()) == 4)
    assert sorted(world.num_texts.values()) == [0, 2, 2]
    for name, port in world.ports.items():
        assert name == home or port.engine.opened == [[*PROMPTS[0], 0]] * 2, "what was committed goes along"
    world.release()
    await all_end_with_their_text(texts)
    assert [text.answer.finished.ledger.num_reopens for text in texts] == [1] * 4


async def test_a_lost_target_is_used_again_when_it_is_back() -> None:
    world = World("ab")
    world.hold()
    world["a"].lose()
    texts = await several(world, 2)
    assert world.num_texts == {"a": 0, "b": 2}
    world["a"].come()
    await asyncio.sleep(Breaker.FIRST_SECONDS + 0.05)
    texts.append(await world.start(request_id="late", token_ids=PROMPTS[30], max_tokens=COUNT))
    assert world.num_texts == {"a": 1, "b": 2}
    world.release()
    await all_end_with_their_text(texts)


async def test_a_target_that_dies_again_and_again_gets_one_text_at_a_time() -> None:
    world = World("ab")
    world.hold()
    for _ in range(2):
        world["a"].lose()
        world["a"].come()
    assert [each.is_favoured for each in world.members] == [False, True]
    texts = await several(world, 3)
    assert world.num_texts == {"a": 0, "b": 3}
    await asyncio.sleep(2 * Breaker.FIRST_SECONDS + 0.05)
    world["a"].is_deaf = True
    probes = await asyncio.gather(
        *(
            world.coordinator.admit(request(token_ids=PROMPTS[40 + index], max_tokens=COUNT))
            for index in range(3)
        )
    )
    texts += [Running(probe) for probe in probes]
    await settles(lambda: world.num_texts["b"] == 5)
    assert [each.num_texts for each in world.members] == [1, 5], "one tries whether it works"
    world["a"].lose()
    world.release()
    await all_end_with_their_text(texts)


async def test_without_any_target_texts_wait_for_the_next_one() -> None:
    world = World("ab")
    world.hold()
    texts = await several(world, 4)
    for port in world.ports.values():
        port.lose()
    assert not world.coordinator.is_ready
    with pytest.raises(Unavailable):
        await world.coordinator.admit(request())
    world["b"].come()
    assert world.coordinator.is_ready
    world.release()
    await all_end_with_their_text(texts)
    assert sorted(world["b"].engine.opened[-4:]) == [[*PROMPTS[index], 0] for index in range(4)]


async def test_patience_with_lost_targets_has_an_end() -> None:
    world = World("ab", target_loss_seconds=0.05)
    world.hold()
    (text,) = await several(world, 1)
    for port in world.ports.values():
        port.lose()
    await settles(text.task.done)
    assert isinstance(text.failure, Unavailable)


async def test_another_model_is_refused_and_the_others_go_on() -> None:
    world = World("abc", describe={"b": {"fingerprint": "0" * 64}, "c": {"tapped_layers": [1, 2]}})
    a, b, c = world.members.replicas()
    assert a.state == pb.REPLICA_STATE_SERVING
    assert b.state == c.state == pb.REPLICA_STATE_REFUSED
    assert "serves" in b.last_error
    assert "taps layers" in c.last_error
    await all_end_with_their_text(await several(world, 3))
    assert not world["b"].engine.log
    assert not world["c"].engine.log


async def test_a_text_goes_where_it_has_room() -> None:
    world = World("abc", describe={"b": {"max_context": 64}})
    world.hold()
    texts = await several(world, 4)
    assert world.num_texts == {"a": 2, "b": 0, "c": 2}
    short = await world.start(request_id="short", token_ids=[1], max_tokens=COUNT)
    assert world.where("short") == ["b"]
    world.release()
    await all_end_with_their_text([*texts, short])


async def test_each_target_brings_its_places() -> None:
    world = World("ab", max_running=2, max_waiting=0)
    world.hold()
    texts = await several(world, 4)
    with pytest.raises(Busy):
        await world.coordinator.admit(request())
    world["a"].lose()
    await settles(lambda: world.num_texts == {"a": 0, "b": 4})
    world.release()
    await all_end_with_their_text(texts)
    world.hold()
    texts = [await world.start(request_id=f"n{index}", max_tokens=COUNT) for index in range(2)]
    with pytest.raises(Busy):
        await world.coordinator.admit(request())
    world.release()
    await all_end_with_their_text(texts)


async def test_each_target_has_a_tuner_of_its_own() -> None:
    world = World("ab", num_right=3)
    first, second = (each.services for each in world.members)
    assert first.cohorts is not second.cohorts
    assert first.epochs is second.epochs
    assert first.feed is second.feed
    world.hold()
    texts = await several(world, 2)
    world.release()
    await all_end_with_their_text(texts)
    for name in "ab":
        address, found = world.members.explain(name)
        assert address == name
        assert found is not None
    stats = world.members.kv_stats()
    assert stats is not None
    assert stats.num_pages == 20
