"""Made-up traces and the held-out agent prompts: repeatable, of the wanted length, and strangers."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from coordinator.tokenizer import FileTokenizer
from deploy import agent_words
from deploy.agent_held_out import KINDS, SEED, held_out_prompts, held_out_texts
from deploy.agent_prompts import agent_prompts
from deploy.agent_traces import _TEMPLATE_TOKENS, NUM_SHARING, Trace, agent_traces
from deploy.contamination import HASHES, find, read_hashes, runs, text_hashes
from deploy.questions import Asking, MadeUp, questions, trace_texts
from deploy.trace_words import HELD_OUT, TRAINING, TraceWords
from tests.coordinator_fakes import tokenizer_files


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A target folder, as far as prompts need one: a tokenizer of bytes with a chat template."""
    for name, content in tokenizer_files().items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def words_of(text: str) -> int:
    return len(text.split())


def text_of(trace: Trace) -> str:
    return "\n".join(content for _, content in trace.messages)


def test_more_traces_leave_the_first_ones_as_they_are() -> None:
    few, many = (agent_traces(n, 5, TRAINING, 400, words_of) for n in (6, 30))
    assert many[:6] == few
    assert agent_traces(6, 6, TRAINING, 400, words_of) != few
    assert len(agent_traces(3, 5, TRAINING)) == 3


@pytest.mark.parametrize("words", [TRAINING, HELD_OUT], ids=["training", "held out"])
@pytest.mark.parametrize("context", [300, 1500])
def test_a_context_is_nearly_reached_and_never_exceeded(words: TraceWords, context: int) -> None:
    for trace in agent_traces(8, 1, words, context, words_of):
        # As the generator counts: a chat template puts tokens around each message.
        size = sum(words_of(content) + _TEMPLATE_TOKENS for _, content in trace.messages)
        assert 0.85 * context < size <= context


def test_questions_in_a_row_share_their_history_and_others_do_not() -> None:
    traces = agent_traces(3 * NUM_SHARING, 2, TRAINING, 500, words_of)
    histories = [trace.messages[:-1] for trace in traces]
    assert all(histories[i] == histories[i - i % NUM_SHARING] for i in range(len(histories)))
    assert len(set(histories)) == 3
    assert {trace.kind for trace in traces} == set(KINDS)


def test_a_trace_is_calls_and_results_in_turn() -> None:
    for trace in agent_traces(40, 3, TRAINING):
        roles = [role for role, _ in trace.messages]
        turns = len(roles) - 3
        assert roles == ["system", "user", *["assistant", "user"] * (turns // 2), "user"]
        calls = [content for role, content in trace.messages if role == "assistant"]
        assert calls
        for call in calls:
            found = re.fullmatch(r"<tool_call>(.*)</tool_call>", call)
            assert found is not None
            assert json.loads(found[1])["name"] in TRAINING.tools


def test_contexts_become_questions_of_that_many_tokens(target: Path) -> None:
    """Longer ones than other prompts may be."""
    made_up = MadeUp(num_prompts=2, num_traces=4, contexts=(0, 4000))
    asked = questions(target, (), made_up, Asking(max_prompt=3000, seed=9))
    assert [one.source for one in asked[2:]] == ["trace:0"] * 4 + ["trace:4000"] * 4
    assert all(0.8 * 4000 < len(one.prompt) <= 4000 for one in asked[6:])
    assert asked == questions(target, (), made_up, Asking(max_prompt=3000, seed=9))


def test_the_length_of_a_trace_is_counted_in_the_targets_tokens(target: Path) -> None:
    tokenizer = FileTokenizer(target)
    (text, *_) = trace_texts(target, 1, 0, HELD_OUT, 3000)
    num_tokens = sum(len(tokenizer.encode(content)) for _, content in text.messages)
    assert 0.8 * 3000 < num_tokens <= 3000


def vocabulary(words: TraceWords) -> set[str]:
    """Every name that is filled in, and every form."""
    found: set[str] = set()
    for one in fields(words):
        value = getattr(words, one.name)
        if one.name == "questions":
            found |= {text for texts in value.values() for text in texts}
        elif isinstance(value, str):
            found.add(value)
        else:
            found |= set(value)
    return found


def test_held_out_traces_share_no_word_list_with_training() -> None:
    assert not vocabulary(TRAINING) & vocabulary(HELD_OUT)
    training = {*agent_words.TOOLS, *agent_words.SERVICES, *agent_words.CODE_WORDS, *agent_words.ITEMS}
    assert not training & vocabulary(HELD_OUT)


def test_held_out_prompts_share_no_tool_and_no_line_with_training() -> None:
    held_out = held_out_prompts(300)
    lines = {line for made in held_out for line in made.prompt.splitlines() if len(line.split()) > 2}
    training = {line for made in agent_prompts(3000, 11) for line in made.prompt.splitlines()}
    assert not lines & training
    text = "\n".join(made.prompt for made in held_out)
    assert not [tool for tool in agent_words.TOOLS if tool in text]
    assert {made.kind for made in held_out} == set(KINDS)
    assert held_out_prompts(30) == held_out[:30]


def test_training_prompts_hold_no_run_of_held_out_ones() -> None:
    """And neither holds one of the evaluation sets."""
    hashes = text_hashes(held_out_texts())
    assert len(hashes) > 10_000
    made = [(one.kind, one.prompt) for one in agent_prompts(3000, 11)]
    made += [(one.kind, text_of(one)) for one in agent_traces(200, 11, TRAINING, 1000, words_of)]
    assert sum(1 for _, text in made for _ in runs(text)) > 10_000
    assert find(made, hashes) == []
    sets = read_hashes(HASHES)
    assert find([*made, *(("held out", text) for text in held_out_texts())], sets) == []


def test_the_seed_of_measuring_is_no_seed_of_training_by_accident() -> None:
    assert SEED > 1_000_000
    assert held_out_prompts(9, SEED + 1) != held_out_prompts(9)
