"""A trace in the hands of a fresh tuner."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.trace.activity import Activity
from coordinator.trace.explain import MOST_LINES, NOTHING, explanation_from, replay_lines, summary
from coordinator.trace.format import pack_header, pack_records
from coordinator.trace.observer import explanation_to
from coordinator.trace.reader import Trace
from coordinator.trace.record import RoundParts, RoundSource
from coordinator.trace.remote import explain_tuner
from coordinator.trace.replay import Replay, groups, replay
from coordinator.trace.settings import parse_settings, setting_names
from coordinator.tuner.costs import CostPriors
from coordinator.tuner.probing import ProbeSettings
from coordinator.tuner.tuner import TunerSettings
from deploy.cli import run
from protos.errors import InvalidRequest
from tests.coordinator_fakes import TableEngine
from tests.coordinator_harness import DraftServer, request
from tests.test_coordinator_cli import dlite as dlite_process
from tests.test_coordinator_server import drafted_stack, wrong_from
from tests.trace_world import World


def dlite(*words: str) -> int:
    """The exit code of a command line; a typer command that ends well raises SystemExit."""
    try:
        return run(words)
    except SystemExit as end:
        return int(end.code or 0)


QUIET = TunerSettings(probes=ProbeSettings(most=0.0))


def replayed(trace: Trace) -> Replay:
    return replay(trace, QUIET, CostPriors())


def saved(trace: Trace, path: Path) -> Path:
    path.write_bytes(pack_header(trace.header) + pack_records(trace.records))
    return path


def test_a_good_drafter_is_used_more_than_it_was() -> None:
    """v = 3 was fixed where a_j = .95 and rows are cheap: the tuner would have verified more, and says
    rightly what was to be had from v = 3."""
    found = replayed(World(acceptance=lambda _: 0.95).trace(300))
    last = found.points[-1]
    assert last.chosen == 3.0
    assert last.replayed > 4.0
    assert last.predicted_replayed > last.predicted_chosen
    assert last.measured == pytest.approx(last.predicted_chosen, rel=0.1)
    assert summary(found.points)["prediction_error"] < 0.15


def test_a_useless_drafter_is_left() -> None:
    found = replayed(World(acceptance=lambda _: 0.05).trace(300))
    assert found.points[-1].replayed == 1.0
    assert found.explanation is not None
    assert found.explanation.chosen.num_draft_tokens == 0


def test_a_switch_is_followed() -> None:
    world = World(acceptance=lambda seconds: 0.95 if seconds < 2.0 else 0.0)
    points = replayed(world.trace(400)).points
    assert max(each.replayed for each in points if 1.0 < each.seconds < 1.9) > 3.0
    assert points[-1].replayed == 1.0


def test_a_point_knows_nothing_of_what_follows() -> None:
    """What comes later may be anything: the choices before it stay the same."""
    whole = World(acceptance=lambda seconds: 0.9 if seconds < 1.5 else 0.1).trace(200)
    instead = World(acceptance=lambda seconds: 0.9).trace(200)
    same = [a for a, b in zip(whole.records, instead.records, strict=True) if a == b]
    assert 20 < len(same) < 400
    until = same[-1].ended - Activity(whole.records).begin - 0.05
    first, second = ([e for e in replayed(each).points if e.seconds < until] for each in (whole, instead))
    assert [replace(e, measured=0.0) for e in first] == [replace(e, measured=0.0) for e in second]
    assert len(first) > 20


def test_a_step_that_many_shared_is_learned_once() -> None:
    """Two requests in one step of 6 rows: one measurement, not two."""
    trace = World().trace(3)
    once = replayed(trace)
    slow = [
        replace(r, target_step=replace(r.target_step, seconds=9.0)) if r.request_id == "r1" else r
        for r in trace.records
    ]
    assert replayed(Trace(trace.header, tuple(slow))).points == once.points


def test_rounds_of_a_cohort_are_one_point() -> None:
    trace = World(num_requests=3).trace(5)
    assert [len(group.records) for group in groups(trace.records)] == [3] * 5
    alone = [replace(record, cohort=0) for record in trace.records]
    assert [len(group.records) for group in groups(alone)] == [1] * 15
    assert len(replayed(Trace(trace.header, tuple(alone))).points) == 15


def test_running_texts_count_as_requests() -> None:
    """A text in a run of 1 s while another drafts: both are there to be planned for."""
    trace = World(num_requests=1).trace(50)
    start, end = trace.records[0].ended - 0.02, trace.records[-1].ended
    run = replace(
        trace.records[0],
        request_id="other",
        source=RoundSource.RUN,
        ended=end,
        cohort=0,
        num_drafted=0,
        num_verified=0,
        num_accepted=0,
        num_tokens=40,
        parts=RoundParts(verify=end - start),
    )
    found = replayed(Trace(trace.header, (*trace.records, run)))
    assert {each.num_requests for each in found.points[1:]} == {2}
    assert found.points[20].chosen == 2.0


def test_rates_are_tokens_over_time() -> None:
    trace = World(num_requests=1, acceptance=lambda _: 1.0).trace(40)
    activity = Activity(trace.records)
    seconds = trace.records[0].parts.wall
    assert activity.rate(activity.begin, activity.end) == pytest.approx(3 / seconds)
    middle = activity.begin + 10.5 * seconds
    assert activity.rate(middle, middle + 0.1) == pytest.approx(3 / seconds)
    assert activity.rate(activity.end, activity.end + 1) == 0.0
    assert [span.request_id for span in activity.running(middle)] == ["r0"]
    assert activity.running(activity.end) == []


def test_a_trace_without_rounds_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        replayed(Trace(World().trace(1).header, ()))


def test_settings_by_name() -> None:
    settings, priors = parse_settings(
        ["margin=0.5", "probes.most=0", "cycles_per_plan=3", "priors.verify.fixed_seconds=0.2"]
    )
    assert (settings.margin, settings.probes.most, settings.cycles_per_plan) == (0.5, 0.0, 3)
    assert priors.verify.fixed_seconds == 0.2
    assert parse_settings([]) == (TunerSettings(), CostPriors())
    assert {"margin", "probes.budget", "priors.draft.row_seconds"} <= set(setting_names())


@pytest.mark.parametrize(
    "word", ["margin", "nothing=1", "margin=x", "margin=-1", "probes=1", "max_cohorts=1.5"]
)
def test_bad_settings_are_named(word: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_settings([word])
    assert caught.value.field == "--set"


def test_a_setting_changes_the_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(World(acceptance=lambda _: 0.95).trace(60), tmp_path / "trace")
    documents = []
    for words in ([], ["--set", "priors.verify.row_seconds=1"]):
        assert dlite("tune", "--replay", str(path), "--json", *words) == 0
        documents.append(json.loads(capsys.readouterr().out))
    assert len(documents[0]["points"]) == 60
    assert documents[0]["points"][-1]["replayed"] != documents[1]["points"][5]["replayed"]
    assert documents[0]["explanation"]["has_plan"]


def test_the_commands_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, png = saved(World().trace(200), tmp_path / "trace"), tmp_path / "curve.png"
    assert dlite("tune", "--replay", str(path), "--png", str(png)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= MOST_LINES + 5
    assert "200 points" in lines[-2]
    assert png.read_bytes().startswith(b"\x89PNG")
    png.unlink()
    assert dlite("tune", "--replay", str(path), "--explain", "--png", str(png)) == 0
    out = capsys.readouterr().out
    assert "chosen: mean v" in out
    assert "v = 3" in out
    assert png.read_bytes().startswith(b"\x89PNG")
    assert dlite("tune", "--replay", str(path), "--explain", "--json") == 0
    sizes = json.loads(capsys.readouterr().out)["sizes"]
    assert [each["block_size"] for each in sizes] == list(range(1, 9))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "--address"),
        (["--replay", "nowhere"], "trace"),
        (["--address", "127.0.0.1:1", "--set", "margin=1"], "--set"),
    ],
)
def test_bad_usage_is_code_2(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dlite("tune", *words) == 2
    assert named in capsys.readouterr().err


def test_an_explanation_survives_the_wire() -> None:
    explanation = replayed(World().trace(100)).explanation
    assert explanation is not None
    assert explanation_from(explanation_to(explanation)) == explanation


def test_no_points_is_no_crash() -> None:
    assert replay_lines(Replay((), None))[-1] == "no points"


async def test_a_running_coordinator_explains_itself() -> None:
    """Before it has run anything; and while a drafter is right twice a round."""
    engine = TableEngine()
    async with drafted_stack(engine, DraftServer(wrong_from(engine, 2))) as (client, running, _):
        assert explanation_from(await explain_tuner(running.address)) is None
        assert (await dlite_process("tune", "--address", running.address)).out == NOTHING + "\n"
        text = asyncio.create_task(client.complete(request(max_tokens=400)))
        found = None
        while not text.done() and (found is None or len(found.sizes) < 3 or found.acceptance[0] < 0.5):
            found = explanation_from(await explain_tuner(running.address))
        await text
        done = await dlite_process("tune", "--address", running.address, "--explain", "--json")
    assert found is not None
    assert found.num_requests == 1
    assert len(found.sizes) > 2
    assert found.acceptance[0] > 0.5
    assert all(each.predicted > 0 for each in found.sizes)
    assert (done.code, json.loads(done.out)["has_plan"]) == (0, True)


def test_of_several_targets_one_is_replayed() -> None:
    """Their cohorts and steps have the same numbers, and each had a tuner of its own."""
    trace = World().trace(60)
    busy = [replace(record, target="a:1") for record in trace.records]
    other = [
        replace(record, target="b:1", request_id=f"other {record.request_id}")
        for record in World().trace(40, seed=1).records
    ]
    mixed = Trace(trace.header, tuple(sorted([*busy, *other], key=lambda record: record.ended)))
    alone, found = (replay(each, TunerSettings(), CostPriors()) for each in (trace, mixed))
    assert (found.points, found.explanation) == (alone.points, alone.explanation)
    assert (found.target, found.num_others) == ("a:1", len(other))
    assert replay(mixed, TunerSettings(), CostPriors(), target="b:1").num_others == len(busy)
    with pytest.raises(InvalidRequest):
        replay(mixed, TunerSettings(), CostPriors(), target="c:1")
