"""A request that the tuner decides for, and what it was told to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from coordinator.tuner.tuner import TunedRequest


@dataclass(frozen=True)
class Assignment:
    """What a member does in its next round, unless something better is at hand.

    Args:
        block_size: `v`; 1 is a Run.
    """

    block_size: int = 1
    is_probe: bool = False


@dataclass(eq=False)
class Member:
    """A request that is decided for.

    Args:
        describe: what it could draft now.
        is_used: it has done what it was last assigned. is_held: it is about to, its Run is ending; so
            the assignment stays.
        did_size: rows of its last draft, also while the next one is under way; 1 in a Run.
    """

    request_id: str
    describe: Callable[[], TunedRequest]
    assignment: Assignment = field(default_factory=Assignment)
    is_used: bool = True
    is_held: bool = False
    did_size: int = 1
    has_left: bool = False
