"""The command `dlite draft`. Light at import: torch and grpc come with the command itself."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from draft_service.config import DraftConfig
from protos import flags
from protos.logs import set_up_logs


def draft(
    drafter: Annotated[Path | None, typer.Option(help="Folder of a dlite_v1 checkpoint.")] = None,
    target: Annotated[
        Path | None, typer.Option(help="Folder of its target; only the embedding is read.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="FIELD=VALUE for a field the checkpoint leaves out.")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(help="Recorded target text (JSONL) instead of a model.")
    ] = None,
    acceptance: Annotated[
        str | None, typer.Option(help="Replay: probability per position, as 1,1,0.")
    ] = None,
    compute_ms: Annotated[float | None, typer.Option(help="Replay: milliseconds of one batch.")] = None,
    address: Annotated[str | None, typer.Option(help="Where to listen; port 0 picks a free one.")] = None,
    threads: Annotated[int | None, typer.Option(help="Compute threads.")] = None,
    matrices: Annotated[
        str | None,
        typer.Option(help="What it multiplies in: float32, float16, bfloat16, or auto (the fastest)."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="Torch device.")] = None,
    tls_cert: flags.TlsCert = None,
    tls_key: flags.TlsKey = None,
    tls_ca: flags.TlsCa = None,
    tls_client_auth: flags.TlsClientAuth = None,
    auth_tokens: flags.AuthTokens = None,
    log_format: flags.LogFormat = None,
    record_text: flags.RecordText = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with a section 'draft'.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object when ready.")] = False,
) -> None:
    """Serve a drafter: a pure function from pivot features to proposals."""
    settings = DraftConfig.load(
        config,
        drafter=drafter,
        target=target,
        overrides=tuple(set_) if set_ else None,
        replay=replay,
        acceptance=acceptance,
        compute_ms=compute_ms,
        address=address,
        threads=threads,
        matrices=matrices,
        device=device,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_ca=tls_ca,
        tls_client_auth=tls_client_auth,
        auth_tokens=auth_tokens,
        log_format=log_format,
        record_text=record_text,
    )
    set_up_logs("draft", settings.log_format, settings.record_text)
    asyncio.run(_serve(settings, as_json))


async def _serve(settings: DraftConfig, as_json: bool) -> None:
    from draft_service.server import start_draft_service

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    running = await start_draft_service(settings)
    for note in running.service.describe().notes:
        typer.echo(f"note: {note}", err=True)
    if as_json:
        print(json.dumps({"address": running.address, "pid": os.getpid()}), flush=True)
    else:
        typer.echo(f"draft service ready on {running.address}", err=True)
    await stop.wait()
    await running.stop()
