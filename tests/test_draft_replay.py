"""The replay drafter: scripted and random acceptance, always the same answer to the same item."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from draft_service.proposal import DraftItem, DraftMode
from draft_service.replay import ReplayDrafter, ReplayOptions, read_recordings
from protos.errors import InvalidRequest

V = 50
TEXT = tuple((7 * i * i + 3) % V for i in range(2000))


def item(position: int, k: int, request_id: str = "r") -> DraftItem:
    return DraftItem(request_id, (TEXT[position],), None, position, k, DraftMode.GREEDY)


def replay(*acceptance: float, **options) -> ReplayDrafter:
    return ReplayDrafter({"r": TEXT, "s": TEXT}, ReplayOptions(acceptance, vocab_size=V, **options))


@pytest.mark.parametrize("j", range(5))
def test_scripted_drafter_j(j: int) -> None:
    one = replay(*[1.0] * j, *[0.0] * (4 - j))
    for position in range(100):
        (result,) = one.propose([item(position, 4)])
        right = TEXT[position + 1 : position + 5]
        assert [a == b for a, b in zip(result.tokens, right, strict=True)] == [i < j for i in range(4)]
        assert all(0 <= token < V for token in result.tokens)


def test_acceptance_frequencies() -> None:
    acceptance = (0.9, 0.5, 0.2)
    results = replay(*acceptance).propose([item(p, 3) for p in range(1900)])
    for j, probability in enumerate(acceptance):
        hits = sum(r.tokens[j] == TEXT[p + 1 + j] for p, r in enumerate(results))
        # Four standard deviations of 1900 coins.
        assert abs(hits / 1900 - probability) < 4 * (probability * (1 - probability) / 1900) ** 0.5
        assert results[0].probabilities == acceptance


def test_coins_of_unlike_positions_are_independent() -> None:
    """The coin of position j says nothing about the coin of j + 1 or of the next anchor."""
    results = replay(0.5, 0.5).propose([item(p, 2) for p in range(1900)])
    hits = [[token == TEXT[p + 1 + j] for j, token in enumerate(r.tokens)] for p, r in enumerate(results)]
    assert abs(sum(a == b for a, b in hits) / 1900 - 0.5) < 0.05
    assert abs(sum(x[0] == y[0] for x, y in pairwise(hits)) / 1900 - 0.5) < 0.05


def test_an_answer_depends_on_its_item_alone() -> None:
    items = [item(p, 1 + p % 3) for p in range(60)]
    batch = replay(0.5, 0.5, 0.5).propose(items)
    assert batch == [replay(0.5, 0.5, 0.5).propose([one])[0] for one in items]
    assert batch != replay(0.5, 0.5, 0.5, seed=1).propose(items)
    assert batch != replay(0.5, 0.5, 0.5).propose([replace(one, request_id="s") for one in items])


def test_the_end_of_a_recording() -> None:
    last = len(TEXT) - 1
    one = replay(1, 1, 1)
    assert one.propose([item(last - 1, 3)])[0].tokens == TEXT[-1:]
    assert one.propose([item(last, 3)])[0].tokens == ()
    beyond = DraftItem("r", (1,), None, last + 50, 3, DraftMode.GREEDY)
    assert one.propose([beyond])[0].tokens == ()


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("request_id", item(3, 1, "unknown")),
        ("k", item(3, 4)),
        ("recent_tokens", replace(item(3, 1), recent_tokens=(TEXT[3] + 1,))),
        ("recent_tokens", replace(item(3, 1), recent_tokens=())),
        ("max_law_entries", replace(item(3, 1), mode=DraftMode.REJECTION, key=bytes(16), temperature=1.0)),
    ],
)
def test_refusals(field: str, wrong: DraftItem) -> None:
    good, refused = replay(1, 1, 1).propose([item(5, 3), wrong])
    assert good.tokens == TEXT[6:9]
    assert refused.refusal is not None
    assert refused.refusal.field == field


def test_rejection_mode_says_that_the_token_is_certain() -> None:
    wanted = replace(item(5, 3), mode=DraftMode.REJECTION, key=bytes(16), temperature=1.0, max_law_entries=8)
    (result,) = replay(1, 1, 1).propose([wanted])
    assert result.tokens == TEXT[6:9]
    assert [law.token_ids for law in result.laws] == [(token,) for token in result.tokens]
    assert all(law.probabilities == (1.0,) for law in result.laws)
    assert result.probabilities == ()


def test_compute_time_is_slept_once_a_batch() -> None:
    slept: list[float] = []
    options = ReplayOptions((1.0,), compute_ms=12.5, vocab_size=V)
    ReplayDrafter({"r": TEXT}, options, slept.append).propose([item(1, 1), item(2, 1)])
    assert slept == [0.0125]


def test_without_a_target_the_vocabulary_is_what_was_recorded() -> None:
    one = ReplayDrafter({"r": TEXT}, ReplayOptions((0.0,)))
    assert all(r.tokens[0] <= max(TEXT) for r in one.propose([item(p, 1) for p in range(500)]))
    assert one.description.vocab_size == 0


def test_recordings_file(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    lines = [{"request_id": "a", "token_ids": [1, 2]}, {"request_id": "b", "token_ids": [], "more": 1}]
    file.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    assert read_recordings(file) == {"a": (1, 2), "b": ()}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"request_id": "a"}',
        '{"request_id": 1, "token_ids": []}',
        '{"request_id": "a", "token_ids": [1.5]}',
        '{"request_id": "a", "token_ids": [-1]}',
        '{"request_id": "a", "token_ids": [1]}\n{"request_id": "a", "token_ids": [1]}',
    ],
)
def test_bad_recordings_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=r"r\.jsonl"):
        read_recordings(file)


@pytest.mark.parametrize("acceptance", [(), (1.5,), (-0.1,)])
def test_bad_acceptance(acceptance: tuple[float, ...]) -> None:
    with pytest.raises(InvalidRequest, match="probabilities"):
        ReplayDrafter({"r": TEXT}, ReplayOptions(acceptance))


def test_a_recorded_token_outside_the_vocabulary() -> None:
    with pytest.raises(InvalidRequest, match="vocabulary of 10"):
        ReplayDrafter({"r": TEXT}, ReplayOptions((1.0,), vocab_size=10))
