"""Text of the evaluation sets in training data is found; shared instructions are not taken for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.agent_prompts import agent_prompts
from deploy.contamination import HASHES, RUN_WORDS, find, read_hashes, runs, set_hashes, write_hashes
from protos.errors import InvalidRequest

ASK = "Please reason step by step, and put your final answer within a box."
QUESTION = "A train leaves at noon with {n} people and stops {m} times before it comes to the last town."


def prompts() -> list[str]:
    return [QUESTION.format(n=n, m=n + 3) + "\n" + ASK for n in range(10)]


def test_a_run_is_thirteen_words_whatever_case_and_punctuation() -> None:
    words = "one two three four five six seven eight nine ten eleven twelve thirteen"
    assert list(runs(words)) == [words]
    assert list(
        runs("One, two; THREE-four five_six (seven) eight: nine ten 'eleven' twelve... thirteen!")
    ) == [words]
    assert len(list(runs(words + " fourteen"))) == 2
    assert not list(runs(" ".join(words.split()[:12])))
    assert RUN_WORDS == 13


def test_a_planted_question_is_found() -> None:
    hashes = set_hashes(prompts())
    clean = ("made up", "Write a function that adds two numbers and returns them in a list of two, sorted.")
    assert find([clean], hashes) == []
    hits = find([clean, ("planted", "Here it is: " + QUESTION.format(n=4, m=7).upper())], hashes)
    assert {hit.source for hit in hits} == {"planted"}


def test_an_instruction_that_every_prompt_has_is_no_content() -> None:
    other = "How many apples has Ben in all of his baskets?\n" + ASK
    shared = "comes to the last town.\n" + ASK
    assert find([("other", other), ("same end", shared)], set_hashes(prompts())) == []
    assert find([("one prompt alone", ASK)], set_hashes([prompts()[0]]))


def test_hashes_survive_the_file(tmp_path: Path) -> None:
    hashes = set_hashes(prompts())
    write_hashes(tmp_path / "runs.bin", hashes)
    assert read_hashes(tmp_path / "runs.bin") == hashes
    assert (tmp_path / "runs.bin").stat().st_size == 8 * len(hashes)
    (tmp_path / "bad.bin").write_bytes(b"123")
    for name in ("bad.bin", "none.bin"):
        with pytest.raises(InvalidRequest):
            read_hashes(tmp_path / name)


def test_made_up_prompts_hold_nothing_of_the_evaluation_sets() -> None:
    hashes = read_hashes(HASHES)
    assert len(hashes) > 29_000
    texts = [(made.kind, made.prompt) for seed in (0, 11) for made in agent_prompts(2000, seed)]
    assert find(texts, hashes) == []
