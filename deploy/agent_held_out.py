"""Agent prompts for measuring only. No tool, name, file, log form or phrase of them is in the prompts that
`dlite data generate` makes up: other words and other templates, not only another seed. A test looks for
shared words and for shared runs of 13 words, and `dlite data check` looks for them in shards.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from deploy.agent_prompts import MadePrompt
from deploy.agent_traces import agent_traces
from deploy.trace_words import HELD_OUT

SEED = 1_000_003
KINDS = ("json_tool_call", "code_edit", "log_reading")
_TOOLS: dict[str, dict[str, str]] = {
    "reserve_bed": {"ward": "string", "nights": "integer"},
    "dispense": {"substance": "string", "milligrams": "number", "route": "string"},
    "schedule_scan": {"region": "string", "weekday": "string"},
    "label_specimen": {"barcode": "string", "fluid": "string", "frozen": "boolean"},
    "page_doctor": {"specialty": "string", "reason": "string"},
    "order_meal": {"diet": "string", "portions": "integer"},
}
_WARDS = ("maternity", "neurology", "oncology", "paediatrics", "cardiology", "burns")
_SUBSTANCES = ("ibuprofen", "heparin", "insulin", "amoxicillin", "morphine", "saline")
_REGIONS = ("left knee", "lower spine", "right wrist", "skull", "chest")
_DAYS = ("Monday", "Tuesday", "Thursday", "Friday")
_STATIONS = ("ventilator", "fridge", "elevator", "boiler", "turnstile", "generator")
_STATES = ("nominal", "degraded", "faulted", "maintenance")
_READINGS = (
    "pressure {n} kPa",
    "temperature {n} C",
    "door cycle {n}",
    "load {n} percent",
    "supply voltage {n}",
)


def held_out_prompts(count: int, seed: int = SEED) -> list[MadePrompt]:
    """The first `count` prompts of a seed, kinds in turn; prompt i is a function of (seed, i)."""
    makers: tuple[Callable[[random.Random], str], ...] = (_tool_call, _code_edit, _log_reading)
    return [
        MadePrompt(KINDS[i % len(KINDS)], makers[i % len(makers)](random.Random(f"held out/{seed}/{i}")))
        for i in range(count)
    ]


def held_out_texts(count: int = 300) -> list[str]:
    """What must not be found in training data: prompts and the messages of short traces."""
    traces = agent_traces(count, SEED, HELD_OUT)
    return [
        *(made.prompt for made in held_out_prompts(count)),
        *("\n".join(content for _, content in trace.messages) for trace in traces),
    ]


def _tool_call(rng: random.Random) -> str:
    offered = rng.sample(sorted(_TOOLS), rng.choice((2, 3)))
    listed = "\n".join(f"- {name}{json.dumps(_TOOLS[name])}" for name in offered)
    wish = {
        "reserve_bed": f"keep a place in {rng.choice(_WARDS)} free for {rng.randint(2, 9)} nights",
        "dispense": f"{rng.randint(5, 400)} mg of {rng.choice(_SUBSTANCES)}, by mouth",
        "schedule_scan": f"an image of the {rng.choice(_REGIONS)} this {rng.choice(_DAYS)}",
        "label_specimen": f"tube {rng.randint(1000, 9999)} holds plasma and goes into the freezer",
        "page_doctor": f"somebody from {rng.choice(_WARDS)} has to come, a patient fell",
        "order_meal": f"{rng.randint(2, 30)} vegetarian lunches",
    }[offered[0]]
    ending = rng.choice(
        (
            'Respond with {"function": ..., "input": {...}} and no prose.',
            "Your whole reply is a single JSON document with `function` and `input`.",
        )
    )
    return f"Nurse: {wish}.\n\nAvailable functions:\n{listed}\n\n{ending}"


def _code_edit(rng: random.Random) -> str:
    ward, other = rng.sample(_WARDS, 2)
    size, new = rng.sample(range(11, 89), 2)
    station = rng.choice(_STATIONS)
    files = (
        (
            f"alarm delay of {new} seconds",
            f'[{station}]\nalarm_delay_seconds = {size}\nward = "{ward}"\n\n[{station}.limits]\n'
            f"low = {size // 2}\nhigh = {size * 2}\n",
        ),
        (
            f"the ward is {other} now",
            f"interface Bed {{\n  ward: '{ward}';\n}}\n\nexport function isFree(bed: Bed) {{\n"
            f"  return bed.ward === '{ward}' && bed.number < {new};\n}}\n",
        ),
        (
            f"count from {new} instead of {size}",
            f"fn next_ticket(last: Option<u32>) -> u32 {{\n    match last {{\n        Some(n) => n + 1,\n"
            f"        None => {size},\n    }}\n}}\n",
        ),
    )
    wish, text = rng.choice(files)
    opening = rng.choice(("Apply one edit", "One modification, please"))
    return f"{opening}: {wish}. Give back everything, edited.\n```\n{text}```"


def _log_reading(rng: random.Random) -> str:
    lines = []
    tick = rng.randint(100, 400)
    for _ in range(rng.randint(6, 11)):
        tick += rng.randint(1, 9)
        reading = rng.choice(_READINGS).format(n=rng.randint(3, 240))
        lines.append(f"t+{tick}|{rng.choice(_STATIONS)}|{rng.choice(_STATES)}|{reading}")
    ask = rng.choice(
        (
            "Copy out the faulted readings exactly.",
            f"Copy out whatever the {rng.choice(_STATIONS)} reported.",
            "Put the degraded stations into a JSON array of strings.",
            "Was anything under maintenance? Copy those readings.",
        )
    )
    return "Telemetry dump:\n" + "\n".join(lines) + f"\n\n{ask}"
