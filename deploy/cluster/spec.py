"""What a cluster is made of: one YAML file.

name: dlite
placement: PACK                 # or SPREAD, STRICT_SPREAD: services on nodes
target: {model: /models/m, replicas: 2, gpus: 1, cpus: 4, flags: [--tapped-layers, "0,1,6,12"]}
draft: {model: /models/d, replicas: 2, gpus: 0.25, cpus: 1, autoscale: {min: 1, max: 8}}
coordinator: {replicas: 1, cpus: 1, port: 7000}
operator: {token_file: /secrets/operator, tls_ca: /secrets/ca.pem}    # for coordinators that ask for it
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from deploy.cluster.autoscale import AutoscaleSpec
from protos.errors import InvalidRequest

# Ray's workers listen in this range.
RAY_WORKER_PORTS = range(10002, 20000)


class Part(BaseModel):
    """Replicas of one service, and what each is given."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())
    replicas: int = Field(default=1, ge=1, le=1024)
    gpus: float = Field(default=0.0, ge=0)
    cpus: float = Field(default=1.0, gt=0)
    memory_bytes: int = Field(default=0, ge=0)
    # Of Ray's own naming, such as {coordinator: 1}: which nodes may hold a replica, and how many.
    resources: dict[str, float] = Field(default_factory=dict)
    # The first replica's port, the next ones after it; 0: any free one.
    port: int = Field(default=0, ge=0, le=65535)
    # Every replica on that port: each must have a node of its own.
    same_port: bool = False
    flags: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _ports_are_free_for_us(self) -> Self:
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise ValueError(f"{self.gpus} GPUs: whole ones, or a part of one")
        if set(self.resources) & {"CPU", "GPU", "memory"}:
            raise ValueError("resources: cpus, gpus and memory_bytes have fields of their own")
        if self.port and set(range(self.port, self.port + self.replicas)) & set(RAY_WORKER_PORTS):
            raise ValueError(f"port {self.port}: Ray's workers use 10002 to 19999; take others")
        if self.port + self.replicas - 1 > 65535:
            raise ValueError(f"port {self.port} leaves no room for {self.replicas} replicas")
        return self


class ModelPart(Part):
    """A service that loads a model, by folder or hub name."""

    model: str = Field(min_length=1)


class DraftPart(ModelPart):
    """The drafters; `autoscale` is None for a fixed number of them."""

    autoscale: AutoscaleSpec | None = None


class OperatorFiles(BaseModel):
    """What the controller shows coordinators when it tells them of replicas; paths on its node."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    token_file: Path | None = None


class ClusterSpec(BaseModel):
    """A whole cluster; `draft` is None for proposals by lookup only."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str = Field(default="dlite", pattern=r"^[a-z][a-z0-9-]{0,40}$")
    placement: Literal["PACK", "SPREAD", "STRICT_SPREAD"] = "PACK"
    target: ModelPart
    draft: DraftPart | None = None
    coordinator: Part = Part()
    operator: OperatorFiles = OperatorFiles()


def read_spec(path: Path) -> ClusterSpec:
    """Reads and checks a file.

    Raises:
        InvalidRequest: unknown key or bad value, naming it.
    """
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise InvalidRequest(f"cannot read {path}: {error}", field="--file") from error
    try:
        return ClusterSpec.model_validate(document)
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, item['loc'])) or path}: {item['msg'].removeprefix('Value error, ')}"
            for item in error.errors()
        ]
        raise InvalidRequest("; ".join(lines), field="--file") from error
