"""Places at the target: a bound, a queue, first come first served."""

from __future__ import annotations

import asyncio
import random

import pytest

from coordinator.slots import Place, Slots
from protos.errors import Busy, InvalidRequest


def test_places_are_granted_at_once_up_to_the_capacity() -> None:
    slots = Slots(3, 2)
    places = [slots.enter(1) for _ in range(5)]
    assert [place.is_granted for place in places] == [True, True, True, False, False]
    assert (slots.num_used, slots.num_waiting) == (3, 2)


def test_a_full_queue_says_the_numbers_and_when_to_retry() -> None:
    slots = Slots(1, 1)
    slots.enter(1)
    slots.enter(1)
    with pytest.raises(Busy, match=r"1 texts are running, at most 1; 1 requests wait, at most 1") as caught:
        slots.enter(1)
    assert caught.value.retry_after_seconds == 1.0
    assert slots.num_waiting == 1


def test_more_texts_than_places_can_never_run() -> None:
    with pytest.raises(InvalidRequest, match="at most 4") as caught:
        Slots(4, 10).enter(5)
    assert caught.value.field == "n"


async def test_a_request_of_many_texts_is_not_overtaken() -> None:
    slots = Slots(3, 10)
    first = [slots.enter(1), slots.enter(1)]
    many, single = slots.enter(3), slots.enter(1)
    assert not many.is_granted
    assert not single.is_granted
    first[0].leave()
    assert not many.is_granted
    first[1].leave()
    assert many.is_granted
    assert not single.is_granted
    many.leave()
    many.leave()  # twice does no harm
    await asyncio.wait_for(single.wait(), 1)
    assert slots.num_used == 1


def test_who_leaves_the_queue_makes_room_for_those_behind() -> None:
    slots = Slots(2, 10)
    held = slots.enter(1)
    many, single = slots.enter(2), slots.enter(1)
    many.leave()
    assert single.is_granted
    held.leave()
    single.leave()
    assert (slots.num_used, slots.num_waiting) == (0, 0)


def test_random_arrivals_keep_the_invariant() -> None:
    rng = random.Random(1)
    slots = Slots(5, 8)
    there: list[Place] = []
    for _ in range(2000):
        if rng.random() < 0.5 and there:
            there.pop(rng.randrange(len(there))).leave()
        else:
            try:
                there.append(slots.enter(rng.randint(1, 5)))
            except Busy:
                assert slots.num_waiting == 8
        granted = [place for place in there if place.is_granted]
        waiting = [place for place in there if not place.is_granted]
        assert slots.num_used == sum(place.num_texts for place in granted) <= 5
        assert slots.num_waiting == len(waiting) <= 8
        assert not waiting or slots.num_used + waiting[0].num_texts > 5
    for place in there:
        place.leave()
    assert (slots.num_used, slots.num_waiting) == (0, 0)
