"""One compute thread, and a record of what this run collected and how each test ended.

`test_proof` reads the record: a proof that was skipped, or that nothing selected, shows nothing.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc
import pytest
import torch
from hypothesis import settings

if TYPE_CHECKING:
    from tests.draft_client import Client

# Generated cases are the same in every run: a failure is found where it is made, not by luck later.
settings.register_profile("suite", derandomize=True, database=None)
settings.load_profile("suite")
torch.set_num_threads(1)
# A measured choice of kernel would differ between machines; tests of other kernels name them.
os.environ.setdefault("DLITE_TARGET_LINEAR_KERNEL", "torch")


@dataclass(eq=False)
class RunRecord:
    """Node ids of a run.

    Args:
        is_full: nothing but a marker expression narrowed the run.
        proofs: every collected node -> whether it is marked `prove`.
        outcomes: node -> "passed", "failed", "skipped" or "xfailed", once it has run.
    """

    is_full: bool
    proofs: dict[str, bool] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)


RECORD = pytest.StashKey[RunRecord]()


def pytest_configure(config: pytest.Config) -> None:
    whole = config.args_source is not pytest.Config.ArgsSource.ARGS or config.args == ["tests"]
    narrowed = config.option.keyword or config.option.deselect or config.option.ignore
    config.stash[RECORD] = RunRecord(is_full=whole and not narrowed)


@pytest.hookimpl(tryfirst=True)  # before a marker expression deselects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    record = config.stash[RECORD]
    record.proofs.update({item.nodeid: item.get_closest_marker("prove") is not None for item in items})
    items.sort(key=lambda item: item.nodeid.startswith("tests/test_proof.py"))  # it judges the others


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    result = yield
    report = result.get_result()
    outcomes = item.config.stash[RECORD].outcomes
    outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
    if report.when == "call" or outcome != "passed":
        outcomes[item.nodeid] = outcome


@pytest.fixture
def run_record(request: pytest.FixtureRequest) -> RunRecord:
    """What this run collected and how it went so far."""
    return request.config.stash[RECORD]


@pytest.fixture
async def draft_channel() -> AsyncIterator[grpc.aio.Channel]:
    """To a service with the golden drafter."""
    from draft_service.service import DraftService
    from tests.draft_client import NAME, serving
    from tests.golden_draft import drafter

    async with serving(DraftService(drafter(NAME))) as (_, opened):
        yield opened


@pytest.fixture
async def draft_client(draft_channel: grpc.aio.Channel) -> Client:
    """A stream of that service, greeted."""
    from tests.draft_client import Client

    opened = Client(draft_channel)
    await opened.hello()
    return opened
