"""Exported and captured states are the served ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from protos.errors import InvalidRequest, NotFound
from protos.shards import CapturedSequence
from target_service.answering import Answering, Question
from target_service.engine import Engine
from target_service.export import ExportLimits, TokenSequence, capture, read_sequences
from target_service.model import TargetModel
from target_service.recording import Recorder
from tests.fakes import KEY, Driver, limits_for, params, tiny_engine, tiny_target

LAYERS = (0, 1, 2)
# float64 sums in another order.
TOLERANCE = 1e-9


def lengths(count: int) -> list[TokenSequence]:
    generator = torch.Generator().manual_seed(0)
    found = []
    for index in range(count):
        ids = torch.randint(0, 61, (9 + 7 * index,), generator=generator).tolist()
        found.append(TokenSequence(tuple(ids), 2 + index, 0.0, f"text {index}"))
    return found


def exported(sequences: list[TokenSequence], limits: ExportLimits) -> list[CapturedSequence]:
    model = TargetModel(tiny_target(), LAYERS, num_pages=64, page_size=16)
    return list(capture(model, sequences, limits))


@pytest.mark.parametrize("step_rows", [5, 16, 40])
@pytest.mark.parametrize("history", [0, 3])
def test_chunks_and_neighbours_do_not_change_what_is_exported(step_rows: int, history: int) -> None:
    sequences = lengths(4)
    together = exported(sequences, ExportLimits(step_rows, history))
    for one, found in zip(sequences, together, strict=True):
        (alone,) = exported([one], ExportLimits(512, history))
        assert found.first_position == max(one.prompt_length - 1 - history, 0)
        assert len(found.features) == len(one.token_ids) - 1 - found.first_position
        assert torch.allclose(found.features, alone.features, atol=TOLERANCE, rtol=0)
        assert torch.equal(found.greedy_tokens, alone.greedy_tokens)
        assert torch.allclose(found.log_normalisers, alone.log_normalisers, atol=1e-5)
        assert found.token_ids.tolist() == list(one.token_ids)


def test_row_x_is_what_a_request_gets_as_pivot_of_the_anchor_after_it() -> None:
    engine = tiny_engine(tiny_target(), LAYERS)
    driver = Driver(engine)
    driver.open([5, 9, 0, 17], params(12))
    served = [driver.features]
    while driver.finish_reason is None:
        driver.run(1)
        served.append(driver.features)
    sequence = TokenSequence(tuple(driver.tokens), 4, 0.0, "")
    (found,) = exported([sequence], ExportLimits())
    # The first features come with the first response token, from the last prompt position.
    assert found.first_position == 3
    for row, features in enumerate(served[:-1]):
        assert features is not None
        assert torch.allclose(found.features[row], features, atol=TOLERANCE, rtol=0)
    assert found.greedy_tokens.tolist() == driver.generated


def test_the_law_follows_from_the_last_feature() -> None:
    model = tiny_target()
    (sequence,) = lengths(1)
    (found,) = exported([sequence], ExportLimits())
    logits = found.features[:, -1] @ model.lm_head.weight.T
    assert torch.equal(logits.argmax(dim=-1), found.greedy_tokens.long())
    assert torch.allclose(torch.logsumexp(logits, dim=-1).float(), found.log_normalisers, atol=1e-5)


def asked(temperature: float) -> list[Question]:
    questions = []
    for index in range(7):
        prompt = tuple((7 * i + index) % 61 for i in range(3 + 5 * index))
        questions.append(Question(prompt, params(5 + 3 * index, temperature), KEY, f"prompt {index}"))
    return questions


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("num_pages", [64, 8])
def test_online_capture_equals_offline_export(temperature: float, num_pages: int) -> None:
    """Also when requests are put out for lack of pages and computed again."""
    model = TargetModel(tiny_target(), LAYERS, num_pages, 16)
    recorder = Recorder(model, 16, torch.float64)
    engine = Engine(recorder, limits_for(num_pages=num_pages))
    answers = list(Answering(engine, recorder, concurrency=5).answers(asked(temperature)))
    assert [one.source for one in answers] == [one.source for one in asked(temperature)]
    texts = [
        TokenSequence(tuple(one.token_ids.tolist()), one.prompt_length, temperature, one.source)
        for one in answers
    ]
    for online, offline in zip(answers, exported(texts, ExportLimits()), strict=True):
        assert online.first_position == offline.first_position
        assert torch.allclose(online.features, offline.features, atol=TOLERANCE, rtol=0)
        assert torch.equal(online.greedy_tokens, offline.greedy_tokens)
        assert torch.allclose(online.log_normalisers, offline.log_normalisers, atol=1e-5)
    assert len(engine.requests) == 0


def test_answers_are_what_plain_decoding_gives() -> None:
    engine = tiny_engine(tiny_target(), LAYERS)
    expected = []
    for index, question in enumerate(asked(1.0)):
        driver = Driver(engine, f"r{index}")
        driver.open(question.prompt, question.params)
        while driver.finish_reason is None:
            driver.run(100)
        expected.append(driver.tokens)
        driver.close()
    recorder = Recorder(TargetModel(tiny_target(), LAYERS, 64, 16), 16, torch.float64)
    answering = Answering(Engine(recorder, limits_for()), recorder, concurrency=3)
    assert [one.token_ids.tolist() for one in answering.answers(asked(1.0))] == expected


def test_a_stop_token_ends_an_answer_and_is_kept() -> None:
    recorder = Recorder(TargetModel(tiny_target(), LAYERS, 64, 16), 16, torch.float64)
    plain = list(Answering(Engine(recorder, limits_for()), recorder, 1).answers(asked(0.0)[-1:]))
    stop = int(plain[0].token_ids[plain[0].prompt_length])
    limits = limits_for(eos_ids=frozenset({stop}))
    stopped = list(Answering(Engine(recorder, limits), recorder, 1).answers(asked(0.0)[-1:]))
    assert stopped[0].num_response_tokens == 1
    assert stopped[0].token_ids[-1] == stop


@pytest.mark.parametrize(
    "line",
    ["{", "[]", '{"ids": [1, 2]}', '{"ids": [1, 99], "prompt_len": 1}', '{"ids": [1, 2], "prompt_len": 2}',
     '{"ids": [1, 2.5], "prompt_len": 1}', '{"ids": [1, 2], "prompt_len": 0}'],
)  # fmt: skip
def test_lines_that_are_no_sequence_are_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "s.jsonl"
    file.write_text(json.dumps({"ids": [1, 2, 3], "prompt_len": 1}) + "\n" + line + "\n")
    with pytest.raises(InvalidRequest, match=r"s\.jsonl:2"):
        read_sequences(file, 61, 512)


def test_files_that_cannot_be_exported_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        read_sequences(tmp_path / "none", 61, 512)
    file = tmp_path / "s.jsonl"
    file.write_text(json.dumps({"ids": [1] * 30, "prompt_len": 1}))
    with pytest.raises(InvalidRequest, match="30 tokens"):
        read_sequences(file, 61, 16)
    file.write_text("\n")
    with pytest.raises(InvalidRequest, match="no sequences"):
        read_sequences(file, 61, 512)
