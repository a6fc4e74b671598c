"""The `dlite target` command. Light at import: torch and grpc load when it runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from protos import flags


def _ids(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: expected numbers with commas, such as 0,1,6") from error


def target(
    target: Annotated[str | None, typer.Option(help="Folder or hub name of the target model.")] = None,
    tapped_layers: Annotated[
        str | None, typer.Option(help="Feature layer ids such as 0,1,6,12; must equal the drafter's.")
    ] = None,
    num_tapped_layers: Annotated[
        int | None, typer.Option(help="How many layers to tap when no ids are given.", min=2)
    ] = None,
    address: Annotated[str | None, typer.Option(help="host:port (0 = any free port) or unix:PATH.")] = None,
    threads: Annotated[int | None, typer.Option(help="Compute threads.", min=1)] = None,
    num_pages: Annotated[int | None, typer.Option(help="KV pages; default by memory.", min=1)] = None,
    prefill_chunk: Annotated[int | None, typer.Option(help="Rows of prefill in a step.", min=1)] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, float64 or bfloat16.")] = None,
    feature_dtype: Annotated[
        str | None, typer.Option(help="Pivot features on the wire: auto, f32, f16, bf16 or int8.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Torch device.")] = None,
    linear_kernel: Annotated[
        str | None, typer.Option(help="auto, torch, torch_fused, onednn or fbgemm_fp16.")
    ] = None,
    trust_remote_code: Annotated[
        bool | None, typer.Option("--trust-remote-code", help="Run code that the model's folder brings.")
    ] = None,
    tls_cert: flags.TlsCert = None,
    tls_key: flags.TlsKey = None,
    tls_ca: flags.TlsCa = None,
    tls_client_auth: flags.TlsClientAuth = None,
    auth_tokens: flags.AuthTokens = None,
    log_format: flags.LogFormat = None,
    record_text: flags.RecordText = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with a `target` section.")] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout when ready.")
    ] = False,
) -> None:
    """Serve a target model: it owns every request's KV and decides every token."""
    from protos.logs import set_up_logs
    from target_service.config import TargetConfig

    settings = TargetConfig.load(
        config,
        target=target,
        tapped_layers=_ids(tapped_layers),
        num_tapped_layers=num_tapped_layers,
        address=address,
        threads=threads,
        num_pages=num_pages,
        prefill_rows=prefill_chunk,
        dtype=dtype,
        feature_dtype=feature_dtype,
        device=device,
        linear_kernel=linear_kernel,
        trust_remote_code=trust_remote_code,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_ca=tls_ca,
        tls_client_auth=tls_client_auth,
        auth_tokens=auth_tokens,
        log_format=log_format,
        record_text=record_text,
    )
    set_up_logs("target", settings.log_format, settings.record_text)
    # Before torch starts its pool: waiting threads must not spin against the drafter's.
    os.environ.setdefault("OMP_NUM_THREADS", str(settings.threads))
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from target_service.main import main

    def announce(address: str) -> None:
        typer.echo(f"target ready on {address}", err=True)
        if json_output:
            typer.echo(json.dumps({"address": address, "pid": os.getpid()}))

    raise typer.Exit(main(settings, announce))


app = typer.Typer(add_completion=False)
app.command()(target)
