"""Lists of addresses in flags, environment and files: `host:port,host:port`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from protos.errors import InvalidRequest

if TYPE_CHECKING:
    from protos.security import Endpoint

_MOST_LETTERS, _MOST_SHOWN = 1000, 80
# Certificate, key, authority and token of a caller.
CallerFiles = tuple[Path | None, Path | None, Path | None, Path | None]


def endpoint_of(address: str | None, files: CallerFiles) -> Endpoint:
    """The coordinator that a command asks.

    Raises:
        InvalidRequest: none is named, or a file cannot be read.
    """
    from protos.security import Endpoint, SecurityFiles

    if not address:
        raise InvalidRequest("give --address of a coordinator", field="--address")
    cert, key, ca, token = files
    return Endpoint(address, SecurityFiles(cert, key, ca, token_file=token).client())


def addresses_in(text: str, field: str = "") -> tuple[str, ...]:
    """The addresses of a list, in order; none of an empty text.

    Raises:
        InvalidRequest: an entry is no address, or comes twice.
    """
    found = tuple(each.strip() for each in text.split(",")) if text.strip() else ()
    check_addresses(found, field)
    return found


def check_addresses(addresses: Sequence[str], field: str) -> None:
    """Raises InvalidRequest, naming the field, for what is no address or comes twice."""
    for address in addresses:
        if not _is_address(address):
            shown = address if len(address) <= _MOST_SHOWN else f"{address[:_MOST_SHOWN]}.."
            raise InvalidRequest(f"{shown!r} is no address: host:port or unix:PATH", field=field)
    if len(set(addresses)) != len(addresses):
        raise InvalidRequest("names an address twice", field=field)


def _is_address(text: str) -> bool:
    """What may be one: the rest is for gRPC to resolve."""
    is_line = text == text.strip() and text.isprintable() and "," not in text
    return is_line and len(text) <= _MOST_LETTERS and ":" in text[:-1]
