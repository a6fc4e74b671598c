"""A child process that ends with its parent, however the parent ends.

The parent keeps the write end of a pipe open and never writes. When it dies, even by SIGKILL, the
kernel closes that end, and the child's watching thread reads EOF.
"""

from __future__ import annotations

import os
import signal
import threading

VARIABLE = "DLITE_PARENT_PIPE"
GRACE_SECONDS = 10.0


def end_with_parent(environ: os._Environ[str] = os.environ) -> None:
    """Starts the watch if this process was started with the read end of such a pipe."""
    number = environ.pop(VARIABLE, "")
    if number.isdigit():
        threading.Thread(target=_watch, args=(int(number),), name="parent-watch", daemon=True).start()


def _watch(fd: int) -> None:
    while os.read(fd, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
