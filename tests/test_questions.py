"""Prompts from files, as questions to a target."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from deploy.agent_prompts import agent_prompts
from deploy.questions import Asking, agent_texts, as_questions, read_prompts
from protos.errors import InvalidRequest, NotFound
from tests.fakes import GOLDEN
from tests.training_fakes import prompts

TARGET = GOLDEN / "target_qwen3"


def written(folder: Path, *records: object) -> Path:
    file = folder / "some.jsonl"
    file.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    return file


def test_turns_prompts_ids_and_plain_lines_are_read(tmp_path: Path) -> None:
    file = written(tmp_path, {"turns": ["first", "second"]}, {"prompt": "p"}, {"token_ids": [1, 2]})
    found = list(read_prompts(file))
    assert [text.messages for text in found] == [(("user", "first"),), (("user", "p"),), ()]
    assert found[2].token_ids == (1, 2)
    assert {text.source for text in found} == {"some"}
    plain = tmp_path / "plain.txt"
    plain.write_text("one\n\ntwo\n")
    assert [text.messages[0][1] for text in read_prompts(plain)] == ["one", "two"]


def test_a_line_separator_inside_a_prompt_ends_no_line(tmp_path: Path) -> None:
    """JSON allows U+2028 and U+0085 in strings; str.splitlines would cut there."""
    content = "before\u2028after\u0085end"
    assert [text.messages[0][1] for text in read_prompts(written(tmp_path, {"prompt": content}))] == [content]


@pytest.mark.parametrize(
    "record", [{}, [], {"turns": []}, {"prompt": " "}, {"prompt": 3}, {"token_ids": ["a"]}]
)
def test_a_line_without_a_prompt_is_named(tmp_path: Path, record: object) -> None:
    with pytest.raises(InvalidRequest, match=r"some\.jsonl:2"):
        list(read_prompts(written(tmp_path, {"prompt": "fine"}, record)))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        list(read_prompts(tmp_path / "none.jsonl"))


def test_questions_are_a_function_of_texts_and_seed() -> None:
    texts = prompts(200, seed=3)
    asking = Asking((0.0, 0.5, 1.0), max_tokens=9, max_prompt=6, seed=1)
    asked = as_questions(TARGET, texts, asking)
    assert 0 < len(asked) < 200, "longer prompts are left out"
    assert all(len(one.prompt) <= 6 for one in asked)
    assert asked == as_questions(TARGET, texts, asking)
    assert len({one.sampling_key for one in asked}) == len(asked)
    counts = Counter(one.params.temperature for one in asked)
    assert set(counts) == {0.0, 0.5, 1.0}
    assert min(counts.values()) > len(asked) / 5


def test_more_made_up_prompts_leave_the_first_ones_as_they_are() -> None:
    few, many = agent_prompts(20, seed=4), agent_prompts(60, seed=4)
    assert many[:20] == few
    assert agent_prompts(20, seed=5) != few
    assert len({one.prompt for one in many}) > 55
    assert len({one.kind for one in many}) == 6
    assert {text.source for text in agent_texts(6, 4)} == {f"agent:{one.kind}" for one in few[:6]}
