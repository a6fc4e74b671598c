"""The report of a load test: one page that needs nothing else, and its figures."""

from __future__ import annotations

import base64
import html
import io
import json
import math
import re
import shutil
import subprocess
import warnings
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import image

from coordinator.ledger import Block, Ledger
from coordinator.loadtest.document import Heading, details, point_result
from coordinator.loadtest.execution import Execution, Job
from coordinator.loadtest.figures import WORDS, ReportPoint, pictures
from coordinator.loadtest.options import Data, Shown, parse_points
from coordinator.loadtest.report import page
from coordinator.loadtest.saving import save_report
from protos import coordinator_pb2 as pb
from protos.coordinator_pb2 import PROPOSAL_SOURCE_DRAFTER, SPECULATION_MODE_OFF
from tests.loadtest_fakes import RefusingServer, TimedServer, run_in_virtual_time
from tests.report_world import rounds_of

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
                response.finished.usage.CopyFrom(ledger.usage(10, 9, 9 * inner.service_seconds))
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


def points_of(results: list[dict[str, Any]]) -> list[ReportPoint]:
    """With rounds."""
    return [ReportPoint(each, rounds_of(seed=number)) for number, each in enumerate(results)]


class Page(HTMLParser):
    """What a page is made of: everything that it would load, its figures, its data."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.figures: list[str] = []
        self.images: list[bytes] = []
        self.data = ""
        self._in_data = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self._in_data = tag == "script"
        if tag == "figure":
            self.figures.append(values["id"])
        for name in ("src", "href", "srcset", "data", "action", "poster", "background"):
            if name in values:
                self.links.append(values[name])
        if tag == "img":
            assert values["alt"]
            head, _, content = values["src"].partition(",")
            assert head == "data:image/png;base64"
            self.images.append(base64.b64decode(content))

    def handle_data(self, data: str) -> None:
        if self._in_data:
            self.data += data


def num_colours(png: bytes) -> int:
    """Of a picture: an empty panel has few."""
    pixels = (image.imread(io.BytesIO(png))[::3, ::3, :3] * 255).astype(np.uint32)
    return len(np.unique(pixels @ np.array([65536, 256, 1], np.uint32)))


@pytest.fixture(scope="module")
def whole_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with everything, and its figures beside it."""
    folder = tmp_path_factory.mktemp("report") / "new"
    return save_report(folder, points_of(results_of(Speculating().send)), Shown())


def test_the_page_stands_alone_and_has_every_figure(whole_report: Path) -> None:
    """All figures with data, every one of them in the page and beside it, and nothing to be loaded."""
    path = whole_report
    page_ = Page(path)
    assert set(page_.figures) == set(WORDS)
    assert len(page_.links) == len(page_.images) == len(WORDS)
    text = path.read_text(encoding="utf-8")
    assert not re.findall(r"https?://|@import|url\(", text)
    assert "tiny" not in page_.tags, "a name in the data is text, not a tag"
    files = {each.stem: each.read_bytes() for each in path.parent.glob("*.png")}
    assert set(files) == set(WORDS)
    assert [files[name] for name in page_.figures] == page_.images
    for name, content in files.items():
        assert content.startswith(PNG)
        assert num_colours(content) > 50, f"{name} is empty"
    results = json.loads(page_.data)
    assert [each["max_concurrency"] for each in results] == [1, 4]
    assert "ttfts" not in results[0]


def test_without_rounds_the_figures_are_those_of_requests(tmp_path: Path) -> None:
    path = save_report(tmp_path, [ReportPoint(each) for each in results_of(Speculating().send)], Shown())
    assert set(Page(path).figures) == set(WORDS) - {"classes", "memory"}
    assert "Not drawn" in path.read_text()


def test_a_single_point_without_speculation_has_fewer_figures() -> None:
    (result,) = results_of(TimedServer(0.01, num_tokens=3).send, "2", baseline_blocks=0)
    assert {each.name for each in pictures([ReportPoint(result)])} == {"latency", "sessions"}
    assert "Load test" in page([result], (), Shown())


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class NoBrowser(UserWarning):
    """Said, never silent."""


@pytest.mark.filterwarnings("default::tests.test_loadtest_report.NoBrowser")
def test_a_browser_shows_the_page_as_it_is(whole_report: Path, tmp_path: Path) -> None:
    """In a real browser where there is one, with no network: every figure is decoded and as wide as the
    page, nothing is wider than the window, and nothing was asked for. Without one, what a parser sees is
    all there is to check, and it is checked here as well."""
    shown = Page(whole_report)
    assert len(shown.images) == len(WORDS)
    if CHROMIUM is None:
        warnings.warn(NoBrowser("no chromium here: the page was parsed, not shown"), stacklevel=1)
        return
    found = look_at(CHROMIUM, whole_report, tmp_path)
    assert found["figures"] == len(WORDS)
    assert found["undecoded"] == []
    assert found["requests"] == []
    assert found["overflow"] <= 0
    assert min(found["widths"]) > 0.9 * found["page"]


LOOK = """
<script>
addEventListener("load", () => {
  const images = [...document.images], root = document.documentElement;
  const loaded = performance.getEntriesByType("resource").map(each => each.name);
  document.title = JSON.stringify({
    figures: document.querySelectorAll("figure > img").length,
    undecoded: images.filter(each => !each.complete || !each.naturalWidth).map(each => each.alt),
    requests: loaded.filter(name => !name.startsWith("data:")),
    overflow: root.scrollWidth - root.clientWidth,
    widths: images.map(each => each.getBoundingClientRect().width),
    page: document.body.clientWidth - 32,
  });
});
</script>
"""


def look_at(browser: str, path: Path, folder: Path) -> dict[str, Any]:
    """What the page is in a browser of a phone's width, told by a script in a copy of it."""
    copy = folder / "looked_at.html"
    copy.write_text(path.read_text(encoding="utf-8").replace("</html>", LOOK + "</html>"), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=500,900", "--dump-dom"]
    profile = f"--user-data-dir={folder / 'profile'}"
    command = [browser, *flags, profile, "--virtual-time-budget=5000", copy.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    title = done.stdout.partition("<title>")[2].partition("</title>")[0]
    found: dict[str, Any] = json.loads(html.unescape(title))
    return found


def test_categories_of_a_file_are_a_matrix(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a", "category": "code"}\n{"prompt": "b", "category": "prose"}\n')
    (result,) = results_of(Speculating().send, "1", 0, Data("custom", path, num_prompts=4))
    assert set(result["spec_decode_by_category"]) == {"code", "prose"}
    assert "positions" in {each.name for each in pictures([ReportPoint(result)])}
    assert "  prose " in page([result], (), Shown())


def test_a_run_without_success_has_a_page() -> None:
    results = results_of(RefusingServer().send, "2", baseline_blocks=0)
    text = page(results, pictures([ReportPoint(each) for each in results]), Shown())
    assert "Failed requests:                         8" in text


def test_details_tell_acceptance_k_and_v_of_each_request() -> None:
    (result,) = results_of(Speculating().send, "1", baseline_blocks=0)
    assert set(result["mean_num_draft_tokens"]) == {6.0}
    assert set(result["mean_verify_block_sizes"]) == {5.0}
    assert all(0 <= rate <= 1 for rate in result["acceptance_rates"])
    assert math.isclose(result["acceptance_rates"][0], (1 + 2 + 3) / 12)
