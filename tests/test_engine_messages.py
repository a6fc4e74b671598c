"""What is handed to the engine's thread together is in one step: a cohort verifies at once."""

from __future__ import annotations

import threading

from deploy.bench.fakes import FeatureShape, fake_target
from deploy.bench.set_costs import VerifyCosts
from target_service.commands import Address, Event, Open, RequestKey, SamplingParams
from target_service.engine_thread import EngineThread


class NotedCosts(VerifyCosts):
    """Costs nothing and remembers the rows of every step."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "steps", [])

    def __call__(self, num_rows: int, num_context: int) -> float:
        self.steps.append(num_rows)  # type: ignore[attr-defined]
        return 0.0


def open_of(name: str) -> Open:
    params = SamplingParams(max_tokens=4)
    return Open(Address(RequestKey("c", name), 1, 0), (1, 2, 3), 3, bytes(16), params, False)


def test_commands_of_one_message_are_one_step_of_an_idle_engine() -> None:
    costs, decided, done = NotedCosts(), [], threading.Event()

    def emit(_coordinator: str, events: list[Event]) -> None:
        decided.extend(events)
        if len(decided) == 4:
            done.set()

    built = fake_target(costs, FeatureShape(1, 4))
    thread = EngineThread(built.engine, emit, 1, lambda _: done.set())
    thread.start()
    thread.post(*(open_of(name) for name in "abcd"))
    assert done.wait(20)
    thread.stop()
    assert costs.steps == [12]  # type: ignore[attr-defined]
