"""The commands `dlite tune` and `dlite top`. Light at import: grpc and rich come with the command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.addresses import endpoint_of
from protos import flags
from protos.errors import InvalidRequest

if TYPE_CHECKING:
    from protos.security import Endpoint

Address = Annotated[
    str | None, typer.Option(envvar="DLITE_ADDRESS", help="The coordinator, as `dlite up` prints it.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def tune(
    address: Address = None,
    replay: Annotated[
        Path | None,
        typer.Option(help="A trace of rounds: hand it to a fresh tuner and compare its choices."),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Predicted tokens/s over v, what was chosen and what was measured (the default).",
        ),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE of the replayed tuner, such as margin=0.05; repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the replayed tuner's probes.")] = 0,
    target_address: Annotated[
        str, typer.Option(help="Whose tuner, where there are several targets; default: the busiest's.")
    ] = "",
    png: Annotated[Path | None, typer.Option(help="Draw the curve into this file.")] = None,
    tls_ca: flags.CallerCa = None,
    tls_cert: flags.CallerCert = None,
    tls_key: flags.CallerKey = None,
    token_file: flags.TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """What the tuner believes and chose: of a running coordinator, or of a trace that is replayed."""
    if address is None and replay is None:
        raise InvalidRequest("give --address of a coordinator, or --replay FILE", field="--address")
    if replay is None:
        if settings:
            raise InvalidRequest("goes with --replay", field="--set")
        endpoint = endpoint_of(address, (tls_cert, tls_key, tls_ca, token_file))
        _explain_live(endpoint, target_address, _Output(png, as_json))
    else:
        _replay(replay, list(settings or ()), seed, target_address, explain, _Output(png, as_json))


def top(
    address: Address = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    tls_ca: flags.CallerCa = None,
    tls_cert: flags.CallerCert = None,
    tls_key: flags.CallerKey = None,
    token_file: flags.TokenFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one snapshot as JSON and end.")] = False,
) -> None:
    """Watch a coordinator: requests, tokens/s, acceptance, k and v, time of rounds, links. Ctrl-C ends."""
    import asyncio

    from coordinator.trace.top import run_top, snapshot_json

    if not address:
        raise InvalidRequest("give --address of a coordinator", field="--address")
    endpoint = endpoint_of(address, (tls_cert, tls_key, tls_ca, token_file))
    try:
        if as_json:
            print(json.dumps(asyncio.run(snapshot_json(endpoint, interval))), flush=True)
        else:
            asyncio.run(run_top(endpoint, interval))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


class _Output:
    """Where a result goes."""

    def __init__(self, png: Path | None, as_json: bool) -> None:
        self.png = png
        self.as_json = as_json

    def show(self, document: dict[str, Any], lines: Sequence[str], picture: Any) -> None:
        """Prints the document or the lines, and writes the picture if one is wanted.

        Args:
            picture: called for the bytes; None when there is nothing to draw.
        """
        if self.png is not None and picture is not None:
            try:
                self.png.write_bytes(picture())
            except OSError as error:
                raise InvalidRequest(f"cannot write {self.png}: {error}", field="--png") from error
        print(json.dumps(document) if self.as_json else "\n".join(lines), flush=True)


def _explain_live(endpoint: Endpoint, target_address: str, output: _Output) -> None:
    import asyncio

    from coordinator.trace.curves import explanation_png
    from coordinator.trace.explain import NOTHING, explanation_from, explanation_json
    from coordinator.trace.remote import explain_tuner

    found = explanation_from(asyncio.run(explain_tuner(endpoint, target_address)))
    lines = (NOTHING,) if found is None else found.lines()
    picture = None if found is None else lambda: explanation_png(found)
    output.show(explanation_json(found), lines, picture)


def _replay(path: Path, words: list[str], seed: int, target: str, explain: bool, output: _Output) -> None:
    from coordinator.trace import replay as replaying
    from coordinator.trace.curves import explanation_png, replay_png
    from coordinator.trace.explain import explanation_json, replay_json, replay_lines
    from coordinator.trace.reader import read_trace
    from coordinator.trace.settings import parse_settings

    settings, priors = parse_settings(words)
    trace = read_trace(path)
    found = replaying.replay(trace, settings, priors, seed, target)
    if found.num_others:
        others = f"{found.num_others} rounds at other targets are left out: these had tuners of their own"
        typer.echo(f"target {found.target}; {others} (--target-address)", err=True)
    if trace.num_lost:
        typer.echo(f"warning: {trace.num_lost} rounds are missing in {path}", err=True)
    explanation = found.explanation
    if explain and explanation is not None:
        lines = explanation.lines()
        output.show(explanation_json(explanation), lines, lambda: explanation_png(explanation))
    else:
        output.show(replay_json(found), replay_lines(found), lambda: replay_png(found.points))
