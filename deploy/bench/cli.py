"""`dlite bench`: runs yardsticks by name. A yardstick prints its bar; it never fails a build."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from deploy.demo_model import DEMO_MODEL
from protos.errors import InvalidRequest

ALL = "all"
RESULTS = Path("docs") / "results"


@dataclass(frozen=True)
class Yardstick:
    """Where it is (a coroutine `measure` in the module), what it compares, its bar in words."""

    module: str
    arms: str
    bar: str


YARDSTICKS = {
    "equality": Yardstick(
        "deploy.bench.equality",
        "ids with speculation (v in 1, 2, 5, 8; concurrency 1, 8) and of transformers against plain decoding",
        "100 % up to near-ties",
    ),
    "disaggregation": Yardstick(
        "deploy.bench.disaggregation",
        "tokens/s of three processes over gRPC against engine and drafter in one process, concurrency 4",
        ">= 0.90",
    ),
    "round-overhead": Yardstick(
        "deploy.bench.round_overhead",
        "round time with services that compute nothing, D 4096, m 14, one request, beside bare gRPC",
        "<= 3 ms p50",
    ),
    "coordinator-capacity": Yardstick(
        "deploy.bench.coordinator_capacity",
        "request-rounds/s of one coordinator, 64 requests, 16 KiB features, services that cost nothing",
        ">= 2,000/s",
    ),
    "link-model": Yardstick(
        "deploy.bench.link_model",
        "time of a round over 0, 1, 5, 20, 50 ms of round trip against the model, set T_V and T_D",
        "within 15 %",
    ),
    "replay": Yardstick(
        "deploy.bench.replay",
        "tokens/s at acceptance 0, .5, .8, 1 against tau / T_cycle of the model",
        "within 10 %",
    ),
    "pipeline": Yardstick(
        "deploy.bench.pipeline",
        "cycle of two cohorts against T_cycle of the model; tokens/s of P = 2 over P = 1 beside the model's",
        "<= 1.15",
    ),
    "tuner": Yardstick(
        "deploy.bench.tuner",
        "tokens/s of the tuner against the best fixed v and Run; 1 to 16 requests, RTT 0 and 20 ms",
        ">= 0.95 of the best, >= 0.97 of Run",
    ),
    "spot-checks": Yardstick(
        "deploy.bench.spot_checks",
        "on --target with a replay drafter of acceptance .8: the tuner against the best fixed v and Run at "
        "concurrency 1 and 4; a round and tokens/s against the model",
        ">= 0.95 and >= 0.97; within 15 % and 10 %",
    ),
    "grammar": Yardstick(
        "deploy.bench.grammar",
        "tokens/s under a bounded JSON schema against the same prompts without it; 100 answers checked",
        ">= 0.8; all whole answers parse, at least 95 of 100 are whole",
    ),
    "engine-ar": Yardstick(
        "deploy.bench.engine_ar",
        "tokens/s of our plain decoding against transformers generate, batch 1, same kernel and best kernel",
        ">= 1.0 and >= 1.3",
    ),
    "engine-batch": Yardstick(
        "deploy.bench.engine_batch",
        "useful tokens/s of 8 requests of unequal length, continuous batching against padded generate",
        ">= 1.5",
    ),
    "verify-cost": Yardstick(
        "deploy.bench.verify_cost",
        "step of 4 and 8 rows against the fastest one-row step of any kernel, context 512",
        "4 rows: <= 1.8, 8 rows: <= 2.3",
    ),
    "prefill-memory": Yardstick(
        "deploy.bench.prefill_memory",
        "peak extra memory of a 4096-token prefill with feature taps against without",
        "<= 1.05",
    ),
    "wire": Yardstick(
        "deploy.bench.wire",
        "bytes of a round at context 4096 against 256; features without speculation; drafter's memory",
        "1.00; 0; 1.00 +- 2 %",
    ),
    "prefix": Yardstick(
        "deploy.bench.prefix",
        "hit rate of the prefix cache with speculation against without, agents in several turns",
        "1.00",
    ),
    "long-context": Yardstick(
        "deploy.bench.long_context",
        "time of a round and memory of a request as its context grows to 6k tokens; --save adds a plot",
        "8 rows: <= 3.0 x the round at 0.5k",
    ),
    "drafter": Yardstick(
        "deploy.bench.drafter",
        "tokens a round of a drafter by set (--prompts FILES, agent kinds), context and temperature",
        "> 1; aim: 2.2, flat in context",
    ),
    "faults": Yardstick(
        "deploy.bench.faults",
        "texts while processes are killed or hang, messages are lost, late, double, hostile, pages are few, "
        "against plain decoding without",
        "no request fails, no text differs, no page is lost, in every row",
    ),
    "speedup": Yardstick(
        "deploy.bench.speedup",
        "three processes with a trained drafter and the tuner against plain decoding with the fastest kernel "
        "and threads, by kind of prompt (--prompts FILES, agent kinds)",
        ">= 1.15 on agent kinds, >= 1.00 on every set",
    ),
}


def bench(
    names: Annotated[list[str] | None, typer.Argument(help=f"yardsticks, or {ALL}")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="list the yardsticks and end")] = False,
    target: Annotated[str, typer.Option(help="smollm2, a model folder, or a hub name")] = DEMO_MODEL,
    drafter: Annotated[str, typer.Option(help="of `drafter` and `speedup`: auto, or a folder")] = "auto",
    prompts: Annotated[list[Path] | None, typer.Option(help="of the same: JSONL files with turns")] = None,
    full: Annotated[bool, typer.Option("--full", help="longer than ten minutes")] = False,
    save: Annotated[Path | None, typer.Option(help="folder to write NAME.json into")] = None,
    table: Annotated[Path | None, typer.Option(help="document whose table to write anew, and end")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Measures yardsticks; without a name, lists them."""
    if table is not None:
        _write_table(table)
        return
    if show_list or not names:
        _print_list(as_json)
        return
    chosen = list(YARDSTICKS) if names == [ALL] else names
    unknown = [name for name in chosen if name not in YARDSTICKS]
    if unknown:
        raise InvalidRequest(f"no yardstick {unknown[0]!r}; there are: {', '.join(YARDSTICKS)}", field="NAME")
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    from deploy.bench.harness import BenchOptions, report
    from deploy.bench.results import save as save_result

    options = BenchOptions(target, full, console.print, drafter, tuple(prompts or ()))
    results = []
    for name in chosen:
        module = import_module(YARDSTICKS[name].module)
        outcome = asyncio.run(module.measure(options))
        results.append(report(name, outcome))
        if save is not None:
            save_result(results[-1], save)
            if hasattr(module, "plot"):
                module.plot(results[-1], save / f"{name}.png")
    _print_results(results, as_json)


def _write_table(document: Path) -> None:
    from deploy.bench.matrix import read_rows, with_matrix
    from deploy.bench.results import load, with_table

    text = with_table(document.read_text(), load(document.parent / RESULTS))
    proof = document.parent / "tests" / "proof.toml"
    document.write_text(with_matrix(text, read_rows(proof)) if proof.exists() else text)


def _print_list(as_json: bool) -> None:
    if as_json:
        rows = [{"name": name, "arms": y.arms, "bar": y.bar} for name, y in YARDSTICKS.items()]
        print(json.dumps({"yardsticks": rows}))
        return
    for name, yardstick in YARDSTICKS.items():
        print(f"{name}: {yardstick.arms}; bar {yardstick.bar}")


def _print_results(results: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(results[0] if len(results) == 1 else {"results": results}))
        return
    for result in results:
        met = "met" if result["pass"] else "NOT met"
        print(f"{result['name']}: {result['value']:.4g} {result['unit']} (bar {result['bar']:g}, {met})")
        for arm, values in result["arms"].items():
            print(f"  {arm}: {values['median']:.4g} ({values['low']:.4g} to {values['high']:.4g})")
