"""The yardsticks' own arithmetic: order of runs, spread, the near-tie rule, the form of a result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from deploy.bench import results
from deploy.bench.comparison import Comparison, NearTie, compare, first_difference, is_passed
from deploy.bench.harness import (
    Outcome,
    abba,
    commit,
    interleave,
    machine,
    medians,
    paired_ratios,
    report,
    spread,
)

ROOT = Path(__file__).parent.parent
PLAIN = [5, 6, 7, 8, 9]


def test_arms_run_forwards_and_backwards() -> None:
    assert abba(["a", "b"], 4) == ["a", "b", "b", "a", "a", "b", "b", "a"]


async def test_runs_are_kept_in_order() -> None:
    counts = {"a": 0.0, "b": 10.0}

    async def next_of(name: str) -> float:
        counts[name] += 1
        return counts[name]

    said: list[str] = []
    runs = await interleave({"a": lambda: next_of("a"), "b": lambda: next_of("b")}, 2, said.append)
    assert [(run["arm"], run["value"]) for run in runs] == [("a", 1), ("b", 11), ("b", 12), ("a", 2)]
    assert len(said) == 4
    assert medians(runs)["b"].median == 11.5
    assert paired_ratios(runs, "b", "a") == [11.0, 6.0]


def test_spread_of_runs() -> None:
    values = spread([3.0, 1.0, 100.0])
    assert (values.median, values.low, values.high, values.num_runs) == (3.0, 1.0, 100.0, 3)
    with pytest.raises(ValueError, match="no runs"):
        spread([])


def test_a_result_has_the_fields_of_every_yardstick() -> None:
    outcome = Outcome(0.95, "ratio", 0.9, True, [{"arm": "a", "value": 1.0}, {"arm": "a", "value": 3.0}])
    result = json.loads(json.dumps(report("some", outcome)))
    assert {"name", "value", "unit", "bar", "pass", "runs", "machine", "commit"} <= set(result)
    assert (result["name"], result["value"], result["pass"]) == ("some", 0.95, True)
    assert result["arms"]["a"] == {"median": 2.0, "low": 1.0, "high": 3.0, "num_runs": 2}
    assert result["machine"]["cores"] >= 1
    assert machine()["torch"]
    assert len(commit().removesuffix("-dirty")) == 40


@pytest.mark.parametrize(
    ("got", "index"),
    [(PLAIN, None), ([5, 6, 0, 8, 9], 2), (PLAIN[:3], 3), ([*PLAIN, 1], 5), ([], 0)],
    ids=str,
)
def test_the_first_difference_counts_missing_tokens(got: list[int], index: int | None) -> None:
    assert first_difference(PLAIN, got) == index


async def compared(
    got: Sequence[int], continuations: dict[int, list[int]], gaps: dict[int, float]
) -> Comparison:
    async def continue_from(n: int) -> Sequence[int]:
        return continuations[n]

    return await compare(PLAIN, got, continue_from, gaps.__getitem__)


async def test_equal_ids_ask_nobody() -> None:
    assert await compared(PLAIN, {}, {}) == Comparison(5)


async def test_a_difference_without_a_tie_is_a_mismatch() -> None:
    result = await compared([5, 0, 7, 8, 9], {}, {1: 0.5})
    assert "index 1: 0, expected 6" in result.mismatch


async def test_a_nan_gap_excuses_nothing() -> None:
    assert (await compared([5, 0, 7, 8, 9], {}, {1: float("nan")})).mismatch


async def test_after_a_tie_the_comparison_goes_on_from_the_plain_prefix() -> None:
    result = await compared([5, 0, 1, 2, 3], {2: [7, 8, 9]}, {1: 1e-5})
    assert result == Comparison(5, (NearTie(1, 6, 0, 1e-5),))


async def test_a_mismatch_behind_a_tie_is_found() -> None:
    result = await compared([5, 0, 1, 2, 3], {2: [7, 0, 9]}, {1: 1e-5, 3: 0.2})
    assert len(result.near_ties) == 1
    assert result.mismatch.startswith("index 3: 0, expected 8")


async def test_two_ties_are_both_listed() -> None:
    result = await compared([0, 0, 0, 0, 0], {1: [6, 0, 0, 0], 3: [8, 9]}, {0: 1e-4, 2: 1e-4})
    assert [tie.index for tie in result.near_ties] == [0, 2]
    assert not result.mismatch


async def test_a_tie_at_the_last_token_ends_the_comparison() -> None:
    result = await compared([5, 6, 7, 8, 0], {}, {4: 1e-4})
    assert len(result.near_ties) == 1
    assert not result.mismatch


@pytest.mark.parametrize("got", [PLAIN[:4], [*PLAIN, 1]], ids=["short", "long"])
async def test_a_missing_or_extra_token_is_never_excused(got: list[int]) -> None:
    assert (await compared(got, {}, {4: 0.0, 5: 0.0})).mismatch == f"{len(got)} tokens, expected 5"


def test_too_many_ties_fail() -> None:
    tie = NearTie(0, 1, 2, 1e-6)
    assert is_passed([Comparison(1000, (tie,) * 3)])
    assert not is_passed([Comparison(1000, (tie,) * 4)])
    assert not is_passed([Comparison(1000), Comparison(1000, (), "index 3")])


def result_of(name: str, passed: bool = True) -> dict[str, object]:
    return report(name, Outcome(0.5, "ratio", 0.9, passed, [{"arm": "a", "value": 1.0}]))


def test_results_become_the_table_between_the_markers(tmp_path: Path) -> None:
    for name, passed in (("b", False), ("a", True)):
        results.save(result_of(name, passed), tmp_path)
    document = f"before\n{results.BEGIN}\nold\n{results.END}\nafter\n"
    written = results.with_table(document, results.load(tmp_path))
    assert written.startswith(f"before\n{results.BEGIN}\n| command")
    assert written.endswith(f"{results.END}\nafter\n")
    assert "old" not in written
    assert written.index("dlite bench a") < written.index("dlite bench b")
    assert "0.9, **not met**" in written
    assert results.with_table(written, results.load(tmp_path)) == written


def test_a_document_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="results"):
        results.with_table("no markers", [])


def test_the_readme_shows_the_committed_results() -> None:
    readme = (ROOT / "README.md").read_text()
    assert results.with_table(readme, results.load(ROOT / "docs" / "results")) == readme
