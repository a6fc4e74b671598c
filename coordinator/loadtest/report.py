"""The report: one HTML page that needs no other file. Pure."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.loadtest.console import block
from coordinator.loadtest.figures import WORDS, Picture, name_of
from coordinator.loadtest.options import Shown

STYLE = """
:root { color-scheme: light }
body { font: 15px/1.5 system-ui, 'DejaVu Sans', sans-serif; color: #1f2933; background: #fff;
  margin: 2rem auto; max-width: 62rem; padding: 0 1rem }
h1 { font-size: 1.5rem; margin: 0 }
h2 { font-size: 1.05rem; margin: 0 0 .25rem }
.note, figcaption { color: #52606d }
.note { margin: .2rem 0 1.2rem }
figure { margin: 2.2rem 0 0 }
figcaption { font-size: .87rem; margin-bottom: .4rem }
.warning { background: #fff4d6; padding: .4rem .8rem; border-left: 4px solid #d97706; margin: .4rem 0 }
.cards { display: flex; flex-wrap: wrap; gap: .6rem; margin: 0 0 1.2rem; padding: 0 }
.cards li { list-style: none; border: 1px solid #d9dfe5; border-radius: 6px; padding: .4rem .75rem;
  min-width: 5.6rem }
.cards b { display: block; font-size: 1.15rem; font-variant-numeric: tabular-nums }
.cards span { color: #52606d; font-size: .78rem }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .86rem }
td, th { padding: .25rem .55rem; border-bottom: 1px solid #d9dfe5; text-align: right; white-space: nowrap }
td:first-child, th:first-child { text-align: left; padding-left: 0 }
img { width: 100%; height: auto; display: block }
pre { font: 12px/1.35 ui-monospace, 'DejaVu Sans Mono', monospace; overflow-x: auto }
details { margin-top: 1rem }
summary { cursor: pointer; font-weight: 600 }
"""
COLUMNS = (
    ("point", None),
    ("good", "completed"),
    ("failed", "failed"),
    ("tokens/s", "output_throughput"),
    ("TTFT p50, ms", "median_ttft_ms"),
    ("TPOT p50, ms", "median_tpot_ms"),
    ("E2EL p50, ms", "median_e2el_ms"),
    ("accept length", "spec_decode_acceptance_length"),
    ("speed-up", "speedup"),
)
# Figures that a page without them explains.
_MISSING = {
    "memory": "no drafter that says its shape, or no rounds were told",
    "classes": "all rounds are of one class",
    "sweep": "a single point",
}


def page(results: Sequence[Mapping[str, Any]], pictures: Sequence[Picture], shown: Shown) -> str:
    """The whole page.

    Args:
        results: points of one sweep, at least one.
    """
    first = results[0]
    about = f"{first['model_id']} · {first['dataset']} · {first['date']} · seed {first['seed']}"
    warnings = dict.fromkeys(warning for each in results for warning in each["warnings"])
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width, initial-scale=1'>",
        f"<title>Load test: {html.escape(str(first['model_id']))}</title><style>{STYLE}</style>",
        f"<h1>Load test</h1><p class=note>{html.escape(about)}</p>",
        *(f"<p class=warning>{html.escape(each)}</p>" for each in warnings),
        _cards(results),
        _table(results) if len(results) > 1 else "",
        *(_figure(each) for each in pictures),
        _left_out({each.name for each in pictures}),
        *(
            f"<details><summary>{html.escape(name_of(each))}: all numbers</summary>"
            f"<pre>{html.escape(block(each, shown))}</pre></details>"
            for each in results
        ),
        _data(results),
        "</html>\n",
    ]
    return "\n".join(parts)


def _cards(results: Sequence[Mapping[str, Any]]) -> str:
    """The few numbers that people look for first, of the best point by throughput."""
    best = max(results, key=lambda each: each["output_throughput"] or 0.0)
    cards = [
        ("tokens/s", _text(best["output_throughput"])),
        ("speed-up", _text(best.get("speedup", {}).get("output_throughput"))),
        ("accept length", _text(best["spec_decode_acceptance_length"])),
        ("accept rate, %", _text(best["spec_decode_acceptance_rate"])),
        ("TTFT p50, ms", _text(best["median_ttft_ms"])),
        ("TPOT p50, ms", _text(best["median_tpot_ms"])),
        ("failed", str(sum(each["failed"] for each in results))),
    ]
    items = "".join(f"<li><b>{value}</b><span>{title}</span></li>" for title, value in cards if value != "-")
    where = "" if len(results) == 1 else f"<p class=note>Best point: {html.escape(name_of(best))}</p>"
    return f"<ul class=cards>{items}</ul>{where}"


def _table(results: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{title}</th>" for title, _ in COLUMNS)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_cell(each, key))}</td>" for _, key in COLUMNS) + "</tr>"
        for each in results
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<div class=scroll>{table}</div>"


def _cell(result: Mapping[str, Any], key: str | None) -> str:
    if key is None:
        return name_of(result)
    value = result.get("speedup", {}).get("output_throughput") if key == "speedup" else result[key]
    return _text(value)


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _figure(picture: Picture) -> str:
    data = base64.b64encode(picture.png).decode()
    title = html.escape(picture.title)
    return (
        f"<figure id='{picture.name}'><h2>{title}</h2><figcaption>{html.escape(picture.caption)}</figcaption>"
        f"<img alt='{title}' src='data:image/png;base64,{data}'></figure>"
    )


def _left_out(names: set[str]) -> str:
    """Says which figures are not there, so that nobody looks for them."""
    missing = [
        f"{html.escape(words.title)} ({_MISSING.get(name, 'no data')})"
        for name, words in WORDS.items()
        if name not in names
    ]
    return f"<p class=note>Not drawn: {'; '.join(missing)}.</p>" if missing else ""


def _data(results: Sequence[Mapping[str, Any]]) -> str:
    """The results for programs, without each single request."""
    kept = [{key: value for key, value in each.items() if key not in DETAILS} for each in results]
    # Inside a script element only this sequence would end it.
    text = json.dumps(kept).replace("</", "<\\/")
    return f"<script type='application/json' id='results'>{text}</script>"


# Of each single request: too much for a page.
DETAILS = frozenset(
    {
        *("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times"),
        *("generated_texts", "errors", "places", "statuses", "tpots", "acceptance_rates"),
        *("mean_num_draft_tokens", "mean_verify_block_sizes", "baseline_details"),
    }
)
