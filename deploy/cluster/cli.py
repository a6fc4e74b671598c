"""`dlite deploy`: clusters from one YAML file. Light at import."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from protos.errors import InvalidRequest

deploy = typer.Typer(add_completion=False, help="Many replicas from one YAML file, on Ray.")

File = Annotated[Path, typer.Argument(help="the YAML file, see deploy/cluster/spec.py")]
Which = Annotated[str, typer.Argument(help="the cluster's name, or its YAML file")]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray-address", envvar="RAY_ADDRESS", help="host:port of Ray's head; unset: on this machine"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object")]
Wait = Annotated[float, typer.Option("--wait", min=0, help="seconds until all replicas must serve")]
DEFAULT_NAME = "dlite"


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _name(which: str) -> str:
    from deploy.cluster.spec import read_spec

    return read_spec(Path(which)).name if which.endswith((".yaml", ".yml")) else which


@deploy.command()
def plan(file: File, as_json: AsJson = False) -> None:
    """Shows what would run where, and starts nothing."""
    from deploy.cluster.plan import plan as make_plan
    from deploy.cluster.spec import read_spec

    found = make_plan(read_spec(file))
    if as_json:
        print(json.dumps({**asdict(found), "totals": found.totals()}))
        return
    for actor in found.actors:
        resources = " ".join(f"{name}={amount:g}" for name, amount in actor.resources.items())
        typer.echo(f"{actor.name}  [{resources}]  dlite {' '.join(actor.command)}")
    totals = " ".join(f"{name}={amount:g}" for name, amount in found.totals().items())
    _say(f"{len(found.actors)} actors, {found.placement}, together {totals}")


@deploy.command()
def up(
    file: File,
    ray_address: Ray = None,
    wait: Wait = 600.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="say what would be done, and do nothing")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Makes the cluster what the file says; what is so already is left alone."""
    from deploy.cluster.ray_cluster import Cluster, connected
    from deploy.cluster.spec import read_spec

    spec = read_spec(file)
    cluster = Cluster(spec.name)
    with connected(ray_address):
        found = cluster.changes(spec) if dry_run else cluster.up(spec, wait, _say)
    differing = (found if dry_run else found["changes"])["differing"]
    if differing:
        _say(f"{' '.join(differing)}: another command than the file says, and left so; see docs/cluster.md")
    if as_json:
        print(json.dumps(found))
    elif dry_run:
        for what, names in found.items():
            typer.echo(f"{what}: {' '.join(names) or 'none'}")
    else:
        _show(found)


