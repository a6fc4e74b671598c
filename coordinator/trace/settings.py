"""`--set NAME=VALUE` of a tuner that is replayed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from coordinator.tuner.costs import CostPriors
from coordinator.tuner.tuner import TunerSettings
from protos.errors import InvalidRequest


def parse_settings(words: Sequence[str]) -> tuple[TunerSettings, CostPriors]:
    """Reads words such as `margin=0.05`, `probes.most=0` or `priors.verify.fixed_seconds=0.02`.

    Raises:
        InvalidRequest: no such setting, or no such value; tells the names.
    """
    settings, priors = TunerSettings(), CostPriors()
    for word in words:
        name, sign, text = word.partition("=")
        path = name.split(".")
        if not sign or name not in setting_names():
            raise InvalidRequest(
                f"{word!r}: NAME=VALUE with a name of {', '.join(setting_names())}", field="--set"
            )
        if path[0] == "priors":
            priors = _with(priors, path[1:], text, word)
        else:
            settings = _with(settings, path, text, word)
    return settings, priors


def setting_names() -> tuple[str, ...]:
    """All names that can be set."""
    return (*_names(TunerSettings(), ""), *_names(CostPriors(), "priors."))


def _names(record: Any, prefix: str) -> list[str]:
    found: list[str] = []
    for each in fields(record):
        value = getattr(record, each.name)
        found += _names(value, f"{prefix}{each.name}.") if is_dataclass(value) else [prefix + each.name]
    return found


def _with(record: Any, path: Sequence[str], text: str, word: str) -> Any:
    value = getattr(record, path[0])
    if len(path) > 1:
        return replace(record, **{path[0]: _with(value, path[1:], text, word)})
    try:
        new = type(value)(text)
    except ValueError as error:
        raise InvalidRequest(f"{word!r}: not like {value!r}", field="--set") from error
    if not new >= 0:
        raise InvalidRequest(f"{word!r}: at least 0", field="--set")
    return replace(record, **{path[0]: new})
