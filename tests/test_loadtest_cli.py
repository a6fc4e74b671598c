"""`dlite loadtest` as a process, and the load test against a whole coordinator."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from coordinator.client import AsyncClient
from coordinator.loadtest.document import exit_code, point_result
from coordinator.loadtest.execution import Execution, Job
from coordinator.loadtest.flags import make_addresses
from coordinator.loadtest.measuring import Where, heading_now, measure
from coordinator.loadtest.options import Data, Point, Shown
from protos.errors import InvalidRequest, Unavailable
from tests import loadtest_fakes as fakes
from tests.test_client import front, serve
from tests.test_coordinator_cli import Done, dlite

GREEDY = {"temperature": 0.0, "speculation": {"num_draft_tokens": 4, "verify_block_size": 5}}


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


async def loadtest(address: str, *flags: str) -> Done:
    done = await dlite(
        "loadtest", "--address", address, "--num-prompts", "6", "--max-concurrency", "1", *flags
    )
    assert "Traceback" not in done.err
    return done


async def test_json_is_one_object_and_the_result_is_saved(tmp_path: Path) -> None:
    async with fakes.serve(fakes.MixedServer().send) as address:
        saved = ("--save-detailed", "--result-dir", str(tmp_path), "--label", "x", "--metadata", "a=b")
        done = await loadtest(address, "--json", *saved)
    assert done.code == 1
    assert len(done.out.splitlines()) == 1
    result = json.loads(done.out)
    assert (result["completed"], result["failed"], result["num_ttft"]) == (3, 3, 3)
    assert result["a"] == "b"
    path = only_file(tmp_path)
    assert path.name.startswith("x-infqps-concurrency1-tiny-")
    stored = json.loads(path.read_text())
    assert stored["errors"][1].startswith("EMPTY")
    assert {key: stored[key] for key in result} == result


async def test_failures_that_are_allowed_and_the_table() -> None:
    async with fakes.serve(fakes.MixedServer().send) as address:
        done = await loadtest(address, "--max-failed", "3")
    assert done.code == 0
    assert "Successful requests:                     3" in done.out
    assert "  failed: CUT" in done.out or "  failed: UNAVAILABLE" in done.out


async def test_an_open_loop_along_a_ramp_with_bounds_and_a_report(tmp_path: Path) -> None:
    ramp = ("--ramp-up-strategy", "linear", "--ramp-up-start-rps", "50", "--ramp-up-end-rps", "500")
    async with fakes.serve(fakes.CachingServer().send) as address:
        more = ("--goodput", "ttft:60000 e2el:60000", "--num-warmups", "1", "--report", str(tmp_path))
        done = await loadtest(address, "--json", *ramp, *more)
    result = json.loads(done.out)
    assert (done.code, result["completed"]) == (0, 6)
    assert result["ramp"] == {"strategy": "linear", "start_rate": 50.0, "end_rate": 500.0}
    assert result["request_goodput"] == result["request_throughput"]
    assert "report.html" in done.err


async def test_no_success_is_code_1() -> None:
    async with fakes.serve(fakes.MixedServer(("empty",)).send) as address:
        done = await loadtest(address, "--max-failed", "100", "--json")
    assert done.code == 1
    assert json.loads(done.out)["completed"] == 0


async def test_a_second_run_with_a_warm_cache_is_flagged() -> None:
    async with fakes.serve(fakes.CachingServer().send) as address:
        fresh = [json.loads((await loadtest(address, "--json")).out) for _ in range(2)]
        fixed = [await loadtest(address, "--json", "--seed", "1") for _ in range(2)]
    assert [each["cached_tokens"] for each in fresh] == [0, 0]
    assert [each["warnings"] for each in fresh] == [[], []]
    first, second = (json.loads(each.out) for each in fixed)
    assert (first["cached_tokens"], second["cached_tokens"]) == (0, 6 * 128)
    assert not any("was warm" in each for each in first["warnings"])
    assert any("was warm before this run: 128 of 128" in each for each in second["warnings"])
    assert "the seed is fixed" in fixed[0].err


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--dataset-name", "sharegpt"), "--dataset-name"),
        (("--dataset-name", "custom"), "--dataset-path"),
        (("--request-rate", "0"), "--request-rate"),
        (("--ramp-up-strategy", "linear"), "--ramp-up-strategy"),
        (("--goodput", "ttft:x"), "--goodput"),
        (("--metadata", "x"), "--metadata"),
        (("--extra-body", "[]"), "--extra-body"),
        (("--extra-body", '{"nonsense": 1}'), "--extra-body"),
        (("--source", "oracle"), "--source"),
        (("--cancel-rate", "2"), "--cancel-rate"),
        (("--backend", "vllm"), "--backend"),
    ],
)
def test_bad_flags_are_code_2(flags: tuple[str, ...], named: str, capfd: pytest.CaptureFixture[str]) -> None:
    from deploy.cli import run

    assert run(["loadtest", "--address", "127.0.0.1:1", *flags]) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert named in captured.err


def test_addresses() -> None:
    assert make_addresses("http://a:1/,b:2", "unused", None) == ("a:1", "b:2")
    assert make_addresses(None, "h", 5) == ("h:5",)
    with pytest.raises(InvalidRequest):
        make_addresses(None, "h", None)


async def test_nobody_there_is_an_error() -> None:
    job = Job(Data(num_prompts=1), (Point(math.inf, 1),), 1, "run")
    with pytest.raises(Unavailable):
        await measure(job, Where(("127.0.0.1:1",)), Shown(), heading_now(None, {}, []))


async def against_a_coordinator(data: Data, **changes: Any) -> tuple[dict[str, Any], int]:
    """Both arms against a whole coordinator on the table target, whose drafter is right twice a round."""
    job = Job(data, (Point(math.inf, 2),), 3, "run", fields=GREEDY, baseline_blocks=2, **changes)
    async with serve(front("")) as addresses, AsyncClient(*addresses) as client:
        run = await Execution(job, client.generate, 100).run_point(0)
    result = point_result(run, job, heading_now(None, {}, []), Shown())
    return result, exit_code([result], 0)


async def test_both_arms_of_a_whole_coordinator_say_the_same() -> None:
    result, code = await against_a_coordinator(Data(num_prompts=6, output_len=20))
    assert (result["completed"], result["baseline"]["completed"], code) == (6, 6, 0)
    assert result["text_equality"]["equal"] == result["text_equality"]["compared"] == 6
    assert result["spec_decode_acceptance_length"] == pytest.approx(3.0, abs=0.3)
    assert result["spec_decode_per_position_acceptance_rates"][:4] == pytest.approx([1, 1, 0, 0])
    assert result["baseline"]["spec_decode_acceptance_rate"] is None
    assert result["tokens_per_chunk"] > 2 > 1.5 > result["baseline"]["tokens_per_chunk"]
    workflow = result["speedup"]["workflow"]
    assert workflow["num_sessions"] == 6
    assert 0 < workflow["decode_share"] <= 1


async def test_an_agents_sessions_against_a_whole_coordinator(tmp_path: Path) -> None:
    data = Data("agent", num_prompts=4, turns=3, input_len=20, turn_len=5, output_len=10, pause_seconds=0.01)
    result, code = await against_a_coordinator(data)
    assert (result["completed"], result["failed"], code) == (12, 0, 0)
    assert result["text_equality"]["equal"] == 12
    split = result["sessions"]
    assert split["count"] == 4
    assert split["tool_s"] > 0
    parts = sum(split[f"{name}_s"] for name in ("queue", "prefill", "decode", "tool", "other"))
    assert parts == pytest.approx(split["wall_s"], rel=0.05)


async def test_rows_of_a_file_become_sessions(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"turns": ["hello", "and then?"]}\n\n{"prompt": "once", "output_tokens": 7}\n')
    result, _ = await against_a_coordinator(Data("custom", path, num_prompts=3))
    assert result["completed"] == 5
    assert result["text_equality"]["equal"] == 5


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "{}", '{"turns": []}', '{"turns": [1]}', '{"prompt": "a", "output_tokens": 0}', "[1]"),
        '{"turns": [{"content": ""}]}',
        '{"turns": [{"text": "a"}]}',
        '{"turns": [{"content": "a", "pause_ms": -1}]}',
        '{"turns": [{"content": "a", "cancel_after": 0}]}',
        '{"turns": [{"content": {"content": "a"}}]}',
    ],
)
async def test_bad_rows_are_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text + "\n")
    with pytest.raises(InvalidRequest) as caught:
        await against_a_coordinator(Data("custom", path, num_prompts=1))
    assert caught.value.field == "--dataset-path"
    assert str(path) in str(caught.value)
