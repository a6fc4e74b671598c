"""Pages found again are the right pages, and only committed, full ones (pitfalls D4 to D7)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coordinator.answer import Answer
from deploy.in_process import in_process
from protos import coordinator_pb2
from target_service import commands as c
from target_service.block_pool import BlockPool
from target_service.engine import Engine
from target_service.prefix_cache import PrefixCache
from tests.coordinator_harness import shared_tokenizer, until
from tests.fakes import (
    KEY,
    Driver,
    TableDrafter,
    params,
    plain_greedy,
    table_built,
    table_engine,
    tiny_engine,
    tiny_target,
)

PAGE = 2
PAGES = 10
PROMPT = [(7 * i + i * i) % 61 for i in range(48)]


class Text:
    """A sequence as the machine sees it."""

    def __init__(self, token_ids: list[int], pages: list[int], hashes: list[bytes]) -> None:
        self.token_ids = token_ids
        self.pages = pages
        self.hashes = hashes


class CacheMachine(RuleBasedStateMachine):
    """Texts over two letters open, grow, publish and end in any order.

    The machine keeps what is written in each page; a hit must find exactly its own tokens.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(PAGES, PAGE)
        self.cache = PrefixCache(self.pool, b"model")
        self.texts: list[Text] = []
        self.written: dict[int, tuple[int, ...]] = {}

    @rule(token_ids=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def open(self, token_ids: list[int]) -> None:
        pages, hashes = self.cache.acquire(token_ids)
        assert len(pages) * PAGE <= len(token_ids) - 1
        for i, page in enumerate(pages):
            assert self.written[page] == tuple(token_ids[i * PAGE : (i + 1) * PAGE])
        needed = self.pool.pages_for(len(token_ids)) - len(pages)
        if needed > self.pool.num_available:
            self.pool.release(pages)
            return
        text = Text(token_ids, [*pages, *self.pool.allocate(needed)], hashes)
        for i in range(len(pages), len(text.pages)):
            assert self.pool.references(text.pages[i]) == 1, "a shared page would be written"
            self.written[text.pages[i]] = tuple(token_ids[i * PAGE : (i + 1) * PAGE])
        self.texts.append(text)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        text = data.draw(st.sampled_from(self.texts))
        self.cache.publish(text.token_ids, text.pages, text.hashes)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.end_of(data.draw(st.sampled_from(self.texts)))

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        text = data.draw(st.sampled_from(self.texts))
        keep_length = data.draw(st.integers(0, len(text.token_ids)))
        before, _ = self.cache.acquire([*text.token_ids, 0])
        self.pool.release(before)
        self.end_of(text)
        self.cache.retract(text.token_ids, keep_length)
        after, _ = self.cache.acquire([*text.token_ids, 0])
        self.pool.release(after)
        assert after == before[: len(after)]
        num_kept = min(len(before), keep_length // PAGE)
        assert len(after) >= num_kept
        assert set(after[num_kept:]) <= self.held, "found, but it stands for nobody"

    @rule()
    def forget(self) -> None:
        self.pool.forget_cached()

    @invariant()
    def whole(self) -> None:
        self.pool.check_integrity(text.pages for text in self.texts)
        self.cache.check_integrity()
        assert self.pool.num_available == PAGES - len(self.held)

    @property
    def held(self) -> set[int]:
        return {page for text in self.texts for page in text.pages}

    def end_of(self, text: Text) -> None:
        self.texts.remove(text)
        self.pool.release(text.pages)


TestCache = CacheMachine.TestCase


def test_least_recently_released_goes_first_and_tails_before_heads() -> None:
    pool = BlockPool(4, PAGE)
    cache = PrefixCache(pool, b"")
    first, second = pool.allocate(2), pool.allocate(2)
    cache.publish([1, 2, 3, 4], first, [])
    cache.publish([5, 6, 7, 8], second, [])
    pool.release(first)
    pool.release(second)
    assert pool.allocate(1) == [first[1]]
    assert cache.acquire([1, 2, 3, 4, 9])[0] == [first[0]]
    assert cache.acquire([5, 6, 7, 8, 9])[0] == second


def test_another_model_or_tenant_never_hits() -> None:
    pool = BlockPool(2, PAGE)
    ours, theirs = PrefixCache(pool, b"model a"), PrefixCache(pool, b"model b")
    assert ours.chain(None, [1, 2]) != theirs.chain(None, [1, 2])


def test_a_page_after_another_beginning_is_not_found() -> None:
    pool = BlockPool(4, PAGE)
    cache = PrefixCache(pool, b"")
    cache.publish([1, 2, 3, 4], pool.allocate(2), [])
    cache.publish([5, 6], pool.allocate(1), [])
    assert len(cache.acquire([5, 6, 3, 4, 9])[0]) == 1
    assert cache.acquire([3, 4, 9])[0] == []


def test_a_hit_is_less_than_the_whole_prompt() -> None:
    pool = BlockPool(4, PAGE)
    cache = PrefixCache(pool, b"")
    cache.publish([1, 2, 3, 4], pool.allocate(2), [])
    assert [len(cache.acquire(list(range(1, n)))[0]) for n in range(2, 7)] == [0, 0, 1, 1, 2]


def test_a_colliding_hash_costs_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = BlockPool(2, PAGE)
    cache = PrefixCache(pool, b"")
    monkeypatch.setattr(cache, "chain", lambda _parent, _tokens: b"same")
    cache.publish([1, 2], pool.allocate(1), [])
    assert cache.acquire([3, 4, 5])[0] == []
    assert len(cache.acquire([1, 2, 5])[0]) == 1


def test_another_salt_finds_nothing_and_forks_nothing() -> None:
    pool = BlockPool(8, 2)
    cache = PrefixCache(pool, b"model")
    for salt in (b"", b"a", b"b"):
        assert cache.acquire([1, 2, 3, 4, 5], salt) == ([], [])
        cache.publish([1, 2, 3, 4], pool.allocate(2), [], salt)
        assert len(cache.acquire([1, 2, 3, 4, 5], salt)[0]) == 2
    cache.retract([1, 2, 3, 4], 2, b"b")
    engine = tiny_engine(tiny_target("llama"))
    cached = []
    for number, salt in enumerate([b"a", b"b", b"a", b""]):
        driver = Driver(engine, f"r{number}")
        command = driver.open_command(PROMPT[:33], params(2))
        command = replace(command, prefix_salt=salt, fork_of=f"r{number - 1}")
        cached.append(driver.round_trip(command).cached_tokens)
    assert cached == [0, 0, 32, 0]


@pytest.mark.parametrize(("length", "cached"), [(15, 0), (16, 0), (17, 16), (32, 16), (48, 32)])
def test_a_repeated_prompt_leaves_a_token_to_compute(length: int, cached: int) -> None:
    # D5: prompts of exactly n pages, each sent twice; D6: features cold = warm.
    model = tiny_target("llama")
    engine = tiny_engine(model)
    cold, warm = Driver(engine, "cold"), Driver(engine, "warm")
    first = cold.open(PROMPT[:length], params(6))
    cold.run(6)
    rows = engine.num_rows
    second = warm.open(PROMPT[:length], params(6))
    assert (first.cached_tokens, second.cached_tokens) == (0, cached)
    assert engine.num_rows - rows == length - cached >= 1
    assert warm.features is not None
    warm_features = warm.features
    warm.run(6)
    assert warm.generated == cold.generated == plain_greedy(model, PROMPT[:length], 6)
    fresh = Driver(tiny_engine(model, uses_prefix_cache=False), "fresh")
    fresh.open(PROMPT[:length], params(6))
    assert fresh.features is not None
    assert torch.allclose(warm_features, fresh.features, atol=1e-9)


def test_a_hit_beside_a_dirty_pool_has_the_right_features() -> None:
    # D7: prefix 32 of 42 tokens is warm, the other slots had another occupant.
    model = tiny_target("llama")
    engine = tiny_engine(model, num_pages=6)
    for name, prompt in (("other", PROMPT[::-1][:45]), ("first", [*PROMPT[:32], 1, 2, 3])):
        driver = Driver(engine, name)
        driver.open(prompt, params(4))
        driver.run(4)
    warm, fresh = Driver(engine, "warm"), Driver(tiny_engine(model), "fresh")
    assert warm.open(PROMPT[:42], params(4)).cached_tokens == 32
    fresh.open(PROMPT[:42], params(4))
    assert warm.features is not None
    assert fresh.features is not None
    assert torch.allclose(warm.features, fresh.features, atol=1e-9)


def shared_page_bytes(engine: Engine) -> dict[int, bytes]:
    kv = engine._model.kv  # type: ignore[attr-defined]
    pages = range(engine.pool.num_pages)
    return {page: kv.page_bytes(page) for page in pages if engine.pool.references(page) > 1}


def test_shared_pages_never_change() -> None:
    # D4: two requests share 32 tokens; rejected drafts of one never reach the other's pages.
    model = tiny_target("llama")
    engine = tiny_engine(model)
    first, second = Driver(engine, "a"), Driver(engine, "b")
    first.open([*PROMPT[:32], 3], params(30))
    second.open([*PROMPT[:32], 4], params(30))
    before = shared_page_bytes(engine)
    assert len(before) == 2
    for _ in range(12):
        second.verify([60, 60, 60, 60, 60])
    assert shared_page_bytes(engine) == before
    first.run(30)
    assert first.generated == plain_greedy(model, [*PROMPT[:32], 3], 30)


def check_only_committed_pages_are_published() -> None:
    """Rejected proposals that fill a page must not be found by a prompt that contains them."""
    table = torch.eye(50).roll(1, dims=1) * 5.0
    engine = table_engine(table)
    driver = Driver(engine)
    driver.open(range(10), params(40))
    wrong = [40, 41, 42, 43, 44, 45, 46, 47]
    driver.verify(wrong)
    probe = Driver(engine, "probe")
    verdict = probe.open([*range(11), *wrong, 1], params(4))
    assert verdict.cached_tokens == 0, "a rejected proposal was published"


def test_only_committed_pages_are_published() -> None:
    check_only_committed_pages_are_published()


def closed_text(finished: bool) -> tuple[Engine, Driver]:
    """20 prompt tokens and 60 generated ones, all committed; `finished` says whether a limit ended it."""
    engine = tiny_engine(tiny_target("llama"))
    driver = Driver(engine, "text")
    driver.open(PROMPT[:20], params(60 if finished else 100))
    driver.run(59)
    assert (driver.finish_reason is not None) is finished
    return engine, driver


def hit_length(engine: Engine, tokens: list[int]) -> int:
    probe = Driver(engine, f"probe {engine.num_steps}")
    cached_tokens = probe.open(tokens, params(4)).cached_tokens
    probe.close()
    return cached_tokens


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("keep_length", [20, 31, 32, 47, 79, 80])
def test_a_close_keeps_what_stands_and_no_more(finished: bool, keep_length: int) -> None:
    # A stop string: the target decided more than the text has, in the same block or Run.
    engine, driver = closed_text(finished)
    driver.close(keep_length)
    engine.requests.check_integrity()
    # Of 80 committed tokens the last is not in the KV.
    num_pages = min(keep_length, 79) // 16
    assert (engine.pool.num_cached, len(engine.sharing.prefixes)) == (num_pages, num_pages)
    assert engine.pool.num_available == engine.pool.num_pages
    assert hit_length(engine, [*driver.tokens, 1]) == num_pages * 16
    engine.requests.check_integrity()


def test_what_another_text_holds_stays_for_it() -> None:
    engine, driver = closed_text(finished=False)
    reader = Driver(engine, "reader")
    assert reader.open([*driver.tokens[:50], 1, 2], params(8)).cached_tokens == 48
    driver.close(20)
    engine.requests.check_integrity()
    assert len(engine.sharing.prefixes) == 3
    reader.close()
    engine.requests.check_integrity()
    assert hit_length(engine, [*driver.tokens, 1]) == 48


async def test_a_stop_string_leaves_nothing_behind_it() -> None:
    # Blocks of 9 end at positions 19, 28, 37; "D" completes the text at 30, the block fills page 1.
    table = torch.eye(258).roll(1, dims=1) * 5.0
    built = table_built(table)
    message = coordinator_pb2.GenerateRequest(
        token_ids=range(5, 15), max_tokens=100, temperature=0.0, ignore_eos=True, stop=["D"]
    )
    message.speculation.num_draft_tokens, message.speculation.verify_block_size = 8, 9
    answer = Answer()
    async with in_process(built, TableDrafter(table, 8), shared_tokenizer()) as system:
        generation = await system.coordinator.admit(message)
        async for response in generation.attach().messages():
            answer.add(response)
        await until(lambda: len(built.engine.requests) == 0)
    assert answer.token_ids == list(range(15, 36))
    assert answer.finished.ledger.accept_lengths[-1] == 2
    assert len(built.engine.sharing.prefixes) == 1
    built.engine.requests.check_integrity()


def test_evicted_pages_are_found_again() -> None:
    model = tiny_target("llama")
    engine = tiny_engine(model, num_pages=6, uses_prefix_cache=True)
    first, second = Driver(engine, "first"), Driver(engine, "second")
    first.open(PROMPT[:20], params(60))
    second.open(PROMPT[:30], params(30))
    first.run(60)
    assert [event for event in second.events if isinstance(event, c.Preempted)] == []
    second.run(30)
    assert second.generated == plain_greedy(model, PROMPT[:30], 30)
    assert first.generated == plain_greedy(model, PROMPT[:20], 60)


def fork_command(name: str, source: str, prompt: list[int], key: bytes) -> c.Open:
    address = c.Address(c.RequestKey("test", name), 1, 0)
    settings = params(20, temperature=1.0)
    return c.Open(address, tuple(prompt), len(prompt), key, settings, True, fork_of=source)


def compute(engine: Engine, command: c.Command) -> list[c.Event]:
    """Applies a command and steps until there is no more to do."""
    events = engine.apply(command)
    while engine.has_work():
        events += engine.step()
        engine.requests.check_integrity()
    return events


@pytest.mark.parametrize("length", [5, 16, 17, 31, 33])
def test_forks_share_pages_and_copy_the_last(length: int) -> None:
    # C7 at the engine: n choices of one prompt compute it once.
    model = tiny_target("llama")
    engine = tiny_engine(model, uses_prefix_cache=False)
    prompt = PROMPT[:length]
    compute(engine, fork_command("source", "", prompt, KEY))
    rows = engine.num_rows
    events = engine.apply(fork_command("choice", "source", prompt, bytes(16)))
    assert events == []
    verdict = next(event for event in engine.step() if isinstance(event, c.Verdict))
    engine.requests.check_integrity()
    assert engine.num_rows - rows == 1
    assert verdict.cached_tokens == length - 1
    alone = tiny_engine(model, uses_prefix_cache=False)
    alone.apply(fork_command("choice", "", prompt, bytes(16)))
    expected = next(event for event in alone.step() if isinstance(event, c.Verdict))
    assert verdict.tokens == expected.tokens


def test_a_fork_of_nobody_or_of_another_text_is_computed() -> None:
    engine = tiny_engine(tiny_target("llama"), uses_prefix_cache=False)
    compute(engine, fork_command("source", "", PROMPT[:9], KEY))
    for name, source, prompt in (("a", "nobody", PROMPT[:9]), ("b", "source", PROMPT[3:12])):
        rows = engine.num_rows
        engine.apply(fork_command(name, source, prompt, KEY))
        engine.step()
        assert engine.num_rows - rows == 9


def test_forks_write_their_own_pages() -> None:
    model = tiny_target("llama")
    engine = tiny_engine(model, uses_prefix_cache=False)
    compute(engine, fork_command("source", "", PROMPT[:21], KEY))
    keys = {"a": bytes(16), "b": bytes([9] * 16)}
    for name, key in keys.items():
        compute(engine, fork_command(name, "source", PROMPT[:21], key))
    texts = run_together(engine, list(keys))
    for name, key in keys.items():
        alone = tiny_engine(model)
        compute(alone, fork_command(name, "", PROMPT[:21], key))
        assert run_together(alone, [name]) == {name: texts[name]}
    assert texts["a"] != texts["b"]


def run_together(engine: Engine, names: list[str]) -> dict[str, list[int]]:
    """Runs opened requests to their end side by side."""
    for name in names:
        engine.apply(c.Run(c.Address(c.RequestKey("test", name), 1, 1), 22, 20))
    texts: dict[str, list[int]] = {name: [] for name in names}
    while engine.has_work():
        for event in engine.step():
            if isinstance(event, c.Verdict):
                texts[event.address.key.request_id] += event.tokens
    return texts
