"""Tenants: names of their own, quotas, turns at the places, pages that no other finds (CLUSTER, security)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from coordinator.slots import QUANTUM_TOKENS, Demand, Place, Slots
from coordinator.tenants import Quotas, TenantLimits, Tenants, prefix_salt, read_tenants, scoped
from protos.errors import Busy, InvalidRequest


def tenants(**limits: dict[str, Any]) -> Tenants:
    return Tenants({name: TenantLimits.model_validate(values) for name, values in limits.items()})


def enter(slots: Slots, tenant: str, count: int, num_tokens: int = 100) -> list[Place]:
    return [slots.enter(1, Demand(tenant, 0, num_tokens)) for _ in range(count)]


def served(slots: Slots, waiting: list[Place], running: list[Place], count: int) -> list[str]:
    """Whose requests start when running ones end one after the other."""
    order = []
    for place in running[:count]:
        before = {id(each) for each in waiting if each.is_granted}
        place.leave()
        order += [each.demand.tenant for each in waiting if each.is_granted and id(each) not in before]
    return order


def test_a_flood_waits_behind_itself() -> None:
    slots = Slots(4, 100)
    flood = enter(slots, "flood", 60)
    other = enter(slots, "other", 3)
    order = served(slots, flood + other, flood, 8)
    # Whose turn it is when the other comes may take it, and its rest; then they take turns.
    assert order.count("other") == 3
    assert order[:3].count("other") >= 1


def test_places_go_by_weight_and_by_tokens_not_by_requests() -> None:
    slots = Slots(1, 1000, tenants(heavy={"weight": 3}).limits_of)
    first = slots.enter(1, Demand("first"))
    big = enter(slots, "heavy", 300, int(8 * QUANTUM_TOKENS))
    small = enter(slots, "light", 300, int(2 * QUANTUM_TOKENS))
    tokens = {"heavy": 0, "light": 0}
    running = first
    for _ in range(140):
        before = {id(each) for each in big + small if each.is_granted}
        running.leave()
        (running,) = [each for each in big + small if each.is_granted and id(each) not in before]
        tokens[running.demand.tenant] += running.demand.num_tokens
    assert tokens["heavy"] / tokens["light"] == pytest.approx(3.0, rel=0.1)


def test_a_tenant_without_work_saves_no_credit() -> None:
    slots = Slots(1, 100)
    running = slots.enter(1, Demand("a"))
    for _ in range(50):  # turns that nobody else could use
        following = slots.enter(1, Demand("b", 0, 10))
        running.leave()
        running = following
    b, c = enter(slots, "b", 20, 600), enter(slots, "c", 20, 600)
    order: list[str] = []
    for _ in range(10):
        order += served(slots, b + c, [running], 1)
        running = next(each for each in b + c if each.is_granted and each in slots._granted)
    assert abs(order.count("b") - order.count("c")) <= 2


def test_texts_and_pages_of_a_tenant_are_bounded() -> None:
    slots = Slots(8, 10, tenants(small={"max_running": 2, "max_pages": 10}).limits_of)
    pages = [slots.enter(1, Demand("small", 6)) for _ in range(2)]
    assert [place.is_granted for place in pages] == [True, False]
    assert slots.enter(1, Demand("other", 600)).is_granted
    pages[0].leave()
    assert pages[1].is_granted
    texts = enter(slots, "small", 3)
    assert [place.is_granted for place in texts] == [True, False, False]
    with pytest.raises(InvalidRequest, match="11 pages, the tenant has 10") as caught:
        slots.enter(1, Demand("small", 11))
    assert caught.value.field == "max_tokens"
    with pytest.raises(InvalidRequest, match="at most 2 texts"):
        slots.enter(3, Demand("small"))


def test_a_full_queue_is_its_tenants_own() -> None:
    slots = Slots(1, 3, tenants(short={"max_waiting": 1, "max_running": 1}).limits_of)
    enter(slots, "flood", 4)
    with pytest.raises(Busy, match="3 requests wait"):
        enter(slots, "flood", 1)
    enter(slots, "other", 1)
    enter(slots, "short", 1)
    with pytest.raises(Busy, match="at most 1"):
        slots.require_room(1, "short")


@pytest.mark.parametrize("seed", range(5))
def test_any_course_keeps_the_invariant(seed: int) -> None:
    rng = random.Random(seed)
    limits = tenants(a={"max_running": 2}, b={"max_pages": 9, "weight": 2.5})
    slots = Slots(5, 20, limits.limits_of)
    there: list[Place] = []
    for _ in range(400):
        if rng.random() < 0.55:
            name = rng.choice("abcd")
            demand = Demand(name, rng.randint(0, 4), rng.randint(1, 5000))
            try:
                there.append(slots.enter(rng.randint(1, 2), demand))
            except Busy:
                assert sum(p.demand.tenant == name and not p.is_granted for p in there) == 20
        elif there:
            there.pop(rng.randrange(len(there))).leave()
        granted = [place for place in there if place.is_granted]
        assert slots.num_used == sum(place.num_texts for place in granted) <= 5
        assert sum(place.num_texts for place in granted if place.demand.tenant == "a") <= 2
        assert sum(place.demand.num_pages for place in granted if place.demand.tenant == "b") <= 9
        assert slots.num_waiting == len(there) - len(granted)
        if slots.num_waiting and slots.num_used <= 3:  # a free pair of places waits for a limit alone
            waiting = {place.demand.tenant for place in there if not place.is_granted}
            assert waiting <= {"a", "b"}
    for place in there:
        place.leave()
    assert (slots.num_used, slots.num_waiting) == (0, 0)


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_requests_and_tokens_a_minute() -> None:
    clock = Clock()
    quotas = Quotas(tenants(a={"requests_per_minute": 6}, b={"tokens_per_minute": 600}), clock)
    for _ in range(6):
        quotas.admit("a")
    with pytest.raises(Busy, match="6 requests a minute") as caught:
        quotas.admit("a")
    assert caught.value.retry_after_seconds == 10.0
    clock.seconds = 10.0
    quotas.admit("a")
    quotas.admit("b")
    quotas.note_tokens("b", 1500)
    with pytest.raises(Busy, match="600 tokens a minute") as caught:
        quotas.admit("b")
    assert caught.value.retry_after_seconds == pytest.approx(90.1, abs=0.1)
    clock.seconds += 91
    quotas.admit("b")
    for _ in range(1000):
        quotas.admit("c")


def test_names_are_each_tenants_own() -> None:
    assert scoped("", "a:b") == "a:b"
    assert scoped("a", "b") != scoped("a.b", "")
    assert len({prefix_salt(name) for name in ("", "a", "b")}) == 3
    assert prefix_salt("") == b""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tenants: {a: {max_runing: 1}}", "tenants.a.max_runing"),
        ("tenants: {a: {max_running: 0}}", "tenants.a.max_running"),
        ("tenants: [a]", "must be a mapping"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=message):
        read_tenants(path)


def test_limits_are_read_and_default_for_who_is_not_named(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text("tenants: {default: {max_running: 8}, a: {weight: 2}}")
    found = read_tenants(path)
    assert found.limits_of("a") == TenantLimits(weight=2)
    assert found.limits_of("somebody").max_running == 8
    assert Tenants().limits_of("somebody") == TenantLimits()
