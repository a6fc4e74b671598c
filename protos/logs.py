"""Logs of every service: text or JSON lines on stderr, without anybody's text in them.

What an exception says may quote a prompt. Unless `record_text` is set, a traceback shows the type of the
exception and where it came from, and withholds its message; the errors of `protos.errors` are written for
callers and shown, except where they quote what a caller sent.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from types import TracebackType
from typing import Any, TextIO

WITHHELD = "message withheld, --record-text shows it"
_OWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class TextFormatter(logging.Formatter):
    """ "WARNING dlite.links: stream to .." """

    def __init__(self, record_text: bool) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")
        self._record_text = record_text

    def formatException(self, ei: ExceptionInfo) -> str:
        """The traceback; see the module."""
        return format_exception(ei, self._record_text)


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, service, message, and what the call gave as `extra`."""

    def __init__(self, service: str, record_text: bool) -> None:
        super().__init__()
        self._service = service
        self._record_text = record_text

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _iso(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "service": self._service,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _OWN_FIELDS}
        if record.exc_info:
            line["exception"] = format_exception(record.exc_info, self._record_text)
        return json.dumps(line, default=str, ensure_ascii=False)


def format_exception(info: ExceptionInfo, record_text: bool) -> str:
    """A traceback with or without the messages of its exceptions."""
    error = info[1]
    if error is None:
        return ""
    if record_text:
        return "".join(traceback.format_exception(error)).rstrip()
    lines: list[str] = []
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        lines.insert(0, f"{type(error).__name__}: {WITHHELD}")
        lines[0:0] = [line.rstrip() for line in traceback.format_tb(error.__traceback__)]
        error = error.__cause__ or error.__context__
    return "\n".join(lines)


def set_up_logs(service: str, log_format: str, record_text: bool, stream: TextIO = sys.stderr) -> None:
    """Makes the process log this way, and its threads' last words too.

    Args:
        service: "target", "draft", "coordinator".
        log_format: "text" or "json".
    """
    handler = logging.StreamHandler(stream)
    formatter = JsonFormatter(service, record_text) if log_format == "json" else TextFormatter(record_text)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)


def _iso(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds * 1000) % 1000:03d}Z"
