"""The report of a load test: one page that needs nothing else, and its figures."""

from __future__ import annotations

import math
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from coordinator.ledger import Block, Ledger
from coordinator.loadtest.document import Heading, details, point_result
from coordinator.loadtest.execution import Execution, Job
from coordinator.loadtest.figures import pictures
from coordinator.loadtest.options import Data, Shown, parse_points
from coordinator.loadtest.report import page
from coordinator.loadtest.saving import save_report
from protos import coordinator_pb2 as pb
from protos.coordinator_pb2 import PROPOSAL_SOURCE_DRAFTER, SPECULATION_MODE_OFF
from tests.loadtest_fakes import RefusingServer, TimedServer, run_in_virtual_time

NAMES = {"timeline", "latency", "rounds", "sessions", "positions", "sweep"}
PNG = b"\x89PNG\r\n"


class Speculating:
    """Chunks of three tokens, and ledgers to match; one token at a time when speculation is off."""

    def __init__(self) -> None:
        self.num_requests = 0

    async def send(self, message: pb.GenerateRequest) -> Any:
        off = message.speculation.mode == SPECULATION_MODE_OFF
        self.num_requests += 1
        ledger = Ledger(num_rounds=3, prefill_seconds=0.01, draft_seconds=0.02, verify_seconds=0.1)
        for number in range(0 if off else 3):
            accepted = (self.num_requests + number) % 5
            ledger.note_block(Block(PROPOSAL_SOURCE_DRAFTER, 6, 4, min(accepted, 4), min(accepted, 4) + 1))
        inner = TimedServer(0.02 if off else 0.015 + 0.001 * (self.num_requests % 3), num_tokens=9)
        async for response in inner.send(message):
            if response.WhichOneof("body") == "finished":
                response.finished.ledger.CopyFrom(ledger.to_message())
                response.finished.usage.CopyFrom(ledger.usage(10, 9, 0.2))
            yield response


def results_of(
    send: Any, concurrencies: str = "1,4", baseline_blocks: int = 2, data: Data | None = None
) -> list[dict[str, Any]]:
    data = data or Data("agent", num_prompts=8, turns=3, pause_seconds=0.05, output_len=9)
    job = Job(data, parse_points("inf", concurrencies), 7, "run", baseline_blocks=baseline_blocks)
    heading = Heading(datetime(2030, 1, 2), "models/<tiny>", "models/<tiny>")

    async def run() -> list[dict[str, Any]]:
        execution = Execution(job, send, 100)
        points = [await execution.run_point(number) for number in range(len(job.points))]
        return [{**point_result(each, job, heading, Shown()), **details(each)} for each in points]

    return run_in_virtual_time(run())


class Links(HTMLParser):
    """Everything that a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.found += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_stands_alone_and_has_every_figure(tmp_path: Path) -> None:
    path = save_report(tmp_path / "new", results_of(Speculating().send), Shown())
    links = Links()
    links.feed(path.read_text(encoding="utf-8"))
    assert len(links.found) == len(NAMES)
    assert all(each.startswith("data:image/png;base64,") for each in links.found)
    assert "tiny" not in links.tags, "a name in the data is text, not a tag"
    files = {each.stem: each.read_bytes() for each in path.parent.glob("*.png")}
    assert set(files) == NAMES
    assert all(content.startswith(PNG) for content in files.values())


def test_a_single_point_without_speculation_has_fewer_figures() -> None:
    results = results_of(TimedServer(0.01, num_tokens=3).send, "2", baseline_blocks=0)
    assert {each.name for each in pictures(results)} == {"latency", "sessions"}
    assert "Load test" in page(results, (), Shown())


def test_categories_of_a_file_are_a_matrix(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a", "category": "code"}\n{"prompt": "b", "category": "prose"}\n')
    (result,) = results_of(Speculating().send, "1", 0, Data("custom", path, num_prompts=4))
    assert set(result["spec_decode_by_category"]) == {"code", "prose"}
    assert "categories" in {each.name for each in pictures([result])}
    assert "  prose " in page([result], (), Shown())


def test_a_run_without_success_has_a_page() -> None:
    results = results_of(RefusingServer().send, "2", baseline_blocks=0)
    text = page(results, pictures(results), Shown())
    assert "Failed requests:                         8" in text


def test_details_tell_acceptance_k_and_v_of_each_request() -> None:
    (result,) = results_of(Speculating().send, "1", baseline_blocks=0)
    assert set(result["mean_num_draft_tokens"]) == {6.0}
    assert set(result["mean_verify_block_sizes"]) == {5.0}
    assert all(0 <= rate <= 1 for rate in result["acceptance_rates"])
    assert math.isclose(result["acceptance_rates"][0], (1 + 2 + 3) / 12)
