"""The command `dlite loadtest`. Light at import: grpc comes with the command."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protos import flags
from protos.errors import InvalidRequest

if TYPE_CHECKING:
    from coordinator.loadtest.measuring import Measured
    from coordinator.loadtest.options import Shown

SEED_BITS = 31


def loadtest(
    address: Annotated[
        str | None,
        typer.Option(
            "--address", "--base-url", envvar="DLITE_ADDRESS", help="The coordinator; several with commas."
        ),
    ] = None,
    tls_ca: flags.CallerCa = None,
    tls_cert: flags.CallerCert = None,
    tls_key: flags.CallerKey = None,
    token_file: flags.TokenFile = None,
    host: Annotated[str, typer.Option(help="With --port, instead of --address.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=1, max=65535)] = None,
    backend: Annotated[str, typer.Option(help="dlite-grpc, the only one.")] = "dlite-grpc",
    model: Annotated[str | None, typer.Option(help="Model to ask for; unset: what is served.")] = None,
    dataset_name: Annotated[
        str, typer.Option(help="random (token ids), custom (JSONL) or agent (sessions of turns).")
    ] = "random",
    dataset_path: Annotated[
        Path | None, typer.Option(help="JSONL with 'turns' (a list) or 'prompt' in each row.")
    ] = None,
    num_prompts: Annotated[int, typer.Option(help="Sessions to run; of one turn each with random.")] = 32,
    input_len: Annotated[
        int, typer.Option("--input-len", "--random-input-len", help="Tokens of a prompt.")
    ] = 128,
    output_len: Annotated[
        int | None,
        typer.Option(
            "--output-len", "--random-output-len", min=1, help="Most tokens of an answer.  [default: 128]"
        ),
    ] = None,
    range_ratio: Annotated[
        float, typer.Option("--range-ratio", "--random-range-ratio", help="Lengths vary by this share.")
    ] = 0.0,
    shared_prefix_len: Annotated[int, typer.Option(min=0, help="Tokens that all sessions begin with.")] = 0,
    turns: Annotated[int, typer.Option(help="Turns of an agent's session.")] = 4,
    turn_len: Annotated[int, typer.Option(help="Tokens that a tool's answer adds.")] = 32,
    pause_ms: Annotated[float, typer.Option(min=0, help="Mean time of a tool between turns.")] = 0.0,
    cancel_rate: Annotated[
        float, typer.Option(help="Share of requests that the client leaves in mid-text.")
    ] = 0.0,
    skip_chat_template: Annotated[bool, typer.Option(help="Send texts as raw prompts.")] = False,
    request_rate: Annotated[
        str,
        typer.Option(
            help="Sessions/s of an open loop; inf: as places get free. Several with commas: a sweep."
        ),
    ] = "inf",
    burstiness: Annotated[
        float, typer.Option(help="Shape of the gamma law of gaps: 1 Poisson, less burstier, inf even.")
    ] = 1.0,
    ramp_up_strategy: Annotated[
        str | None, typer.Option(help="linear or exponential, instead of --request-rate.")
    ] = None,
    ramp_up_start_rps: Annotated[float | None, typer.Option()] = None,
    ramp_up_end_rps: Annotated[float | None, typer.Option()] = None,
    max_concurrency: Annotated[
        str | None, typer.Option(help="Sessions at once. Several with commas: a sweep.")
    ] = None,
    max_duration: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds after which a point sends nothing new.")
    ] = None,
    num_warmups: Annotated[int, typer.Option(min=0, help="Requests of other prompts before the run.")] = 0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of prompts, arrivals and sampling.  [default: a fresh one]")
    ] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos")] = False,
    temperature: Annotated[float | None, typer.Option(min=0, help="Unset: the model's.")] = None,
    top_p: Annotated[float | None, typer.Option()] = None,
    top_k: Annotated[int | None, typer.Option(min=0)] = None,
    num_draft_tokens: Annotated[
        int | None, typer.Option(min=0, help="k of every request; unset: the coordinator's.")
    ] = None,
    verify_block_size: Annotated[int | None, typer.Option(min=1, help="v of every request.")] = None,
    source: Annotated[str | None, typer.Option(help="auto, drafter, lookup or lookup_then_drafter.")] = None,
    extra_body: Annotated[
        str | None, typer.Option(help="JSON object of further GenerateRequest fields.")
    ] = None,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Run everything without speculation as well, in turn.")
    ] = False,
    baseline_blocks: Annotated[
        int, typer.Option(min=1, help="Blocks of the interleaving: 2 runs A B B A.")
    ] = 2,
    percentile_metrics: Annotated[str, typer.Option(help="Latencies to print.")] = "ttft,tpot,itl,e2el",
    metric_percentiles: Annotated[str, typer.Option(help="Percentiles of each.")] = "99",
    goodput: Annotated[
        list[str] | None, typer.Option(help="Bounds in ms, like 'ttft:200 tpot:50 e2el:5000'.")
    ] = None,
    ready_check_timeout_sec: Annotated[
        float, typer.Option(min=0, help="Wait so long for the coordinator.")
    ] = 0.0,
    request_timeout: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds after which a request has failed.")
    ] = None,
    resume_seconds: Annotated[
        float, typer.Option(min=0, help="Resume broken streams for so long instead of counting them.")
    ] = 0.0,
    max_failed: Annotated[int, typer.Option(min=0, help="Exit code 1 when more requests failed.")] = 0,
    save_result: Annotated[bool, typer.Option("--save-result")] = False,
    save_detailed: Annotated[
        bool, typer.Option("--save-detailed", help="With every single request.")
    ] = False,
    append_result: Annotated[bool, typer.Option("--append-result")] = False,
    result_dir: Annotated[Path | None, typer.Option()] = None,
    result_filename: Annotated[str | None, typer.Option()] = None,
    report: Annotated[Path | None, typer.Option(help="Folder for report.html and its figures.")] = None,
    save_rounds: Annotated[
        Path | None, typer.Option(help="Write a record of every round to this file (see docs/traces.md).")
    ] = None,
    label: Annotated[str | None, typer.Option(help="First part of the file's name.")] = None,
    metadata: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE, into the result; may be repeated.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of the table.")
    ] = False,
) -> None:
    """Load a coordinator and measure: flags, table and JSON keys of `vllm bench serve`, and our own.

    Latency counts from the scheduled arrival. Exit code 1 when requests failed or no token came.
    """
    raise typer.Exit(_run(dict(locals())))


def _run(given: Mapping[str, Any]) -> int:
    """The exit code. Raises DliteError."""
    import asyncio

    from coordinator.loadtest.document import exit_code
    from coordinator.loadtest.flags import make_endpoints, make_job, seed_warnings
    from coordinator.loadtest.measuring import Where, heading_now, measure
    from coordinator.loadtest.options import parse_metadata, parse_shown

    if given["backend"] != "dlite-grpc":
        raise InvalidRequest(f"{given['backend']!r}: there is only dlite-grpc", field="--backend")
    shown = parse_shown(
        given["percentile_metrics"], given["metric_percentiles"], list(given["goodput"] or ())
    )
    job = make_job(given, lambda: secrets.randbits(SEED_BITS))
    heading = heading_now(
        given["label"], parse_metadata(list(given["metadata"] or ())), seed_warnings(given["seed"])
    )
    where = Where(
        make_endpoints(given),
        given["ready_check_timeout_sec"],
        given["resume_seconds"],
        given["request_timeout"],
        watches_rounds=given["report"] is not None,
        rounds_path=given["save_rounds"],
    )
    for warning in heading.warnings:
        typer.echo(f"warning: {warning}", err=True)
    measured = asyncio.run(measure(job, where, shown, heading))
    results = [each.result for each in measured]
    _write(measured, given, shown)
    _show(results, given, shown)
    return exit_code(results, given["max_failed"])


def _write(measured: Sequence[Measured], given: Mapping[str, Any], shown: Shown) -> None:
    """Result files and the report, as far as they are wanted."""
    from coordinator.loadtest.figures import ReportPoint
    from coordinator.loadtest.saving import save_report

    if given["save_result"] or given["save_detailed"] or given["append_result"]:
        _save(
            [{**each.result, **(each.details if given["save_detailed"] else {})} for each in measured], given
        )
    if given["report"]:
        points = [ReportPoint({**each.result, **each.details}, each.rounds) for each in measured]
        typer.echo(f"saved {save_report(given['report'], points, shown)}", err=True)


def _show(results: list[dict[str, Any]], given: Mapping[str, Any], shown: Shown) -> None:
    """One JSON object (of a sweep: with `sweep`, a list), or the tables."""
    from coordinator.loadtest.console import block, sweep_table

    if given["as_json"]:
        print(json.dumps(results[0] if len(results) == 1 else {"sweep": results}), flush=True)
        return
    for result in results:
        print(block(result, shown))
    if len(results) > 1:
        print(sweep_table(results))


def _save(documents: list[dict[str, Any]], given: Mapping[str, Any]) -> None:
    """A file for each point; all points in one file, a line each, when the file has a given name."""
    from coordinator.loadtest.flags import result_path
    from coordinator.loadtest.saving import file_name, save

    for number, document in enumerate(documents):
        path = result_path(given, file_name(document))
        further = number > 0 and given["result_filename"] is not None
        save(document, path, given["append_result"] or further)
        typer.echo(f"saved {path}", err=True)
