"""Pages and memory over many requests: a pool of a tenth of the need, cancels, nothing left behind."""

from __future__ import annotations

import random

import pytest
import torch

from coordinator.config import CoordinatorConfig
from protos.errors import InvalidRequest
from target_service import commands as c
from target_service.engine import Engine, StepOutput
from target_service.packing import PackedStep
from tests.fakes import (
    KEY,
    Driver,
    TableTarget,
    limits_for,
    params,
    plain_greedy,
    table_engine,
    tiny_engine,
    tiny_target,
)

COUNTING = torch.eye(50).roll(1, dims=1) * 5.0


def drive(engine: Engine, drivers: list[Driver]) -> None:
    """Verify rounds with poor proposals, all requests at once, until they end."""
    while any(driver.finish_reason is None for driver in drivers):
        idle = {s.key for s in engine.requests.all() if s.active is None}
        for driver in drivers:
            if driver.key in idle and driver.finish_reason is None:
                proposals = [(driver.tokens[-1] * 3 + i) % 61 for i in range(3)]
                driver.take(engine.apply(driver.verify_command(proposals)))
        before = engine.num_rows
        events = engine.step()
        engine.requests.check_integrity()
        for driver in drivers:
            driver.take(events)
        assert engine.num_rows > before, "a step without progress"


def test_a_pool_of_a_tenth_of_the_need() -> None:
    # Ten requests of 60 + 60 tokens need 80 pages of 16; there are 8.
    model = tiny_target("llama")
    prompts = [[(5 * i + seed) % 61 for i in range(60)] for seed in range(10)]
    references = [plain_greedy(model, prompt, 60) for prompt in prompts]
    engine = tiny_engine(model, num_pages=8)
    drivers = [Driver(engine, str(i)) for i in range(10)]
    for driver, prompt in zip(drivers, prompts, strict=True):
        engine.apply(driver.open_command(prompt, params(60)))
    drive(engine, drivers)
    assert [driver.generated for driver in drivers] == references
    assert engine.pool.num_available == 8


def test_thousand_random_cancels_return_every_page() -> None:
    # D17, at every stage the engine has: queued, prefill, verify, run, between rounds, finished.
    rng = random.Random(11)
    engine = table_engine(COUNTING, num_pages=24, prefill_rows=8, max_context=200)
    open_drivers: list[Driver] = []
    for name in range(1000):
        driver = Driver(engine, str(name), epoch=name + 1)
        prompt = [rng.randrange(50) for _ in range(rng.randrange(1, 60))]
        engine.apply(driver.open_command(prompt, params(rng.randrange(1, 40))))
        open_drivers.append(driver)
        for _ in range(rng.randrange(4)):
            events = engine.step()
            engine.requests.check_integrity()
            for other in open_drivers:
                other.take(events)
        idle = {s.key for s in engine.requests.all() if s.active is None and s.finish_reason is None}
        for other in open_drivers:
            if other.key in idle:
                run = c.Run(c.Address(other.key, other.epoch, other.round + 1), other.committed_length, 9)
                command = other.verify_command([1, 2]) if rng.random() < 0.5 else run
                other.round = command.address.round
                other.take(engine.apply(command))
        while len(open_drivers) > rng.randrange(1, 8):
            open_drivers.pop(rng.randrange(len(open_drivers))).close()
            engine.requests.check_integrity()
    for driver in open_drivers:
        driver.close()
    assert engine.pool.num_available == 24
    assert len(engine.requests) == 0


def test_nothing_is_kept_of_finished_requests() -> None:
    # D19: features are held for live requests only, whatever the path to the end was.
    engine = table_engine(COUNTING)
    for name in range(1000):
        driver = Driver(engine, str(name), epoch=name + 1)
        driver.open([1, 2], params(1 if name % 3 == 0 else 6))
        while driver.finish_reason is None:
            driver.verify([4, 5, 6, 7] if name % 2 else [])
        held = [s for s in engine.requests.all() if s.pivot_features is not None]
        assert held == []
        driver.close()
    assert len(engine.requests) == 0
    assert engine.pool.num_available == engine.pool.num_pages


def test_empty_prompts_harm_nobody() -> None:
    # D15
    engine = table_engine(COUNTING)
    running = Driver(engine, "running")
    running.open([1], params(5))
    (refusal,) = engine.apply(c.Open(c.Address(c.RequestKey("t", "e"), 1, 0), (), 0, KEY, params(3)))
    assert isinstance(refusal, c.Refused)
    running.run(9)
    assert running.generated == [2, 3, 4, 5, 6]


def test_times_that_would_block_for_ever_are_refused() -> None:
    # F8: a negative time limit is a configuration error, not an endless wait.
    for name in ("draft_timeout_seconds", "resend_seconds", "client_stall_seconds", "hang_seconds"):
        with pytest.raises(InvalidRequest, match=name):
            CoordinatorConfig.load(None, target_address="127.0.0.1:1", **{name: -1.0})


class SlowModel(TableTarget):
    """Every row costs 10 ms on the clock it is given."""

    now = 0.0

    def forward(self, step: PackedStep) -> StepOutput:
        self.now += 0.01 * len(step.token_ids)
        self.steps = [*getattr(self, "steps", []), len(step.token_ids)]
        return super().forward(step)


def test_a_long_prompt_takes_its_budget_of_a_step_and_no_more() -> None:
    model = SlowModel(COUNTING)
    limits = limits_for(prefill_rows=256, prefill_seconds=0.32, max_context=4000, num_pages=300)
    engine = Engine(model, limits, clock=lambda: model.now)
    running = Driver(engine, "running")
    running.open([1], params(200))
    running.round += 1
    engine.apply(c.Run(running.address(), 2, 199))
    engine.apply(Driver(engine, "long").open_command([i % 50 for i in range(3000)], params(1)))
    model.steps = []
    while any(s.key.request_id == "long" and s.finish_reason is None for s in engine.requests.all()):
        engine.step()
    assert model.steps[0] == 257  # nothing is measured yet
    assert all(rows <= 33 for rows in model.steps[2:]), "more than 0.32 s of prefill at 10 ms a row"
    assert min(model.steps[1:-1]) > 16
