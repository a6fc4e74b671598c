"""The commands `dlite coordinator` and `chat`. Light at import: grpc comes with the command."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from coordinator.config import CoordinatorConfig
from coordinator.generate_cli import generate
from protos import flags
from protos.logs import set_up_logs

__all__ = ["chat", "coordinator", "generate"]


def coordinator(
    target_address: Annotated[
        str | None, typer.Option(help="Where the target service listens; of several replicas: A,B,..")
    ] = None,
    draft_address: Annotated[
        str | None,
        typer.Option(help="Where the draft service listens, A,B,.. for several; without it: lookup only."),
    ] = None,
    address: Annotated[str | None, typer.Option(help="Where to listen; port 0 picks a free one.")] = None,
    admin_address: Annotated[
        str | None, typer.Option(help="host:port of /metrics, /healthz and /readyz; empty for none.")
    ] = None,
    num_draft_tokens: Annotated[int | None, typer.Option(help="k, proposals of a round.")] = None,
    verify_block_size: Annotated[
        int | None, typer.Option(help="v, rows verified in a round, the anchor included; 1 = no speculation.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="auto, drafter, lookup or lookup_then_drafter.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a record of every round to this file (no text in it).")
    ] = None,
    emulate_target_link: Annotated[
        str | None, typer.Option(help="RTT[,JITTER[,BANDWIDTH]] of a slower link, such as 20ms,2ms,1gbit.")
    ] = None,
    emulate_draft_link: Annotated[str | None, typer.Option(help="The same towards the drafter.")] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the bearer token for target and drafter.")
    ] = None,
    tls_cert: flags.TlsCert = None,
    tls_key: flags.TlsKey = None,
    tls_ca: flags.TlsCa = None,
    tls_client_auth: flags.TlsClientAuth = None,
    auth_tokens: flags.AuthTokens = None,
    log_format: flags.LogFormat = None,
    record_text: flags.RecordText = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with a section 'coordinator'.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object when ready.")] = False,
) -> None:
    """Serve clients: run rounds of draft and verification, stream text."""
    settings = CoordinatorConfig.load(
        config,
        target_address=target_address,
        draft_address=draft_address,
        address=address,
        admin_address=admin_address,
        num_draft_tokens=num_draft_tokens,
        verify_block_size=verify_block_size,
        source=source,
        trace=trace,
        emulate_target_link=emulate_target_link,
        emulate_draft_link=emulate_draft_link,
        token_file=token_file,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_ca=tls_ca,
        tls_client_auth=tls_client_auth,
        auth_tokens=auth_tokens,
        log_format=log_format,
        record_text=record_text,
    )
    set_up_logs("coordinator", settings.log_format, settings.record_text)
    asyncio.run(_serve(settings, as_json))


async def _serve(settings: CoordinatorConfig, as_json: bool) -> None:
    from coordinator.startup import start_coordinator

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    starting = asyncio.create_task(start_coordinator(settings))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait({starting})
        return
    running = starting.result()
    if as_json:
        ready = {"address": running.address, "pid": os.getpid(), "admin_address": running.admin_address}
        print(json.dumps(ready), flush=True)
    else:
        typer.echo(f"coordinator ready on {running.address}, admin on {running.admin_address}", err=True)
    await stopping
    await running.stop()


def chat(
    address: Annotated[
        list[str], typer.Option(envvar="DLITE_ADDRESS", help="The coordinator; repeat for several.")
    ],
    system: Annotated[str, typer.Option(help="The system message.")] = "",
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of an answer.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 is greedy; default: the model's, else 1.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed gives the same texts.")] = None,
    tls_ca: flags.CallerCa = None,
    tls_cert: flags.CallerCert = None,
    tls_key: flags.CallerKey = None,
    token_file: flags.TokenFile = None,
) -> None:
    """Talk turn by turn. Ctrl-C ends an answer, Ctrl-D the conversation."""
    from coordinator.chat import run_chat
    from protos.security import Endpoint, SecurityFiles

    fields = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    security = SecurityFiles(tls_cert, tls_key, tls_ca, token_file=token_file).client()
    endpoints = [Endpoint(each, security) for each in address]
    run_chat(endpoints, system, {name: value for name, value in fields.items() if value is not None})
