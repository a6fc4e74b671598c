"""Logs: text or JSON lines, and nobody's text in them (CLUSTER, security)."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from protos import logs
from protos.errors import InvalidRequest

SECRET = "the patient's name is Ada"
log = logging.getLogger("dlite.test_logs")


@pytest.fixture
def root() -> Iterator[None]:
    """Puts the process's logging back."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


def fail() -> None:
    try:
        raise KeyError(SECRET)
    except KeyError as error:
        raise InvalidRequest(f"cannot read {SECRET}") from error


def written(record_text: bool, log_format: str) -> str:
    """What a failure leaves in the log."""
    record = logging.makeLogRecord({"name": "dlite.x", "levelno": 40, "levelname": "ERROR", "msg": "failed"})
    record.request_id = "r1"
    try:
        fail()
    except InvalidRequest:
        record.exc_info = sys.exc_info()
    formatter = (
        logs.JsonFormatter("target", record_text) if log_format == "json" else logs.TextFormatter(record_text)
    )
    return formatter.format(record)


def test_a_traceback_withholds_what_the_exception_says() -> None:
    for log_format in ("text", "json"):
        text = written(False, log_format)
        assert SECRET not in text
        assert "InvalidRequest" in text
        assert "KeyError" in text
        assert "in fail" in text
        assert SECRET in written(True, log_format)


def test_a_json_line_is_one_object_with_what_the_call_gave() -> None:
    text = written(False, "json")
    assert "\n" not in text
    line = json.loads(text)
    assert line["service"] == "target"
    assert (line["level"], line["logger"], line["message"]) == ("error", "dlite.x", "failed")
    assert line["request_id"] == "r1"
    assert line["time"].endswith("Z")


@pytest.mark.usefixtures("root")
def test_the_process_logs_this_way() -> None:
    stream = io.StringIO()
    logs.set_up_logs("draft", "json", False, stream)
    log.info("ready on %s", "x:1", extra={"num_threads": 2})
    logs.set_up_logs("draft", "text", False, stream)
    log.warning("late")
    first, second = stream.getvalue().splitlines()
    assert json.loads(first)["num_threads"] == 2
    assert second == "WARNING dlite.test_logs: late"
