"""Settings of the coordinator: CLI > DLITE_COORDINATOR_* > YAML section `coordinator` > defaults."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from coordinator.addresses import addresses_in
from coordinator.emulation import LinkShape, parse_link
from protos.config import ServiceConfig
from protos.errors import InvalidRequest

SourceName = Literal["auto", "drafter", "lookup", "lookup_then_drafter"]


class CoordinatorConfig(ServiceConfig):
    """What the coordinator is started with. Times are seconds and must be positive."""

    section: ClassVar[str] = "coordinator"
    model_config = SettingsConfigDict(
        env_prefix="DLITE_COORDINATOR_", frozen=True, extra="forbid", protected_namespaces=()
    )

    # One, or several with commas between them (a list in YAML); both may be changed while it runs.
    target_address: str = Field(min_length=1)
    draft_address: str | None = None
    address: str = "127.0.0.1:0"
    # host:port of /metrics, /healthz and /readyz over HTTP; empty for none.
    admin_address: str = "127.0.0.1:0"

    # The token that target and drafter are shown; they need TLS or a Unix socket then.
    token_file: Path | None = None

    # Both unset: the tuner chooses from round to round, up to the drafter's block (7 without a drafter).
    num_draft_tokens: int | None = Field(default=None, ge=0, le=255)
    verify_block_size: int | None = Field(default=None, ge=1, le=256)
    source: SourceName = "auto"

    # Texts that run at each target at once; requests beyond that wait, up to max_waiting of them.
    max_running: int = Field(default=256, ge=1)
    max_waiting: int = Field(default=256, ge=0)
    max_queued_deltas: int = Field(default=64, ge=1)
    # Exact ids of past turns, by session_id; the sessions not used for longest go first.
    session_memory_bytes: int = Field(default=64 * 1024 * 1024, ge=0)
    client_stall_seconds: float = Field(default=30.0, gt=0)
    # A round without any sign of life is sent again after this time.
    resend_seconds: float = Field(default=2.0, gt=0)
    # After this time a round goes on without the drafter.
    draft_timeout_seconds: float = Field(default=2.0, gt=0)
    # A target that owes an answer and says nothing for this long has its stream cut.
    hang_seconds: float = Field(default=15.0, gt=0)
    # How long running requests wait for a target when all are lost.
    target_loss_seconds: float = Field(default=60.0, gt=0)
    # How long the start waits for the target (and the drafter).
    connect_seconds: float = Field(default=60.0, gt=0)
    # How long texts may go on when the coordinator stops, or at a target that is taken out.
    drain_seconds: float = Field(default=5.0, ge=0)
    # A record of every round is written there (see docs/traces.md).
    trace: Path | None = None
    # P: cohorts that may be on their way at once; 1 puts drafting and verification one after the other.
    max_cohorts: int = Field(default=3, ge=1, le=3)
    # OpenTelemetry over gRPC, http://host:4317; empty: no spans. Of so many requests, and all that failed.
    otlp_endpoint: str = ""
    otlp_share: float = Field(default=0.01, ge=0, le=1)
    # A link made slower for measuring: RTT[,JITTER[,BANDWIDTH]], such as 20ms,2ms,1gbit.
    emulate_target_link: str | None = None
    emulate_draft_link: str | None = None

    @field_validator("target_address", "draft_address", mode="before")
    @classmethod
    def _are_addresses(cls, value: object) -> object:
        text = ",".join(map(str, value)) if isinstance(value, list) else value
        if isinstance(text, str):
            try:
                addresses_in(text)
            except InvalidRequest as error:
                raise ValueError(error.message) from error
        return text

    @field_validator("emulate_target_link", "emulate_draft_link")
    @classmethod
    def _can_be_emulated(cls, text: str | None) -> str | None:
        if text is not None:
            try:
                parse_link(text)
            except InvalidRequest as error:
                raise ValueError(error.message) from error
        return text

    @property
    def target_addresses(self) -> tuple[str, ...]:
        """At least one."""
        return addresses_in(self.target_address)

    @property
    def draft_addresses(self) -> tuple[str, ...]:
        return addresses_in(self.draft_address or "")

    @property
    def emulated_target_link(self) -> LinkShape | None:
        return parse_link(self.emulate_target_link) if self.emulate_target_link else None

    @property
    def emulated_draft_link(self) -> LinkShape | None:
        return parse_link(self.emulate_draft_link) if self.emulate_draft_link else None

    @model_validator(mode="after")
    def _one_block(self) -> Self:
        k, v = self.num_draft_tokens, self.verify_block_size
        if k is not None and v is not None and v > k + 1:
            raise ValueError(f"verify_block_size {v} needs num_draft_tokens >= {v - 1}, but it is {k}")
        return self
