"""The one error tree. Each class says what the caller can do; `rpc.py` maps it to a gRPC status.

DliteError
├── InvalidRequest      change the named field and send again
├── TooLarge            send less; retrying does not help
├── ContractMismatch    the two sides do not belong together (vocabulary, layers, protocol)
├── StaleRound          the answer belongs to a round or epoch that is over
├── OutOfPages          wait: other requests hold the memory
├── Busy                wait: the queue is full
├── Unavailable         the service is starting, draining or gone: retry elsewhere
├── Unauthenticated     show who you are: no valid token came with the call
├── Forbidden           this caller may not do this
├── TimedOut            the caller's deadline is over: allow more time or ask for less
├── NotFound            nothing under this name
└── AlreadyExists       the name is taken by something else
"""

from __future__ import annotations


class DliteError(Exception):
    """Base of every error the project raises on purpose.

    Args:
        message: what is wrong, with numbers, and what to do about it.
        field: the request field or configuration key at fault, if there is one.
        retry_after_seconds: set only where waiting helps.
    """

    reason = "INTERNAL"

    def __init__(self, message: str, *, field: str = "", retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after_seconds = retry_after_seconds

    def __str__(self) -> str:
        if self.field and self.field not in self.message:
            return f"{self.field}: {self.message}"
        return self.message


class InvalidRequest(DliteError):
    reason = "INVALID_REQUEST"


class TooLarge(DliteError):
    reason = "TOO_LARGE"


class ContractMismatch(DliteError):
    reason = "CONTRACT_MISMATCH"


class StaleRound(DliteError):
    reason = "STALE_ROUND"


class OutOfPages(DliteError):
    reason = "OUT_OF_PAGES"


class Busy(DliteError):
    reason = "BUSY"


class Unavailable(DliteError):
    reason = "UNAVAILABLE"


class Unauthenticated(DliteError):
    reason = "UNAUTHENTICATED"


class Forbidden(DliteError):
    reason = "FORBIDDEN"


class TimedOut(DliteError):
    reason = "TIMED_OUT"


class NotFound(DliteError):
    reason = "NOT_FOUND"


class AlreadyExists(DliteError):
    reason = "ALREADY_EXISTS"
