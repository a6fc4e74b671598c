"""What a crop keeps: as many tokens as it says, whatever a library's own crop means (pitfalls D1)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import target_service
from target_service.engine import Engine
from target_service.sequence import Sequence
from tests.fakes import Driver, params, plain_greedy, tiny_engine, tiny_target

PAGE = 2
PROMPT = [5, 9, 0]


def cached_text() -> tuple[Engine, Sequence]:
    """A request with 3 tokens in the KV: two pages, the first one full."""
    engine = tiny_engine(tiny_target("llama"), page_size=PAGE, num_pages=8)
    Driver(engine).open(PROMPT, params(8))
    (sequence,) = engine.requests.all()
    assert (sequence.kv_length, len(sequence.pages), len(sequence.page_hashes)) == (3, 2, 1)
    return engine, sequence


def is_refused(engine: Engine, sequence: Sequence, length: int) -> bool:
    try:
        engine.sharing.crop(sequence, length)
    except ValueError:
        return True
    return False


@pytest.mark.parametrize(("length", "pages", "full"), [(0, 0, 0), (1, 1, 0), (2, 1, 1), (3, 2, 1)])
def test_a_crop_keeps_what_it_says(length: int, pages: int, full: int) -> None:
    engine, sequence = cached_text()
    engine.sharing.crop(sequence, length)
    held = (sequence.kv_length, len(sequence.pages), len(sequence.page_hashes))
    assert held == (length, pages, full)
    engine.requests.check_integrity()
    assert engine.pool.num_available == 8 - pages


@pytest.mark.parametrize("length", [-5, -1, 4, 99])
def test_a_crop_to_what_is_not_there_is_refused_and_changes_nothing(length: int) -> None:
    engine, sequence = cached_text()
    assert is_refused(engine, sequence, length)
    assert (sequence.kv_length, len(sequence.pages), len(sequence.page_hashes)) == (3, 2, 1)
    engine.requests.check_integrity()


@pytest.mark.parametrize("length", range(4))
def test_a_cropped_text_goes_on_as_if_it_had_never_been_longer(length: int) -> None:
    model = tiny_target("llama")
    engine = tiny_engine(model, page_size=PAGE, num_pages=32)
    driver = Driver(engine)
    driver.open(PROMPT, params(20))
    engine.sharing.crop(engine.requests.all()[0], length)
    driver.run(20)
    assert driver.generated == plain_greedy(model, PROMPT, 20)


def test_no_library_keeps_or_crops_our_kv() -> None:
    for path in Path(target_service.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node, "id", getattr(node, "attr", getattr(node, "arg", "")))
            assert name not in ("past_key_values", "DynamicCache", "StaticCache"), path.name
            if name == "crop":
                assert path.name in ("engine.py", "page_sharing.py")
