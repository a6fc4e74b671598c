"""Pages are lost or doubly held when a count, a crop or a free is wrong."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protos.errors import OutOfPages
from target_service.block_pool import BlockPool

PAGES = 12
PAGE = 4


class PoolMachine(RuleBasedStateMachine):
    """Any order of growing, cropping and freeing keeps free + held = all."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(PAGES, PAGE)
        self.held: list[list[int]] = []

    @rule(count=st.integers(0, PAGES))
    def allocate(self, count: int) -> None:
        free = self.pool.num_available
        if count > free:
            with pytest.raises(OutOfPages):
                self.pool.allocate(count)
            assert self.pool.num_available == free
        else:
            self.held.append(self.pool.allocate(count))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def crop(self, data: st.DataObject) -> None:
        pages = data.draw(st.sampled_from(self.held))
        keep = data.draw(st.integers(0, len(pages)))
        self.pool.release(pages[keep:])
        del pages[keep:]

    @invariant()
    def whole(self) -> None:
        self.pool.check_integrity(self.held)
        assert self.pool.num_available == PAGES - sum(map(len, self.held))


TestPool = PoolMachine.TestCase


def test_double_release_is_caught() -> None:
    pool = BlockPool(2, PAGE)
    pages = pool.allocate(1)
    pool.release(pages)
    with pytest.raises(AssertionError, match="more often"):
        pool.release(pages)


def test_integrity_names_a_lost_page() -> None:
    pool = BlockPool(2, PAGE)
    pool.allocate(1)
    with pytest.raises(AssertionError, match="page 0"):
        pool.check_integrity([])


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (4, 1), (5, 2)])
def test_pages_for(tokens: int, pages: int) -> None:
    assert BlockPool(1, PAGE).pages_for(tokens) == pages
