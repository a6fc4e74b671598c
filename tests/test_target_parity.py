"""Any chunking, cropping and batching equals one forward of the stock model, in float64.

On transformers models in float64 rounding is 2e-15, so ids are compared without excuse and
numbers within TOLERANCE (pitfalls D2, D7, D8, D9, D10, D11).
"""

from __future__ import annotations

import pytest
import torch

from target_service import commands as c
from target_service.engine import Engine
from tests.fakes import ARCHITECTURES, Driver, params, plain_greedy, tiny_engine, tiny_target

TOLERANCE = 1e-9
PROMPT = [(7 * i + i * i) % 61 for i in range(40)]
LAST_LAYER = 2


def stock_states(model: object, tokens: list[int]) -> torch.Tensor:
    """[m, D] of the last position by the stock model; the last entry is after the final norm."""
    kernel = model.config._attn_implementation  # type: ignore[attr-defined]
    model.set_attn_implementation("sdpa")  # type: ignore[attr-defined]
    with torch.no_grad():
        output = model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False)  # type: ignore[operator]
    model.set_attn_implementation(kernel)  # type: ignore[attr-defined]
    return torch.stack([output.hidden_states[i + 1][0, -1] for i in (0, 1, LAST_LAYER)])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("rows", [16, 39, 40, 1, 7])
def test_any_chunking_is_one_forward(architecture: str, rows: int) -> None:
    model = tiny_target(architecture)
    expected = stock_states(model, PROMPT)
    driver = Driver(tiny_engine(model, prefill_rows=rows))
    verdict = driver.open(PROMPT, params(4))
    assert driver.features is not None
    assert torch.allclose(driver.features, expected, atol=TOLERANCE)
    assert list(verdict.tokens) == plain_greedy(model, PROMPT, 1)


@pytest.mark.parametrize("accepted", range(5))
def test_features_after_partial_acceptance_are_a_fresh_prefill(accepted: int) -> None:
    # D10: the pivot is row A, and the last layer's state is after the final norm there too.
    model = tiny_target("qwen3")
    reference = plain_greedy(model, PROMPT, 8)
    driver = Driver(tiny_engine(model))
    driver.open(PROMPT, params(20))
    proposals = [*reference[1 : 1 + accepted], *[(reference[4] + 1) % 61] * (4 - accepted)]
    proposals = [
        token if i < accepted or token != reference[1 + i] else (token + 1) % 61
        for i, token in enumerate(proposals)
    ]
    verdict = driver.verify(proposals)
    assert verdict.num_accepted == accepted
    assert driver.features is not None
    assert torch.allclose(driver.features, stock_states(model, driver.tokens[:-1]), atol=TOLERANCE)


def test_crop_then_extend_is_never_drafted() -> None:
    model = tiny_target("llama")
    reference = plain_greedy(model, PROMPT, 40)
    engine = tiny_engine(model)
    drafted, plain = Driver(engine, "drafted"), Driver(engine, "plain")
    drafted.open(PROMPT, params(40))
    while drafted.finish_reason is None:
        drafted.verify([60, 60, 60, 60])
        if drafted.finish_reason is None:
            at = len(drafted.generated)
            drafted.verify(reference[at : at + 2])
    plain.open(PROMPT, params(40))
    plain.run(40)
    assert drafted.generated == plain.generated == reference


def step_together(engine: Engine, drivers: list[Driver], commands: list[c.RoundCommand]) -> None:
    for driver, command in zip(drivers, commands, strict=True):
        driver.take(engine.apply(command))
    while engine.has_work():
        events = engine.step()
        engine.requests.check_integrity()
        for driver in drivers:
            driver.take(events)


def test_a_batch_of_unequal_lengths_is_each_alone() -> None:
    # D11: prompts of 30 and 25 (and 3), one of four proposals right, five rounds.
    model = tiny_target("qwen2")
    prompts = [PROMPT[:30], PROMPT[5:30], PROMPT[:3]]
    engine = tiny_engine(model)
    drivers = [Driver(engine, str(i)) for i in range(3)]
    step_together(
        engine, drivers, [d.open_command(p, params(40)) for d, p in zip(drivers, prompts, strict=True)]
    )
    references = [plain_greedy(model, prompt, 12) for prompt in prompts]
    for _ in range(5):
        commands: list[c.RoundCommand] = []
        for driver, reference in zip(drivers, references, strict=True):
            right = reference[len(driver.generated)]
            commands.append(driver.verify_command([right, 60, 60, 60]))
        step_together(engine, drivers, commands)
    for driver, reference in zip(drivers, references, strict=True):
        assert driver.generated == reference[: len(driver.generated)]
        assert len(driver.generated) >= 11
        assert driver.features is not None
        assert torch.allclose(driver.features, stock_states(model, driver.tokens[:-1]), atol=TOLERANCE)


def test_one_step_mixes_prefill_verify_and_run() -> None:
    # D9: rows 5, 5 and 1 in one step; each request gets its own last row.
    model = tiny_target("llama")
    engine = tiny_engine(model)
    verifying, running, opening = (Driver(engine, name) for name in ("v", "r", "o"))
    verifying.open(PROMPT[:9], params(30))
    running.open(PROMPT[:4], params(30))
    running.round += 1
    run = c.Run(running.address(), running.committed_length, 1, True)
    steps = engine.num_steps
    commands = [verifying.verify_command([1, 2, 3, 4]), run, opening.open_command(PROMPT[:5], params(30))]
    step_together(engine, [verifying, running, opening], commands)
    assert engine.num_steps == steps + 1
    for driver in (verifying, running, opening):
        assert driver.features is not None
        assert torch.allclose(driver.features, stock_states(model, driver.tokens[:-1]), atol=TOLERANCE)


@pytest.mark.parametrize(
    ("length", "proposals", "accepted", "during", "after"),
    [(15, 4, 0, 2, 1), (15, 4, 4, 2, 2), (16, 4, 0, 2, 2), (31, 2, 2, 3, 3)],
)
def test_rollback_across_pages(length: int, proposals: int, accepted: int, during: int, after: int) -> None:
    # D2: pages held while verifying and after the crop, page size 16.
    model = tiny_target("llama")
    engine = tiny_engine(model)
    driver = Driver(engine)
    prompt = PROMPT[:length]
    driver.open(prompt, params(30))
    reference = plain_greedy(model, prompt, proposals + 1)
    right = reference[1 : 1 + accepted]
    wrong = [(token + 1) % 61 for token in reference[1 + accepted : 1 + proposals]]
    command = driver.verify_command([*right, *wrong])
    engine.apply(command)
    sequence = engine.requests.all()[0]
    peak = 0
    forward = engine._model.forward

    def watch(step: object) -> object:
        nonlocal peak
        peak = len(sequence.pages)
        return forward(step)  # type: ignore[arg-type]

    engine._model.forward = watch  # type: ignore[method-assign, assignment]
    driver.take(engine.step())
    assert (peak, len(sequence.pages)) == (during, after)
    assert sequence.kv_length == length + 1 + accepted
    assert engine.pool.num_available == 64 - after


def test_dirty_pages_do_not_leak_into_features() -> None:
    # D7: the slots have had another occupant; features are those of this prompt's last row.
    model = tiny_target("llama")
    engine = tiny_engine(model, num_pages=4)
    first = Driver(engine, "first")
    first.open(PROMPT[::-1], params(8))
    first.run(8)
    second = Driver(engine, "second")
    second.open(PROMPT[:37], params(8))
    assert second.features is not None
    assert torch.allclose(second.features, stock_states(model, PROMPT[:37]), atol=TOLERANCE)
