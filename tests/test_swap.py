"""Other drafter weights under load: what is compared, when they stay, and the way back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from coordinator.draft_pool import DraftPool
from coordinator.swap import CERTAIN_EARLY, Acceptance, compare
from coordinator.swap_job import Swap, SwapOptions, SwapResult, describe_result
from coordinator.trace.feed import RoundFeed
from protos import coordinator_pb2 as pb
from protos.errors import InvalidRequest, TimedOut, Unavailable
from tests.coordinator_harness import complete, describe_drafter, request
from tests.test_pooled_rounds import COSTS, FIXED, TEXT
from tests.timed_pair import TimedTarget, run_jumping
from tests.wired_drafters import WiredDrafter, coordinator_of, right_with, wired_pool

OPTIONS = SwapOptions(num_rounds=400, watch_seconds=60.0, connect_seconds=2.0, look_seconds=0.05)


def drawn(chances: Sequence[float], num_rounds: int, seed: int) -> Acceptance:
    """A window of rounds in which proposal `j` is accepted with `chances[j - 1]`."""
    draw = random.Random(seed).random
    reached, accepted = [0] * len(chances), [0] * len(chances)
    num_tokens = 0
    for _ in range(num_rounds):
        num_tokens += 1
        for index, chance in enumerate(chances):
            reached[index] += 1
            if draw() >= chance:
                break
            accepted[index] += 1
            num_tokens += 1
    return Acceptance(num_rounds, num_tokens, tuple(reached), tuple(accepted))


def test_tau_is_the_mean_accept_length() -> None:
    window = drawn([0.7, 0.6, 0.5], 5000, 1)
    found = compare(window, drawn([0.7, 0.6, 0.5], 5000, 2), 0.05)
    assert found is not None
    assert found.before == pytest.approx(window.num_tokens / window.num_rounds)
    assert found.before == pytest.approx(1 + 0.7 + 0.42 + 0.21, abs=0.06)
    assert found.num_positions == 3


def test_a_swap_is_judged_by_acceptance_not_by_how_much_was_verified() -> None:
    """The tuner may verify less of the new drafts: tau is compared up to the same position."""
    before, after = drawn([0.7, 0.6, 0.5, 0.5, 0.5], 2000, 1), drawn([0.7, 0.6], 2000, 2)
    found = compare(before, after, 0.05)
    assert found is not None
    assert found.num_positions == 2
    assert not found.is_worse()
    assert before.num_tokens > 1.15 * after.num_tokens


@pytest.mark.parametrize("num_rounds", [200, 500, 2000])
def test_equal_drafters_are_hardly_ever_worse_and_useless_ones_always(num_rounds: int) -> None:
    wrongly, rightly = 0, 0
    for seed in range(200):
        before = drawn([0.6, 0.6, 0.6], num_rounds, seed)
        same = compare(before, drawn([0.6, 0.6, 0.6], num_rounds, seed + 1000), 0.05)
        useless = compare(before, drawn([0.2, 0.2, 0.2], num_rounds, seed + 2000), 0.05)
        assert same is not None
        assert useless is not None
        wrongly += same.is_worse()
        rightly += useless.is_worse(CERTAIN_EARLY)
    assert wrongly <= 6, "chance explains a difference of up to two standard errors"
    assert rightly == 200


def test_what_says_too_little_is_not_compared() -> None:
    assert compare(Acceptance(), drawn([0.5], 1000, 1), 0.05) is None
    assert compare(drawn([0.5], 10, 1), drawn([0.5], 1000, 1), 0.05) is None


def test_windows_are_differences() -> None:
    sums = [
        pb.DraftSums(
            fingerprint="a", num_rounds=5, reached_per_position=[5, 3], accepted_per_position=[3, 1]
        ),
        pb.DraftSums(fingerprint="b", num_rounds=2, reached_per_position=[2], accepted_per_position=[2]),
        pb.DraftSums(fingerprint="c", num_rounds=9, reached_per_position=[9], accepted_per_position=[9]),
    ]
    both = Acceptance.of(sums, ["a", "b"])
    assert both == Acceptance(7, 0, (7, 3), (5, 1))
    assert both.since(Acceptance.of(sums, ["b"])) == Acceptance(5, 0, (5, 3), (3, 1))


@dataclass
class InProcess:
    """An `Operator` of a pool here."""

    pool: DraftPool
    feed: RoundFeed
    asked: list[tuple[str, ...]] = field(default_factory=list)
    fails_at: int = 0
    error: BaseException = field(default_factory=lambda: Unavailable("gone for a moment"))

    async def list_replicas(self) -> pb.ListReplicasResponse:
        return pb.ListReplicasResponse(replicas=self.pool.replicas(), drafts=self.feed.draft_sums())

    async def set_drafters(self, addresses: Sequence[str]) -> None:
        self.asked.append(tuple(addresses))
        if len(self.asked) == self.fails_at:
            raise self.error
        self.pool.set_addresses(addresses)


CHANCES = {"old": 0.6, "better": 0.8, "same": 0.6, "worse": 0.3}


def _swap(
    new: str, options: SwapOptions = OPTIONS, error: BaseException | None = None, **fields: Any
) -> tuple[SwapResult | BaseException, InProcess]:
    """A swap while texts run without end; every text that ends must be the target's own."""

    async def work() -> tuple[SwapResult | BaseException, InProcess]:
        target = TimedTarget(COSTS)
        drafters = {
            name: WiredDrafter(
                propose=right_with(target, chance), describe=describe_drafter(fingerprint=name)
            )
            for name, chance in CHANCES.items()
        }
        drafters["unfit"] = WiredDrafter(describe=describe_drafter(vocab_size=7))
        drafters["gone"] = WiredDrafter()
        drafters["gone"].is_up = False
        pool = wired_pool(drafters)
        pool.set_addresses(["old"])
        coordinator = coordinator_of(target, pool)
        is_over = False
        num_ended = 0

        async def traffic(name: str) -> None:
            nonlocal num_ended
            while not is_over:
                message = request(request_id=f"{name}-{num_ended}", max_tokens=len(TEXT), **fields)
                answer, _, failure = await complete(coordinator, message)
                assert failure is None
                assert answer.token_ids == TEXT
                num_ended += 1

        load = [asyncio.create_task(traffic(f"t{i}")) for i in range(4)]
        operator = InProcess(pool, coordinator.feed)
        if error is not None:
            operator.fails_at, operator.error = 2, error
        now = asyncio.get_running_loop().time
        await asyncio.sleep(0.1)
        found: SwapResult | BaseException
        try:
            found = await Swap(operator, options, lambda _: None, now=now).run([new])
        except (InvalidRequest, TimedOut, Unavailable, asyncio.CancelledError) as raised:
            found = raised
        is_over = True
        await asyncio.gather(*load)
        assert num_ended >= len(load)
        await asyncio.sleep(5.0)
        return found, operator

    found: tuple[SwapResult | BaseException, InProcess] = run_jumping(work)
    return found


