"""The command `dlite replicas`. Light at import: grpc comes with the command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.addresses import addresses_in, endpoint_of
from protos import flags
from protos.errors import InvalidRequest

if TYPE_CHECKING:
    from protos.coordinator_pb2 import Replica

Address = Annotated[
    str | None, typer.Option(envvar="DLITE_ADDRESS", help="The coordinator, as `dlite up` prints it.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

replicas = typer.Typer(add_completion=False)


@replicas.callback(invoke_without_command=True)
def show(
    context: typer.Context,
    address: Address = None,
    tls_ca: flags.CallerCa = None,
    tls_cert: flags.CallerCert = None,
    tls_key: flags.CallerKey = None,
    token_file: flags.TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """The targets and drafters behind a coordinator, and what they do. `set` changes which there are."""
    if context.invoked_subcommand is not None:
        return
    import asyncio

    from coordinator.replicas_remote import list_replicas, replicas_json

    endpoint = endpoint_of(address, (tls_cert, tls_key, tls_ca, token_file))
    found = asyncio.run(list_replicas(endpoint))
    _print(replicas_json(found.replicas, found.drafts), found.replicas, as_json)


@replicas.command("set")
def set_command(
    address: Address = None,
    target_address: Annotated[
        str | None, typer.Option(help="All targets there shall be: host:port,..; not given: as they are.")
    ] = None,
    draft_address: Annotated[
        str | None,
        typer.Option(help="All drafters there shall be, empty for none; not given: as they are."),
    ] = None,
    tls_ca: flags.CallerCa = None,
    tls_cert: flags.CallerCert = None,
    tls_key: flags.CallerKey = None,
    token_file: flags.TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Say which replicas there shall be: new ones are connected, those that are missing drain."""
    import asyncio

    from coordinator.replicas_remote import replicas_json, set_replicas

    if target_address is None and draft_address is None:
        raise InvalidRequest("give --target-address or --draft-address", field="--target-address")
    targets = addresses_in(target_address or "", "--target-address")
    if target_address is not None and not targets:
        raise InvalidRequest("a coordinator needs a target", field="--target-address")
    drafters = None if draft_address is None else addresses_in(draft_address, "--draft-address")
    endpoint = endpoint_of(address, (tls_cert, tls_key, tls_ca, token_file))
    found = asyncio.run(set_replicas(endpoint, targets, drafters))
    _print(replicas_json(found, ()), found, as_json)


def _print(document: dict[str, Any], found: Sequence[Replica], as_json: bool) -> None:
    from coordinator.replicas_remote import replica_lines

    print(json.dumps(document) if as_json else "\n".join(replica_lines(found)), flush=True)
