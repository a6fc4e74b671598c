"""The picture of `dlite top`: from a snapshot to what rich draws. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from coordinator.trace.snapshot import PARTS, LinkState, Snapshot

# Below this width panels stand under one another.
NARROW = 90
COLOURS = ("blue", "yellow", "cyan", "magenta", "red", "white")
NAMES = {
    "draft": "draft T_D",
    "verify": "verify T_V",
    "draft_network": "net, drafter",
    "target_network": "net, target",
    "queue": "queue",
    "scheduling": "sched. T_S",
}
_BLOCKS = "▁▂▃▄▅▆▇█"
_DOWN = "down"


def screen(found: Snapshot, history: Sequence[Snapshot], width: int) -> RenderableType:
    """The whole picture.

    Args:
        history: snapshots before and with this one, oldest first.
        width: of the terminal, in characters.
    """
    left = [_load(found, history, width), _speculation(found, width)]
    right = [_time(found, width if width < NARROW else width // 2), _links(found.links)]
    if width < NARROW:
        return Group(*left, *right)
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(ratio=1)
    grid.add_column(ratio=1)
    grid.add_row(Group(*left), Group(*right))
    return grid


def waiting_screen(address: str, reason: str) -> RenderableType:
    """While there is no answer."""
    return Panel(Text(f"no coordinator at {address}: {reason}"), title="dlite top", border_style="red")


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values, each a block between 0 and the largest of them."""
    shown = list(values)[-max(width, 1) :]
    most = max(shown, default=0.0)
    if most <= 0:
        return _BLOCKS[0] * len(shown)
    return "".join(_BLOCKS[min(int(value / most * len(_BLOCKS)), len(_BLOCKS) - 1)] for value in shown)


def bar(shares: Sequence[float], width: int) -> list[int]:
    """Characters for each share of a bar, `width` in all; what is not 0 has at least none."""
    edges = [0]
    total = sum(shares) or 1.0
    running = 0.0
    for share in shares:
        running += share
        edges.append(round(width * running / total))
    return [end - begin for begin, end in pairwise(edges)]


def _load(found: Snapshot, history: Sequence[Snapshot], width: int) -> Panel:
    room = max(min(width if width < NARROW else width // 2, 100) - 34, 8)
    rows = _rows()
    waits = f", [yellow]{found.num_waiting} waiting[/]" if found.num_waiting else ""
    rows.add_row("requests", f"[bold]{found.num_running}[/] running{waits}")
    spark = sparkline([each.tokens_per_second for each in history], room)
    rows.add_row("tokens/s", f"[bold]{found.tokens_per_second:.1f}[/]  [green]{spark}[/]")
    failed = f", [red]{found.num_failed} failed[/]" if found.num_failed else ""
    rows.add_row("texts/s", f"{found.texts_per_second:.2f}{failed}")
    rows.add_row("prefix hits", _percent(found.prefix_hits))
    cached = "" if found.kv_cached is None else f", {_percent(found.kv_cached)} kept for prefixes"
    rows.add_row("KV pages", f"{_percent(found.kv_held)} held{cached}" if found.kv_held is not None else "-")
    return Panel(rows, title=f"dlite top · {found.model}", title_align="left", border_style="blue")


def _speculation(found: Snapshot, width: int) -> Panel:
    rows = _rows()
    rows.add_row("accept length", f"[bold]{_number(found.accept_length)}[/] tokens a round")
    rows.add_row("acceptance", _percent(found.acceptance_rate))
    rows.add_row(
        "k, v", f"{_number(found.mean_draft_tokens)} drafted, {_number(found.mean_block_size)} verified"
    )
    cohorts = "  ".join(f"P={number} {_percent(share)}" for number, share in found.cohorts.items())
    rows.add_row("cohorts", cohorts or "-")
    total = sum(each.num_rounds for each in found.sources)
    for each in found.sources:
        length = "" if each.accept_length is None else f", {each.accept_length:.2f} tokens"
        rows.add_row(each.source, f"{_percent(each.num_rounds / total)} of rounds{length}")
    return Panel(rows, title="speculation", title_align="left", border_style="blue")


def _time(found: Snapshot, width: int) -> Panel:
    parts = [found.round_ms.get(part, 0.0) for part in PARTS]
    total = sum(parts)
    if not total:
        return Panel(Text("no rounds with proposals"), title="time of a round", title_align="left")
    line = Text()
    for count, colour in zip(bar(parts, max(width - 6, 8)), COLOURS, strict=True):
        line.append("█" * count, style=colour)
    rows = _rows()
    for part, colour in zip(PARTS, COLOURS, strict=True):
        value = found.round_ms[part]
        rows.add_row(f"[{colour}]█[/] {NAMES[part]}", f"{value:8.2f} ms {100 * value / total:5.1f} %")
    title = f"time of a round with proposals: {total:.2f} ms"
    return Panel(Group(line, rows), title=title, title_align="left", border_style="blue")


def _links(links: Sequence[LinkState]) -> Panel:
    rows = _rows()
    for each in links:
        state = "[green]up[/]" if each.is_connected else f"[red]{_DOWN}[/]"
        lost = f", lost {each.num_lost} x" if each.num_lost else ""
        rtt = f"rtt {_ms(each.rtt_seconds)} (p99 {_ms(each.rtt_p99_seconds)})"
        rows.add_row(each.name, f"{state}  {rtt}, jitter {_ms(each.jitter_seconds)}{lost}")
    return Panel(rows, title="links", title_align="left", border_style="blue")


def _rows() -> Table:
    rows = Table.grid(padding=(0, 2))
    rows.add_column(no_wrap=True)
    rows.add_column(overflow="fold")
    return rows


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.2f} ms"