def serving(operator: InProcess) -> list[str]:
    return [each.address for each in operator.pool.replicas()]


@pytest.mark.parametrize("new", ["better", "same"])
def test_a_drafter_that_is_not_worse_stays(new: str) -> None:
    found, operator = _swap(new, **FIXED)
    assert isinstance(found, SwapResult), found
    assert found.is_kept, found.reason
    assert serving(operator) == [new]
    assert operator.asked == [("old", new), (new,)], "the old ones go when the new ones serve"
    document = describe_result(found)
    assert document["rounds_before"] >= 400  # type: ignore[operator]
    assert document["rounds_after"] >= 400  # type: ignore[operator]
    if new == "better":
        assert document["accept_length_after"] > document["accept_length_before"]  # type: ignore[operator]


def test_a_worse_drafter_is_sent_back_by_itself_under_load() -> None:
    found, operator = _swap("worse", **FIXED)
    assert isinstance(found, SwapResult), found
    assert not found.is_kept
    assert "accept length" in found.reason
    assert operator.asked[-1] == ("old",)
    assert serving(operator) == ["old"]
    assert found.after.num_rounds < 400, "what is plain is not watched to the end"


def test_under_the_tuner_too() -> None:
    found, operator = _swap("worse")
    assert isinstance(found, SwapResult), found
    assert not found.is_kept
    assert serving(operator) == ["old"]


@pytest.mark.parametrize(("new", "why"), [("unfit", "refused"), ("gone", "does not serve within 2 s")])
def test_new_drafters_that_do_not_serve_change_nothing(new: str, why: str) -> None:
    found, operator = _swap(new, **FIXED)
    assert isinstance(found, SwapResult), found
    assert not found.is_kept
    assert why in found.reason
    assert operator.asked[-1] == ("old",)
    assert all("old" in asked for asked in operator.asked), "the old ones were never away"
    assert serving(operator) == ["old"]


@pytest.mark.parametrize("error", [Unavailable("gone for a moment"), asyncio.CancelledError()])
def test_a_failure_in_the_middle_brings_the_old_ones_back(error: BaseException) -> None:
    found, operator = _swap("better", error=error, **FIXED)
    assert found is error
    assert operator.asked[-1] == ("old",)
    assert serving(operator) == ["old"]


def test_without_load_nothing_is_changed_and_without_a_comparison_anything() -> None:
    off = {"mode": pb.SPECULATION_MODE_OFF}
    found, operator = _swap("better", SwapOptions(400, watch_seconds=1.0), **off)
    assert isinstance(found, TimedOut)
    assert operator.asked == []
    found, operator = _swap("worse", SwapOptions(0, look_seconds=0.05), **off)
    assert isinstance(found, SwapResult)
    assert found.is_kept
    assert serving(operator) == ["worse"]


def test_the_same_drafters_are_no_swap() -> None:
    found, operator = _swap("old", **FIXED)
    assert isinstance(found, InvalidRequest)
    assert operator.asked == []
