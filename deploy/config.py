"""`dlite config show`: what each service would be started with here, and where each value comes from."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from coordinator.config import CoordinatorConfig
from draft_service.config import DraftConfig
from protos.config import ServiceConfig
from protos.config_origins import Settings, settings_of
from target_service.config import TargetConfig

CONFIGS: dict[str, type[ServiceConfig]] = {
    "target": TargetConfig,
    "draft": DraftConfig,
    "coordinator": CoordinatorConfig,
}


class ServiceName(StrEnum):
    """A section of the file, a service."""

    TARGET = "target"
    DRAFT = "draft"
    COORDINATOR = "coordinator"


config = typer.Typer(
    add_completion=False, help="Look at settings: command line > environment > file > defaults."
)


@config.callback()
def group() -> None:
    """A group, also with one command in it."""


@config.command()
def show(
    services: Annotated[list[ServiceName] | None, typer.Argument(help="default: all three")] = None,
    origin: Annotated[bool, typer.Option("--origin", help="say where each value comes from")] = False,
    config_file: Annotated[Path | None, typer.Option("--config", help="YAML file, as for a service")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Prints the settings that services would have if they were started here without flags."""
    names = [service.value for service in services or ServiceName]
    settings = {name: settings_of(CONFIGS[name], config_file, os.environ) for name in names}
    if as_json:
        print(json.dumps({name: _as_json(found, origin) for name, found in settings.items()}))
        return
    console = Console(highlight=False)
    for name, found in settings.items():
        console.print(_as_table(name, found, origin))
        if found.missing:
            console.print(f"not complete: {found.missing}", markup=False)


def _as_json(settings: Settings, with_origin: bool) -> dict[str, Any]:
    if not with_origin:
        return {row.name: _plain(row.value) for row in settings.rows}
    return {row.name: {"value": _plain(row.value), "origin": row.origin} for row in settings.rows}


def _plain(value: Any) -> Any:
    """What JSON can say."""
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _as_table(name: str, settings: Settings, with_origin: bool) -> Table:
    table = Table(title=name, title_justify="left", box=None, pad_edge=False)
    for column in ("setting", "value", *(["origin"] if with_origin else [])):
        table.add_column(column, overflow="fold")
    for row in settings.rows:
        value = "" if row.value is None else str(_plain(row.value))
        table.add_row(row.name, value, *([row.origin] if with_origin else []))
    return table
