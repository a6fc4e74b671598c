"""Settings of the draft service (environment prefix DLITE_DRAFT_)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from protos.config import ServiceConfig

# What a drafter multiplies in; see `draft_service.matrices`.
Matrices = Literal["auto", "float32", "float16", "bfloat16"]
Probability = Annotated[float, Field(ge=0.0, le=1.0)]


class DraftConfig(ServiceConfig):
    """What to serve (a checkpoint or a recording) and where.

    Attributes:
        drafter: folder of a dlite_v1 checkpoint; needs `target`.
        target: folder of the target, of which only the embedding is read.
        overrides: "field=value" for `dlite_config` fields that the checkpoint leaves out.
        replay: recorded target text (JSONL) instead of a checkpoint.
        acceptance: replay: probability that proposal j = 1.. is the recorded token.
        compute_ms: replay: time that one batch takes.
        matrices: what it multiplies in; auto takes what is fastest on this machine.
        device: torch's name of what computes.
        max_batch_items: the most items of one forward.
        max_queued_items: items beyond these are refused at once.
    """

    model_config = SettingsConfigDict(env_prefix="DLITE_DRAFT_", frozen=True, extra="forbid")
    section: ClassVar[str] = "draft"

    drafter: Path | None = None
    target: Path | None = None
    overrides: Annotated[tuple[str, ...], NoDecode] = ()
    replay: Path | None = None
    acceptance: Annotated[tuple[Probability, ...], NoDecode] = ()
    compute_ms: float = Field(default=0.0, ge=0.0)
    replay_seed: int = 0
    address: str = "127.0.0.1:0"
    threads: int | None = Field(default=None, ge=1)
    matrices: Matrices = "auto"
    device: str = "cpu"
    max_batch_items: int = Field(default=64, ge=1)
    max_queued_items: int = Field(default=4096, ge=1)

    @field_validator("overrides", "acceptance", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.drafter is None) == (self.replay is None):
            raise ValueError("give exactly one of --drafter and --replay")
        if self.drafter is not None and self.target is None:
            raise ValueError("--drafter needs --target: the drafter uses the target's embedding")
        if self.replay is not None and not self.acceptance:
            raise ValueError("--replay needs --acceptance, one probability for each proposal, such as 1,1,0")
        if self.replay is None and self.acceptance:
            raise ValueError("--acceptance belongs to --replay")
        return self
