"""Writes a trace to a file, on a thread of its own: the event loop only appends to a queue."""

from __future__ import annotations

import logging
import threading
from collections import deque
from pathlib import Path
from typing import BinaryIO

from coordinator.trace.format import Header, pack_header, pack_lost, pack_records
from coordinator.trace.record import RoundRecord
from protos.errors import InvalidRequest

log = logging.getLogger("dlite.trace")

# Some 10 MB of waiting records at most: what a full disk or a slow one may cost.
MAX_WAITING = 32_768
_PAUSE_SECONDS = 0.1
_BATCH = 1024


class Waiting:
    """Records that wait to be written or sent. The oldest stay; what does not fit is counted.

    One thread puts, one takes.
    """

    def __init__(self, most: int) -> None:
        self._records: deque[RoundRecord] = deque()
        self._most = most
        self._num_lost = 0
        self._num_told = 0

    def put(self, record: RoundRecord) -> None:
        """Never waits."""
        if len(self._records) < self._most:
            self._records.append(record)
        else:
            self._num_lost += 1

    def take(self, most: int) -> bytes:
        """The next records as they are written; empty when there are none."""
        num_lost = self._num_lost
        found = [self._records.popleft() for _ in range(min(most, len(self._records)))]
        packed = pack_records(found)
        # Lost were those that came after everything that waited.
        if num_lost > self._num_told and not self._records:
            packed += pack_lost(num_lost - self._num_told)
            self._num_told = num_lost
        return packed


class TraceWriter:
    """A file of rounds. What was put is in the file a moment later, also when the process is killed then.

    Raises:
        InvalidRequest: the file cannot be made.
    """

    def __init__(self, path: Path, header: Header, most_waiting: int = MAX_WAITING) -> None:
        self._path = path
        self._waiting = Waiting(most_waiting)
        self._stopping = threading.Event()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = path.open("wb")
            self._write(pack_header(header))
        except OSError as error:
            raise InvalidRequest(f"cannot write {path}: {error}", field="trace") from error
        self._thread = threading.Thread(target=self._run, name="round trace", daemon=True)
        self._thread.start()

    def put(self, record: RoundRecord) -> None:
        """Never waits."""
        self._waiting.put(record)

    def stop(self) -> None:
        """Writes what waits and closes the file."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with self._file:
                while not self._stopping.wait(_PAUSE_SECONDS):
                    self._drain()
                self._drain()
        except OSError as error:
            # Serving goes on; the queue fills up to its bound and stays there.
            log.error("the trace of rounds ends here, %s cannot be written: %s", self._path, error)

    def _drain(self) -> None:
        while data := self._waiting.take(_BATCH):
            self._write(data)

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()
