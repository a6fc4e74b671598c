"""Where each setting of a service comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticUndefined

from protos.config import ServiceConfig, read_section
from protos.errors import InvalidRequest


@dataclass(frozen=True)
class Setting:
    """One setting; `origin` is "default", "environment NAME", "file PATH" or "not set, required"."""

    name: str
    value: Any
    origin: str


@dataclass(frozen=True)
class Settings:
    """All settings of a service; `missing` says what keeps it from starting, and is empty otherwise."""

    rows: tuple[Setting, ...]
    missing: str


def settings_of(
    config_type: type[ServiceConfig], config_file: Path | None, environment: Mapping[str, str]
) -> Settings:
    """What a service would be started with if it got no flags.

    Args:
        environment: as the process has it; names count in any case.

    Raises:
        InvalidRequest: unknown key or bad value, naming it.
    """
    prefix = str(config_type.model_config.get("env_prefix", "")).upper()
    variables = {name.upper(): name for name in environment}
    in_file = read_section(config_file, config_type.section) if config_file else {}
    config, missing = _load(config_type, config_file)
    rows = []
    for name, field in config_type.model_fields.items():
        variable = variables.get(prefix + name.upper())
        value: Any
        if variable is not None:
            value, origin = environment[variable], f"environment {variable}"
        elif name in in_file:
            value, origin = in_file[name], f"file {config_file}"
        else:
            value = field.get_default(call_default_factory=True)
            origin = "not set, required" if value is PydanticUndefined else "default"
        if config is not None:
            value = getattr(config, name)
        rows.append(Setting(name, None if value is PydanticUndefined else value, origin))
    return Settings(tuple(rows), missing)


def _load(config_type: type[ServiceConfig], config_file: Path | None) -> tuple[ServiceConfig | None, str]:
    """The config, or why it is not complete."""
    try:
        return config_type.load(config_file), ""
    except InvalidRequest as error:
        cause = error.__cause__
        if not isinstance(cause, ValidationError):
            raise
        problems = cause.errors()
        # What concerns no field, or a field that is not there, is incomplete and not wrong.
        if any(problem["loc"] and problem["type"] != "missing" for problem in problems):
            raise
        return None, error.message
