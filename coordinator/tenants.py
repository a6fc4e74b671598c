"""Tenants: whose request it is, and how much one of them may have. Pure, the clock is a parameter.

A tenant's limits stand in the file of its tokens (see `protos.tokens`):

    tenants:
      default: {max_running: 8}
      team-a: {weight: 2, max_running: 16, max_pages: 4096, requests_per_minute: 600,
               tokens_per_minute: 100000, max_waiting: 64}

What is not given is not limited; `default` is for tenants that are not named. Names of requests and
sessions are each tenant's own: the same id of two tenants is two requests.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protos.errors import Busy, InvalidRequest
from protos.tokens import read_document

# Of callers when nobody asks for tokens.
NOBODY = ""
DEFAULT = "default"
_SALT_BYTES = 16
_MINUTE = 60.0


class TenantLimits(BaseModel):
    """Of one tenant; None is no limit.

    Attributes:
        weight: share of places when tenants wait for them.
        max_running: texts at once.
        max_waiting: requests that wait for a place; None: the coordinator's own.
        max_pages: KV pages that its running requests may need (prompt and the longest answer).
        requests_per_minute: requests admitted, with a minute's worth at once.
        tokens_per_minute: prompt and answer tokens, counted when a text ends.
        operator: may look at all tenants' rounds and figures.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    weight: float = Field(default=1.0, ge=0.1, le=1000)
    max_running: int | None = Field(default=None, ge=1)
    max_waiting: int | None = Field(default=None, ge=0)
    max_pages: int | None = Field(default=None, ge=1)
    requests_per_minute: float | None = Field(default=None, gt=0)
    tokens_per_minute: float | None = Field(default=None, gt=0)
    operator: bool = Field(default=False)


@dataclass(frozen=True)
class Tenants:
    """Limits by name."""

    limits: Mapping[str, TenantLimits] = field(default_factory=lambda: MappingProxyType({}))

    def limits_of(self, tenant: str) -> TenantLimits:
        """Those of a tenant, or the default ones."""
        return self.limits.get(tenant) or self.limits.get(DEFAULT) or TenantLimits()

    @property
    def operators(self) -> frozenset[str]:
        """Tenants that may look at everybody's figures."""
        return frozenset(name for name, limits in self.limits.items() if limits.operator)


def read_tenants(path: Path) -> Tenants:
    """The section `tenants` of a file of tokens.

    Raises:
        InvalidRequest: unknown key or bad value, naming it.
    """
    section = read_document(path, "auth_tokens").get("tenants") or {}
    if not isinstance(section, dict):
        raise InvalidRequest(f"'tenants' of {path} must be a mapping", field="auth_tokens")
    limits = {}
    for name, values in section.items():
        try:
            limits[str(name)] = TenantLimits.model_validate(values or {})
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join([str(name), *(str(part) for part in first["loc"])])
            raise InvalidRequest(f"{path}: tenants.{place}: {first['msg']}", field="auth_tokens") from error
    return Tenants(MappingProxyType(limits))


def scoped(tenant: str, name: str) -> str:
    """A tenant's name for something, as the whole coordinator knows it. No tenant's name has a colon."""
    return f"{tenant}:{name}" if tenant else name


def prefix_salt(tenant: str) -> bytes:
    """What the hashes of a tenant's pages start from beside the model: nobody finds another's pages."""
    return hashlib.sha256(f"dlite tenant {tenant}".encode()).digest()[:_SALT_BYTES] if tenant else b""


@dataclass(eq=False)
class Allowance:
    """So much a minute, with at most a minute's worth saved.

    Invariant: `left` <= `per_minute`; it may be below 0 after more was taken than was left.
    """

    per_minute: float
    updated: float
    left: float = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.per_minute

    def wait_seconds(self, amount: float, now: float) -> float:
        """How long until `amount` is there (all of a minute's worth is enough for any amount)."""
        self.left = min(self.per_minute, self.left + (now - self.updated) * self.per_minute / _MINUTE)
        self.updated = now
        missing = min(amount, self.per_minute) - self.left
        return max(missing, 0.0) * _MINUTE / self.per_minute

    def take(self, amount: float) -> None:
        self.left -= amount


class Quotas:
    """Requests and tokens a minute of each tenant."""

    def __init__(self, tenants: Tenants, now: Callable[[], float] = time.monotonic) -> None:
        self._tenants = tenants
        self._now = now
        self._requests: dict[str, Allowance] = {}
        self._tokens: dict[str, Allowance] = {}

    def admit(self, tenant: str) -> None:
        """Counts a request.

        Raises:
            Busy: the tenant has used what it has; says when there is more.
        """
        limits, now = self._tenants.limits_of(tenant), self._now()
        requests = _allowance(self._requests, tenant, limits.requests_per_minute, now)
        tokens = _allowance(self._tokens, tenant, limits.tokens_per_minute, now)
        # Of tokens one must be there: what a text takes is known when it has ended.
        for allowance, what in ((requests, "requests"), (tokens, "tokens")):
            seconds = allowance.wait_seconds(1.0, now) if allowance is not None else 0.0
            if allowance is not None and seconds > 0:
                raise Busy(
                    f"tenant {tenant!r} has used its {allowance.per_minute:g} {what} a minute: "
                    f"again in {seconds:.1f} s",
                    retry_after_seconds=math.ceil(10 * seconds) / 10,
                )
        if requests is not None:
            requests.take(1.0)

    def note_tokens(self, tenant: str, num_tokens: int) -> None:
        """Counts the tokens of a text that has ended."""
        limits, now = self._tenants.limits_of(tenant), self._now()
        tokens = _allowance(self._tokens, tenant, limits.tokens_per_minute, now)
        if tokens is not None:
            tokens.wait_seconds(0.0, now)
            tokens.take(num_tokens)


def _allowance(
    known: dict[str, Allowance], tenant: str, per_minute: float | None, now: float
) -> Allowance | None:
    if per_minute is None:
        return None
    return known.setdefault(tenant, Allowance(per_minute, now))
