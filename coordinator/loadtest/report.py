"""The report: one HTML page that needs no other file. Pure."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.loadtest.console import block
from coordinator.loadtest.figures import Picture, name_of
from coordinator.loadtest.options import Shown

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; margin: 2rem auto; max-width: 60rem }
body { padding: 0 1rem }
h1 { font-size: 1.5rem; margin-bottom: 0 }
h2 { font-size: 1.05rem; margin: 2rem 0 .5rem }
.note { color: #52606d }
.warning { background: #fff4d6; padding: .4rem .8rem; border-left: 4px solid #d97706 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
td, th { padding: .25rem .8rem; border-bottom: 1px solid #d9dfe5; text-align: right }
td:first-child, th:first-child { text-align: left; padding-left: 0 }
img { width: 100%; height: auto }
pre { font-size: 12px; line-height: 1.35; overflow-x: auto }
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
        _table(results),
        *(_figure(each) for each in pictures),
        *(
            f"<h2>{html.escape(name_of(each))}</h2><pre>{html.escape(block(each, shown))}</pre>"
            for each in results
        ),
        "</html>\n",
    ]
    return "\n".join(parts)


def _table(results: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{title}</th>" for title, _ in COLUMNS)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_cell(each, key))}</td>" for _, key in COLUMNS) + "</tr>"
        for each in results
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cell(result: Mapping[str, Any], key: str | None) -> str:
    if key is None:
        return name_of(result)
    value = result.get("speedup", {}).get("output_throughput") if key == "speedup" else result[key]
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _figure(picture: Picture) -> str:
    data = base64.b64encode(picture.png).decode()
    title = html.escape(picture.title)
    return f"<h2>{title}</h2><img alt='{title}' src='data:image/png;base64,{data}'>"
