"""The model card of a shipped drafter: written from its provenance and committed results, never by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_NOT_MEASURED = (
    "Not measured yet with these weights: `dlite bench {name} --save docs/results`, then `{again}`."
)
_AGAIN = "dlite ship card"


def model_card(provenance: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> str:
    """The README.md of a shipped folder.

    Args:
        provenance: of the folder.
        results: committed results; those of other weights are left out.
    """
    mine = {
        result["name"]: result
        for result in results
        if result.get("drafter_fingerprint") == provenance["fingerprint"]
    }
    parts = [
        _front_matter(provenance["run"]["target"]["model"]),
        _about(provenance),
        "## Recipe\n\n" + _recipe(provenance),
        "## Data\n\n" + _data(provenance),
        "## Scores\n\n" + _scores(mine.get("drafter")),
        "## Speed\n\n" + _speed(mine.get("speedup")),
        "## Hashes\n\n" + _hashes(provenance),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(target: str) -> str:
    return "\n".join(
        [
            "---",
            "license: apache-2.0",
            f"base_model: {target}",
            "tags: [speculative-decoding, dlite_v1]",
            "---",
            "",
            "<!-- written by `dlite ship`, do not edit -->",
        ]
    )


def _about(provenance: Mapping[str, Any]) -> str:
    target = provenance["run"]["target"]
    return (
        f"# DLite drafter for {target['model']}\n\n"
        f"Proposes tokens for one target and no other (fingerprint `{target['fingerprint'][:16]}`); the "
        "target decides every token, so this drafter changes the speed of text and never the text. Format "
        "`dlite_v1`; the tables of its sequential head are int8 with one scale a row, the rest is float16, "
        "and it is computed in float32, with matrices in float16 where the CPU has a kernel for them. "
        "`dlite up` and `dlite demo` take it by themselves for this target."
    )


def _recipe(provenance: Mapping[str, Any]) -> str:
    run, training = provenance["run"], provenance["training"]
    lines = [
        f"{training['num_anchors']:,} anchors ({training['steps']:,} steps of "
        f"{run['recipe']['batch_anchors']}) from {run['num_anchors']:,} distinct ones, "
        f"{training['hours']:.1f} hours of steps, torch {run['torch']}. "
        + _started(run.get("start", ""))
        + f"Tapped layers {', '.join(map(str, run['target_layer_ids']))}.",
        "",
        "| field | value |",
        "|---|---|",
        *(f"| `{name}` | {_plain(value)} |" for name, value in run["recipe"].items()),
        "",
        "At the last save, proposals 1.. whose argmax is the target's (teacher-forced, a training metric): "
        f"training {_row(training['training'])}; held-out prompts {_row(training['held_out'])}.",
    ]
    return "\n".join(lines)


def _started(fingerprint: str) -> str:
    return f"Started from the weights `{fingerprint[:16]}`. " if fingerprint else ""


def _data(provenance: Mapping[str, Any]) -> str:
    check = provenance["contamination"]
    lines = [
        "Prompts of these sources; every answer was written by the target itself.",
        "",
        "| source | licence | answers | response tokens | temperatures |",
        "|---|---|---|---|---|",
    ]
    for one in provenance["sources"]:
        title = f"[{one['title']}]({one['url']})" if one["url"] else one["title"]
        temperatures = ", ".join(f"{t:g}" for t in one["temperatures"])
        lines.append(
            f"| `{one['name']}`: {title} | {one['licence']} | {one['num_sequences']:,} "
            f"| {one['num_response_tokens']:,} | {temperatures} |"
        )
    lines += [
        "",
        f"Runs of {check['run_words']} words that this data shares with the evaluation sets or with the "
        f"held-out agent prompts: {check['num_hits']} ({check['num_hashes']:,} runs looked for). "
        f"{100 * provenance['run']['recipe']['held_out_fraction']:g} % of the prompts were never trained on. "
        f"Of {provenance['num_fast_answers']:,} answers the states were computed with bfloat16 matrices.",
    ]
    return "\n".join(lines)


def _scores(result: Mapping[str, Any] | None) -> str:
    if result is None:
        return _NOT_MEASURED.format(name="drafter", again=_AGAIN)
    width = max(len(run["conditional"]) for run in result["runs"])
    lines = [
        f"Walked as served (`dlite bench drafter`, commit {result['commit'][:9]}): tokens a round (tau), and "
        "the conditional acceptance of each proposal.",
        "",
        "| set | context | T | texts | rounds | tau | "
        + " | ".join(f"a{j + 1}" for j in range(width))
        + " |",
        "|---" * (6 + width) + "|",
    ]
    for run in result["runs"]:
        context = "-" if run["context"] is None else f"{run['context']:,.0f}"
        cells = [
            run["set"],
            context,
            f"{run['temperature']:g}",
            str(run["num_texts"]),
            str(run["num_rounds"]),
        ]
        values = [run["value"], *run["conditional"]]
        lines.append("| " + " | ".join([*cells, *("-" if v is None else f"{v:.2f}" for v in values)]) + " |")
    return "\n".join(lines)


def _speed(result: Mapping[str, Any] | None) -> str:
    if result is None:
        return _NOT_MEASURED.format(name="speedup", again=_AGAIN)
    lines = [
        "Against plain decoding with the fastest kernel and threads on "
        f"{result['machine']['cores']} cores of {result['machine']['cpu']} "
        f"(`dlite bench speedup`, commit {result['commit'][:9]}), temperature 0.",
        "",
        "| prompts | speed-up | tau | break-even tau |",
        "|---|---|---|---|",
    ]
    for one in result["kinds"]:
        cells = (one["speedup"], one["tau"], one["break_even_tau"])
        values = " | ".join("-" if v is None else f"{v:.2f}" for v in cells)
        lines.append(f"| {one['kind']} | {values} |")
    return "\n".join(lines)


def _hashes(provenance: Mapping[str, Any]) -> str:
    lines = ["| what | sha256 |", "|---|---|"]
    files = provenance["files"]
    lines += [f"| `{name}` ({one['num_bytes']:,} bytes) | `{one['sha256']}` |" for name, one in files.items()]
    lines.append(f"| this drafter (fingerprint) | `{provenance['fingerprint']}` |")
    target = provenance["run"]["target"]
    lines += [f"| target: {name} | `{target[name]}` |" for name in ("fingerprint", "embedding_hash")]
    shards = [one["shards_sha256"] for one in provenance["run"]["data"]]
    lines += [f"| shards {number} | `{digest}` |" for number, digest in enumerate(shards, 1)]
    return "\n".join(lines)


def _plain(value: Any) -> str:
    return ", ".join(map(_plain, value)) or "-" if isinstance(value, list) else str(value)


def _row(values: Sequence[float | None]) -> str:
    return " ".join("-" if value is None else f"{value:.3f}" for value in values)
