"""The command `dlite swap-drafter`. Light at import: grpc comes with the command."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from coordinator.addresses import addresses_in, endpoint_of
from protos import flags
from protos.errors import InvalidRequest


def swap_drafter(
    draft_address: Annotated[
        str, typer.Option(help="All new drafters: host:port,..; they run already, and so do the old ones.")
    ],
    address: Annotated[
        str | None, typer.Option(envvar="DLITE_ADDRESS", help="The coordinator, as `dlite up` prints it.")
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=0, help="Drafted rounds compared before and after; 0 compares nothing.")
    ] = 500,
    tolerance: Annotated[
        float, typer.Option(min=0, max=1, help="Part of the accept length that may be lost.")
    ] = 0.05,
    watch_seconds: Annotated[float, typer.Option(min=0, help="Most time for each of the two.")] = 600.0,
    connect_seconds: Annotated[float, typer.Option(min=0, help="Time the new ones have to serve.")] = 60.0,
    tls_ca: flags.CallerCa = None,
    tls_cert: flags.CallerCert = None,
    tls_key: flags.CallerKey = None,
    token_file: flags.TokenFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Swap drafters under load; compare acceptance before and after, and go back when it is worse."""
    import asyncio

    from coordinator.replicas_remote import RemoteOperator
    from coordinator.swap_job import Swap, SwapOptions, SwapResult, describe_result

    endpoint = endpoint_of(address, (tls_cert, tls_key, tls_ca, token_file))
    new = addresses_in(draft_address, "--draft-address")
    if not new:
        raise InvalidRequest("names no drafter", field="--draft-address")
    options = SwapOptions(rounds, tolerance, watch_seconds, connect_seconds)

    async def run() -> SwapResult:
        operator = RemoteOperator(endpoint)
        return await Swap(operator, options, lambda text: print(text, file=sys.stderr, flush=True)).run(new)

    result = asyncio.run(run())
    document = describe_result(result)
    lines = [f"{name:<22} {value}" for name, value in document.items()]
    print(json.dumps(document) if as_json else "\n".join(lines), flush=True)
    if not result.is_kept:
        raise typer.Exit(1)
