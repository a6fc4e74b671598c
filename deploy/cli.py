"""The `dlite` script: finds the module of a verb, and only then imports it.

Nothing here may import torch, transformers, grpc or ray: `--help` stays quick, and a coordinator
started by this script never loads torch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version

from protos.errors import ContractMismatch, DliteError, InvalidRequest, NotFound

EXIT_FAILED = 1
EXIT_BAD_USAGE = 2


@dataclass(frozen=True)
class Verb:
    """Where the command of a verb is (a function of the verb's name, or a typer of commands), and what it
    does in a line."""

    module: str
    summary: str


VERBS = {
    "target": Verb("target_service.cli", "run a target service: the model that decides every token"),
    "draft": Verb("draft_service.cli", "run a draft service: the small model that proposes"),
    "coordinator": Verb("coordinator.cli", "run a coordinator: what clients talk to"),
    "up": Verb("deploy.up", "run all three on this machine, on free ports"),
    "generate": Verb("coordinator.cli", "complete one prompt"),
    "chat": Verb("coordinator.cli", "talk in a terminal, turn by turn"),
    "config": Verb("deploy.config", "show settings, and where each comes from"),
    "deploy": Verb("deploy.cluster.cli", "many replicas from one YAML file, on Ray: up, status, scale, .."),
    "probe": Verb("deploy.probe", "ask services whether they are alive, or ready: for health checks"),
    "certs": Verb("deploy.certs", "make a small authority and certificates, for trying out TLS"),
    "token": Verb("deploy.certs", "draw a bearer token for a tenant"),
    "loadtest": Verb(
        "coordinator.loadtest.cli", "load a coordinator and measure, as `vllm bench serve` does"
    ),
    "tune": Verb("coordinator.trace.cli", "what the tuner believes, chose and measured; replay a trace"),
    "top": Verb("coordinator.trace.cli", "watch a coordinator live"),
    "replicas": Verb("coordinator.replicas_cli", "the targets and drafters of a coordinator; change them"),
    "swap-drafter": Verb("coordinator.swap_cli", "other drafters under load; back when they are worse"),
    "demo": Verb("deploy.demo", "decode prompts with and without speculation and compare"),
    "data": Verb("deploy.data", "make and check training data: export, generate, check"),
    "train": Verb("deploy.train", "train a drafter for a target"),
    "eval": Verb("deploy.evaluate", "walk held-out text with a drafter: tau by set and position"),
    "ship": Verb("deploy.ship", "make a trained drafter a folder of the project, with its card"),
    "ablate": Verb("deploy.ablate", "train and walk variants of a drafter at one budget"),
    "soak": Verb("deploy.soak", "agent traffic for a while, with cancels and kills: what leaks, what hangs"),
    "bench": Verb("deploy.bench.cli", "run a yardstick by name; --list shows them"),
}


def usage() -> str:
    """The text of `dlite --help`."""
    width = max(map(len, VERBS))
    lines = [f"  {name:<{width}}  {verb.summary}" for name, verb in VERBS.items()]
    return "\n".join(
        [
            "usage: dlite VERB [OPTIONS]   (dlite VERB --help for the options of one)",
            "",
            "Speculative decoding for agents as three gRPC services.",
            "",
            *lines,
            "",
            "Results go to stdout, progress to stderr; --json prints exactly one JSON object.",
            "Exit codes: 0 done, 1 failed, 2 bad usage or configuration.",
        ]
    )


def _run_verb(name: str, args: Sequence[str]) -> None:
    import typer

    command = getattr(import_module(VERBS[name].module), name.replace("-", "_"))
    app = command if isinstance(command, typer.Typer) else typer.Typer(add_completion=False)
    if app is not command:
        app.command()(command)
    typer.main.get_command(app).main(args=list(args), prog_name=f"dlite {name}")


def exit_code(error: DliteError) -> int:
    """2 where the caller must change a flag, a configuration or a model; 1 otherwise."""
    return EXIT_BAD_USAGE if isinstance(error, InvalidRequest | ContractMismatch | NotFound) else EXIT_FAILED


def run(argv: Sequence[str]) -> int:
    """Runs one command line without the program's name; returns the exit code."""
    name = argv[0] if argv else "--help"
    if name in ("--help", "-h", "help"):
        print(usage())
        return 0
    if name == "--version":
        print(f"dlite {version('dlite')}")
        return 0
    if name not in VERBS:
        print(f"dlite: no verb {name!r}; there are: {', '.join(VERBS)}", file=sys.stderr)
        return EXIT_BAD_USAGE
    try:
        _run_verb(name, argv[1:])
    except DliteError as error:
        print(f"dlite {name}: {error}", file=sys.stderr)
        return exit_code(error)
    except KeyboardInterrupt:
        print(f"dlite {name}: interrupted", file=sys.stderr)
        return EXIT_FAILED
    return 0


def main() -> None:
    """Entry point of the console script. A typer command ends by SystemExit, which passes through."""
    from deploy.parent_watch import end_with_parent

    end_with_parent()
    raise SystemExit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
