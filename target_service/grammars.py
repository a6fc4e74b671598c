"""Grammars of requests: compiled off the engine's thread, at hand when they come again.

Agents send the same schema with every request, so a compiled grammar is kept; a copy for a request
costs microseconds. The first one takes up to a second, in which the engine goes on with the others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from target_service.grammar import GrammarFactory, GrammarSpec, Matcher

Maker = Callable[[], Matcher]
Submit = Callable[[Callable[[], Maker]], "Future[Maker]"]
MAX_KEPT = 64


def in_a_thread() -> Submit:
    """Compiles one grammar after the other in a thread of its own."""
    executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")
    return executor.submit


class Grammars:
    """What is compiled and what is being compiled. Only the engine's thread calls it.

    Args:
        factory: compiles; called through `submit` only.
        submit: starts a compilation.
        max_kept: grammars that are kept, the least recently used goes first.
    """

    def __init__(
        self, factory: GrammarFactory, submit: Submit | None = None, max_kept: int = MAX_KEPT
    ) -> None:
        self._factory = factory
        self._submit = submit
        self._max_kept = max_kept
        self._kept: OrderedDict[GrammarSpec, Future[Maker]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def begin(self, spec: GrammarSpec) -> Future[Maker]:
        """The compiled grammar, at once if it is known; else it is being compiled.

        The future raises InvalidRequest, naming the field, when the grammar is none.
        """
        found = self._kept.get(spec)
        if found is None:
            if self._submit is None:
                self._submit = in_a_thread()
            found = self._submit(lambda: self._factory.compile(spec))
            self._kept[spec] = found
        self._kept.move_to_end(spec)
        while len(self._kept) > self._max_kept:
            self._kept.popitem(last=False)
        return found
