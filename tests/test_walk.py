"""Walking a text, and the skew test: the served run has the same A in every round (pitfall E3)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from coordinator.coordinator import SOURCES
from deploy.in_process import in_process
from deploy.questions import Asking
from draft_service.loader import load_drafter
from draft_service.proposal import DraftDescription, DraftItem, DraftMode, DraftResult, ProposesTokens
from draft_service.training.loop import DRAFTER
from draft_service.training.run import train
from draft_service.training.scores import conditional, score
from draft_service.training.walk import Round, WalkOptions, begin, count_accepted, walk_all
from protos import coordinator_pb2
from protos.errors import ContractMismatch
from protos.shards import CapturedSequence
from target_service.build import BuiltTarget, assemble
from target_service.config import TargetConfig
from target_service.loader import load
from tests.training_fakes import (
    NUM_TAPPED,
    Seen,
    answered,
    learnable_target,
    prompts,
    run_options,
    sequences_of,
    small_recipe,
)

MAX_TOKENS = 32
K = 4


def text(
    ids: Sequence[int], prompt_length: int, temperature: float = 0.0, key: bytes = b""
) -> CapturedSequence:
    """A captured text whose features are its positions."""
    rows = len(ids) - prompt_length
    positions = torch.arange(prompt_length - 1, len(ids) - 1, dtype=torch.float32)
    return CapturedSequence(
        token_ids=torch.tensor(ids, dtype=torch.int32),
        prompt_length=prompt_length,
        temperature=temperature,
        source="",
        first_position=prompt_length - 1,
        features=positions[:, None, None].expand(rows, 1, 2),
        greedy_tokens=torch.tensor(ids[prompt_length:], dtype=torch.int32),
        log_normalisers=torch.zeros(rows),
        sampling_key=key,
    )


class Scripted:
    """Proposes the true text except where told; remembers what it was asked."""

    def __init__(self, ids: Sequence[int], wrong: Sequence[int]) -> None:
        self.ids, self.wrong = ids, set(wrong)
        self.items: list[DraftItem] = []

    def propose(self, items: Sequence[DraftItem]) -> list[DraftResult]:
        self.items += items
        return [DraftResult(tuple(self._token(i.position + j) for j in range(1, i.k + 1))) for i in items]

    def _token(self, position: int) -> int:
        true = self.ids[position] if position < len(self.ids) else 7
        return true + 1 if position in self.wrong else true


def test_the_next_anchor_is_the_token_that_the_target_gave() -> None:
    ids = list(range(10, 30))  # 4 of the prompt, anchors from 4
    drafter = Scripted(ids, wrong=[6, 12])
    (walk,) = walk_all(drafter, [text(ids, 4)], WalkOptions(3))
    assert [(one.position, one.accepted) for one in walk.rounds] == [
        (4, 1),
        (6, 3),
        (10, 1),
        (12, 3),
        (16, 2),
    ]
    # Near the end fewer are asked for: one proposal less than tokens remain.
    assert [one.asked for one in walk.rounds] == [3, 3, 3, 3, 2]
    assert [float(item.features[0, 0]) for item in drafter.items if item.features is not None] == [
        3.0, 5.0, 9.0, 11.0, 15.0,
    ]  # fmt: skip
    assert [item.recent_tokens for item in drafter.items] == [(14,), (16,), (20,), (22,), (26,)]
    assert walk.num_tokens == 15
    assert score("", 0.0, [walk], 3).tau == 3.0


def test_a_limit_beyond_the_text_asks_for_more_than_the_text_has() -> None:
    """The text ended by EOS: serving did not know it would."""
    ids = list(range(10, 20))
    (walk,) = walk_all(Scripted(ids, []), [text(ids, 4)], WalkOptions(3, max_tokens=100))
    assert [(one.asked, one.accepted) for one in walk.rounds] == [(3, 3), (3, 1)]


def test_a_wrong_first_proposal_commits_one_token_a_round() -> None:
    ids = list(range(10, 20))
    (walk,) = walk_all(Scripted(ids, range(30)), [text(ids, 4)], WalkOptions(3))
    assert score("", 0.0, [walk], 3).tau == 1.0
    assert count_accepted((1, 2, 3), (1, 9, 3)) == 1


def test_conditional_acceptance_counts_only_rounds_that_reached_the_proposal() -> None:
    rounds = [(4, 4), (4, 2), (4, 0), (2, 2)]  # (verified, accepted)
    assert conditional(rounds, 5) == (3 / 4, 1.0, 1 / 2, 1.0, None)


def test_sampled_text_of_unknown_noise_is_refused() -> None:
    with pytest.raises(ContractMismatch, match="sampling key"):
        begin(text([1, 2, 3], 1, temperature=1.0), WalkOptions(3))


class Recording:
    """A drafter that notes each round that it is asked for."""

    def __init__(self, inner: ProposesTokens) -> None:
        self._inner = inner
        self.asked: dict[str, list[tuple[int, tuple[int, ...]]]] = {}

    @property
    def description(self) -> DraftDescription:
        return self._inner.description

    def self_test(self) -> None:
        self._inner.self_test()

    def propose(self, items: Sequence[DraftItem]) -> list[DraftResult]:
        results = self._inner.propose(items)
        for item, result in zip(items, results, strict=True):
            self.asked.setdefault(item.request_id, []).append((item.position, result.tokens))
        return results


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learnable_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def drafter_folder(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained a little: right often, wrong often."""
    folder = tmp_path_factory.mktemp("train")
    data = answered(target, folder / "data", prompts(60, seed=1), Asking((0.0, 1.0), max_tokens=MAX_TOKENS))
    recipe = small_recipe(steps=120, batch_anchors=64, group_anchors=32)
    train(recipe, run_options(data, target, folder / "run", save_every=120), Seen())
    return folder / "run" / DRAFTER


