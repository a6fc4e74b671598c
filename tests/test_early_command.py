"""A command for a request whose Open is still being computed is refused, and the engine lives on."""

from __future__ import annotations

from target_service import commands as c
from target_service import wire
from tests.fakes import Driver, params, tiny_engine, tiny_target


def test_a_command_while_the_open_is_computed_is_out_of_step_on_the_wire() -> None:
    engine = tiny_engine(tiny_target("llama"))
    driver = Driver(engine)
    opened = driver.open_command([1, 2, 3], params(4))
    assert engine.apply(opened) == []
    early = c.Verify(c.Address(driver.key, 1, 7), 4, (5,))
    (message,) = wire.messages_to(engine.apply(early), None)
    (event,) = message.events.events
    assert event.refused.code == 2  # REFUSAL_CODE_OUT_OF_STEP
    assert (event.refused.held_epoch, event.refused.held_round) == (1, 0)