@deploy.command()
def status(
    which: Which = DEFAULT_NAME,
    ray_address: Ray = None,
    addresses: Annotated[
        bool, typer.Option("--addresses", help="only where clients go: the coordinators, with commas")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Replicas, where they listen, and what coordinators see of them."""
    found = _call(which, ray_address, "status")
    if addresses:
        doors = [each for each in found["members"] if each["kind"] == "coordinator" and each["address"]]
        print(",".join(each["address"] for each in doors))
    elif as_json:
        print(json.dumps(found))
    else:
        _show(found)


@deploy.command()
def scale(
    kind: Annotated[str, typer.Argument(help="target, draft or coordinator")],
    replicas: Annotated[int, typer.Argument(min=0, help="how many there shall be")],
    which: Which = DEFAULT_NAME,
    ray_address: Ray = None,
    wait: Wait = 600.0,
    as_json: AsJson = False,
) -> None:
    """Adds replicas, or drains the last ones and takes them away."""
    from deploy.cluster.plan import KINDS
    from deploy.cluster.ray_cluster import Cluster, connected

    if kind not in KINDS:
        raise InvalidRequest(f"{kind!r} is none of {', '.join(KINDS)}", field="KIND")
    with connected(ray_address):
        changes = Cluster(_name(which)).scale(kind, replicas, wait)
    if as_json:
        print(json.dumps(changes))
    else:
        _say(f"created: {_list(changes['created'])}; ended: {_list(changes['ended'])}")


@deploy.command()
def swap_drafter(
    file: File,
    ray_address: Ray = None,
    rounds: Annotated[
        int, typer.Option(min=0, help="drafted rounds compared before and after; 0 compares nothing")
    ] = 500,
    tolerance: Annotated[
        float, typer.Option(min=0, max=1, help="part of the accept length that may be lost")
    ] = 0.05,
    watch_seconds: Annotated[float, typer.Option(min=0, help="most time for each of the two")] = 600.0,
    as_json: AsJson = False,
) -> None:
    """Swaps to the drafter that the file says, under load; back to the old one when it accepts less."""
    from coordinator.swap_job import SwapOptions
    from deploy.cluster.ray_cluster import Cluster, connected
    from deploy.cluster.spec import read_spec

    spec = read_spec(file)
    with connected(ray_address):
        options = SwapOptions(rounds, tolerance, watch_seconds)
        result = Cluster(spec.name).swap_drafters(spec, options, _say)
    lines = [f"{name:<22} {value}" for name, value in result.items()]
    print(json.dumps(result) if as_json else "\n".join(lines))
    if not result["is_kept"]:
        raise typer.Exit(1)


@deploy.command()
def drain(
    member: Annotated[str, typer.Argument(help="a replica's name, as `status` shows it")],
    which: Which = DEFAULT_NAME,
    ray_address: Ray = None,
) -> None:
    """Takes one replica away: nothing new goes there, what runs moves or finishes, then it ends."""
    _call(which, ray_address, "drain", member, change=True)


@deploy.command()
def logs(
    member: Annotated[str, typer.Argument(help="a replica's name, as `status` shows it")],
    which: Which = DEFAULT_NAME,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=1000)] = 100,
    ray_address: Ray = None,
) -> None:
    """The last lines that a service wrote, of all its processes."""
    from deploy.cluster.ray_cluster import Cluster, connected

    with connected(ray_address):
        for line in Cluster(_name(which)).logs(member, lines):
            typer.echo(line)


@deploy.command()
def down(which: Which = DEFAULT_NAME, ray_address: Ray = None) -> None:
    """Ends all replicas, coordinators first, and gives the places back. Ray itself stays."""
    from deploy.cluster.ray_cluster import Cluster, connected

    with connected(ray_address):
        ended = Cluster(_name(which)).down(_say)
    _say(f"ended: {_list(ended)}")


@deploy.command()
def local(
    target: Annotated[str, typer.Option(help="smollm2, a model folder, or a hub name")] = "smollm2",
    drafter: Annotated[str, typer.Option(help="auto, untrained, or a checkpoint folder")] = "auto",
    targets: Annotated[int, typer.Option(min=1)] = 2,
    drafters: Annotated[int, typer.Option(min=1)] = 2,
    prompts: Annotated[int, typer.Option(min=1, help="sessions of the load")] = 4,
    output_len: Annotated[int, typer.Option(min=1, help="tokens of each answer")] = 64,
    once: Annotated[bool, typer.Option("--once", help="end when the load has been sent")] = False,
) -> None:
    """A Ray cluster of its own on this machine, with load, until Ctrl-C."""
    from deploy.cluster.demo import DemoOptions, run_demo
    from deploy.demo_model import resolve_model
    from deploy.shipped import named_drafter
    from deploy.up import drafter_folder
    from draft_service.checkpoint import read_draft_config

    model = resolve_model(target)
    folder = drafter_folder(named_drafter(drafter, model, _say), model)
    if folder is None:
        raise InvalidRequest("this cluster has drafters", field="--drafter")
    load = ("--dataset-name", "agent", "--num-prompts", prompts, "--output-len", output_len, "--turns", 2)
    options = DemoOptions(
        model,
        folder,
        tuple(read_draft_config(folder).target_layer_ids),
        targets,
        drafters,
        (*map(str, load), "--max-concurrency", str(2 * targets)),
        stay=not once,
    )
    raise typer.Exit(run_demo(options, _say))


def _call(which: str, ray_address: str | None, method: str, *args: Any, change: bool = False) -> Any:
    from deploy.cluster.ray_cluster import CALL_SECONDS, CHANGE_SECONDS, Cluster, connected

    seconds = CHANGE_SECONDS if change else CALL_SECONDS
    with connected(ray_address):
        return Cluster(_name(which)).call(method, *args, timeout_seconds=seconds)


def _list(names: Iterable[str]) -> str:
    return " ".join(names) or "none"


def _show(found: dict[str, Any]) -> None:
    """A table of the members, and a line for each replica that a coordinator sees otherwise than serving."""
    for each in found["members"]:
        state = "leaving" if each["is_leaving"] else each["state"]
        admin = f"  admin http://{each['admin_address']}" if each["admin_address"] else ""
        error = each["error"].splitlines()[0] if each["error"] and state != "serving" else ""
        typer.echo(f"{each['name']:<28} {state:<9} {each['address'] or '-':<22}{admin} {error}".rstrip())
    for name, seen in found["coordinators"].items():
        for each in seen["replicas"]:
            told = f"{each['state']}, {each['num_running']} under way, {each['num_served']} served"
            typer.echo(f"{name} sees {each['kind']} {each['address']}: {told} {each['last_error']}".rstrip())