def serving(target: Path) -> BuiltTarget:
    config = TargetConfig.load(None, target=str(target), num_tapped_layers=NUM_TAPPED, num_pages=256)
    return assemble(load(str(target), "float32", "cpu"), config)


async def served_rounds(
    built: BuiltTarget, drafter: ProposesTokens, sequences: Sequence[CapturedSequence]
) -> tuple[list[list[int]], list[list[Round]]]:
    """Texts and draft rounds of one request for each captured text, all at once."""
    recording = Recording(drafter)
    async with in_process(built, recording) as system:

        async def one(index: int, sequence: CapturedSequence) -> list[int]:
            message = coordinator_pb2.GenerateRequest(
                request_id=str(index),
                token_ids=sequence.token_ids[: sequence.prompt_length].tolist(),
                temperature=sequence.temperature,
                resume=coordinator_pb2.Resume(sampling_key=sequence.sampling_key),
                max_tokens=MAX_TOKENS,
                speculation=coordinator_pb2.Speculation(
                    source=SOURCES["drafter"], num_draft_tokens=K, verify_block_size=K + 1
                ),
            )
            generation = await system.coordinator.admit(message)
            ids: list[int] = []
            async for response in generation.attach().messages():
                if response.HasField("delta"):
                    ids += response.delta.token_ids
            return ids

        texts = await asyncio.gather(*(one(i, sequence) for i, sequence in enumerate(sequences)))
    rounds = []
    for index, sequence in enumerate(sequences):
        whole = [*sequence.token_ids[: sequence.prompt_length].tolist(), *texts[index]]
        rounds.append(
            [
                Round(position, len(tokens), tokens, count_accepted(tokens, whole[position + 1 :]))
                for position, tokens in recording.asked.get(str(index), [])
            ]
        )
    return texts, rounds


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_walk_and_served_run_have_the_same_rounds(
    target: Path, drafter_folder: Path, tmp_path: Path, temperature: float
) -> None:
    asking = Asking((temperature,), max_tokens=MAX_TOKENS, seed=5)
    sequences = sequences_of(answered(target, tmp_path / "texts", prompts(100, seed=4), asking))
    drafter = load_drafter(drafter_folder, target)
    walks = sorted(
        walk_all(drafter, sequences, WalkOptions(K, MAX_TOKENS)),
        key=lambda walk: next(i for i, s in enumerate(sequences) if s is walk.sequence),
    )
    texts, rounds = await served_rounds(serving(target), drafter, sequences)
    for walk, ids, served in zip(walks, texts, rounds, strict=True):
        assert ids == walk.sequence.token_ids[walk.sequence.prompt_length :].tolist()
        assert served == walk.rounds
    total = [one for walk in walks for one in walk.rounds]
    assert len(total) >= 500
    assert len({one.accepted for one in total}) == K + 1, "every A occurs"
    assert all(walk.mode is (DraftMode.COUPLED if temperature else DraftMode.GREEDY) for walk in walks)
