"""How every service reads its settings: CLI > DLITE_* > --config dlite.yaml > defaults.

A service's config is a frozen subclass of `ServiceConfig` with `section` set. Environment names
are DLITE_<SECTION>_<FIELD>; the YAML file has one mapping for each section. Unknown keys are errors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from protos.errors import InvalidRequest


class ServiceConfig(BaseSettings):
    """Base of the services' configs: what all of them have. See `protos.security` and `protos.logs`."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", protected_namespaces=())
    section: ClassVar[str]
    _file_values: ClassVar[dict[str, Any]] = {}

    tls_cert: Path | None = Field(None, description="own certificate chain (PEM); the port speaks TLS")
    tls_key: Path | None = Field(None, description="key of the certificate (PEM)")
    tls_ca: Path | None = Field(None, description="authority (PEM) whose certificates the peers need")
    tls_client_auth: Literal["require", "none"] = Field(
        "require", description="with tls_ca: whether callers need a certificate"
    )
    auth_tokens: Path | None = Field(None, description="token hashes and tenants; callers need a token")
    log_format: Literal["text", "json"] = Field("text", description="json: one object a line")
    record_text: bool = Field(False, description="let prompts and texts into logs")

    @model_validator(mode="after")
    def _whole_identity(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings

    @classmethod
    def load(cls, config_file: Path | None, **flags: Any) -> Self:
        """Merges the sources.

        Args:
            config_file: YAML file with one mapping for each section, or None.
            flags: values given on the command line; None means not given.

        Raises:
            InvalidRequest: unknown key or bad value, naming it.
        """
        given = {name: value for name, value in flags.items() if value is not None}
        lowest = read_section(config_file, cls.section) if config_file else {}

        class Sourced(cls):  # type: ignore[misc, valid-type]
            @classmethod
            def settings_customise_sources(
                cls_inner, settings_cls: type[BaseSettings], *sources: Any, **named: Any
            ) -> tuple[PydanticBaseSettingsSource, ...]:
                higher = super().settings_customise_sources(settings_cls, *sources, **named)
                return (*higher, InitSettingsSource(settings_cls, init_kwargs=lowest))

        try:
            merged = Sourced(**given)
        except ValidationError as error:
            raise InvalidRequest(_explain(error, cls.section)) from error
        return cls.model_construct(**{name: getattr(merged, name) for name in cls.model_fields})


def read_section(config_file: Path, section: str) -> dict[str, Any]:
    """The mapping of one section of a YAML file; empty when the file has none."""
    try:
        document = yaml.safe_load(config_file.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise InvalidRequest(f"cannot read {config_file}: {error}", field="--config") from error
    if not isinstance(document, dict) or not isinstance(document.get(section, {}), dict):
        raise InvalidRequest(f"{config_file} must be a mapping of sections", field="--config")
    unknown = sorted(set(document) - {"target", "draft", "coordinator"})
    if unknown:
        raise InvalidRequest(f"unknown section {unknown[0]!r} in {config_file}", field="--config")
    values: dict[str, Any] = document.get(section, {})
    return values


def _explain(error: ValidationError, section: str) -> str:
    lines = []
    for item in error.errors():
        name = ".".join([section, *(str(part) for part in item["loc"])])
        lines.append(f"{name}: {item['msg'].removeprefix('Value error, ')}")
    return "; ".join(lines)
