"""Wrong builds of the engine's pages: prefix cache, forks, eviction. See `wrong_builds`."""

from __future__ import annotations

from typing import Any

import pytest

from target_service import engine as engine_module
from target_service import run_attention, scheduler
from target_service.block_pool import BlockPool
from target_service.page_sharing import PageSharing
from target_service.prefix_cache import PrefixCache
from tests.wrong_builds import WrongBuild, everywhere


def _chain_without_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    right = PrefixCache.chain
    monkeypatch.setattr(PrefixCache, "chain", lambda self, _parent, tokens: right(self, None, tokens))


def _hit_of_the_whole_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    right = PrefixCache.acquire
    monkeypatch.setattr(PrefixCache, "acquire", lambda self, tokens, *salt: right(self, [*tokens, 0], *salt))


def _nobody_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler._Pages, "_newest_after", lambda _self, _sequence: None)


def _fork_without_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    def share_all(self: Any, source: Any, opened: Any) -> None:
        length = min(source.kv_length, opened.committed_length - 1)
        opened.pages = source.pages[: self._pool.pages_for(length)]
        opened.page_hashes = source.page_hashes[: length // self._pool.page_size]
        self._pool.share(opened.pages)
        self._found(opened, length)

    monkeypatch.setattr(PageSharing, "fork", share_all)


def _publish_proposals(monkeypatch: pytest.MonkeyPatch) -> None:
    right = engine_module.Engine._extend

    def extend(self: Any, work: Any, started: float) -> Any:
        extension = right(self, work, started)
        fed = [*work.sequence.token_ids[: extension.kv_length], *extension.token_ids]
        self.sharing.prefixes.publish(fed, work.sequence.pages, [])
        return extension

    monkeypatch.setattr(engine_module.Engine, "_extend", extend)


def _rows_see_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    right = run_attention.pieces_of
    monkeypatch.setattr("target_service.attention.pieces_of", lambda span, _bias: right(span, None))


def _close_keeps_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PageSharing, "close", lambda self, sequence, _keep_length: self.release(sequence))


def _close_takes_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def retract(self: Any, page: int) -> None:
        if page in self._published:
            self._published.pop(page)(page)
        if page in self._cached:
            del self._cached[page]
            self._free.append(page)

    monkeypatch.setattr(BlockPool, "retract", retract)


def _crop_as_a_library_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """crop(0) keeps all, crop(-n) drops n tokens, crop beyond the end is ignored."""
    right = PageSharing.crop

    def crop(self: Any, sequence: Any, length: int) -> None:
        if length < 0:
            length = max(sequence.kv_length + length, 0)
        elif length in (0, *range(sequence.kv_length, length + 1)):
            length = sequence.kv_length
        right(self, sequence, length)

    monkeypatch.setattr(PageSharing, "crop", crop)


ENGINE_BUILDS: dict[str, WrongBuild] = {
    "chain-without-parent": WrongBuild(
        says="a page's hash does not depend on the pages before it",
        apply=_chain_without_parent,
        check="tests/test_prefix_cache.py::test_a_page_after_another_beginning_is_not_found",
    ),
    "hit-of-the-whole-prompt": WrongBuild(
        says="a prompt of whole pages is found whole, nothing is left to compute",
        apply=_hit_of_the_whole_prompt,
        check="tests/test_prefix_cache.py::test_a_hit_is_less_than_the_whole_prompt",
    ),
    "nobody-is-evicted": WrongBuild(
        says="requests that hold pages keep them, and all wait for ever",
        apply=_nobody_is_evicted,
        check="tests/test_engine.py::test_a_small_pool_finishes_everyone_with_the_ids_of_solo_runs",
    ),
    "fork-without-copy": WrongBuild(
        says="forks share the last, partial page and write into each other's",
        apply=_fork_without_copy,
        check="tests/test_prefix_cache.py::test_forks_write_their_own_pages",
    ),
    "proposals-published": WrongBuild(
        says="pages enter the prefix index before their tokens are accepted",
        apply=_publish_proposals,
        check="tests/test_prefix_cache.py::test_only_committed_pages_are_published",
    ),
    "close-keeps-everything": WrongBuild(
        says="tokens behind a stop string, decided in the same block, are found by later prompts",
        apply=_close_keeps_everything,
        check="tests/test_prefix_cache.py::test_a_close_keeps_what_stands_and_no_more",
        arguments={"finished": True, "keep_length": 47},
    ),
    "close-takes-from-others": WrongBuild(
        says="a page that another text holds leaves the index with the text that ended",
        apply=_close_takes_from_others,
        check="tests/test_prefix_cache.py::test_what_another_text_holds_stays_for_it",
    ),
    "crop-to-nothing-keeps-all": WrongBuild(
        says="crop(0) means no crop, as in a library",
        apply=_crop_as_a_library_does,
        check="tests/test_page_sharing.py::test_a_crop_keeps_what_it_says",
        arguments={"length": 0, "pages": 0, "full": 0},
    ),
    "crop-counts-from-the-end": WrongBuild(
        says="a negative length drops tokens from the end, as in a library",
        apply=_crop_as_a_library_does,
        check="tests/test_page_sharing.py::test_a_crop_to_what_is_not_there_is_refused_and_changes_nothing",
        arguments={"length": -1},
    ),
    "crop-beyond-the-end": WrongBuild(
        says="a crop beyond the end keeps all and says nothing",
        apply=_crop_as_a_library_does,
        check="tests/test_page_sharing.py::test_a_crop_to_what_is_not_there_is_refused_and_changes_nothing",
        arguments={"length": 4},
    ),
    "runs-weighed-alike": WrongBuild(
        says="what came of each run of pages counts the same, however much the softmax had in it",
        apply=everywhere(run_attention.weighed, lambda outputs, _log_sums: outputs.mean(dim=0)),
        check="tests/test_run_attention.py::test_pieces_are_the_context_joined",
        arguments={"seed": 1},
    ),
    "rows-see-what-follows": WrongBuild(
        says="a block's rows see the proposals behind them where a context lies in several runs",
        apply=_rows_see_what_follows,
        check="tests/test_run_attention.py::test_a_text_behind_a_found_prefix_is_plain_decoding",
    ),
}
