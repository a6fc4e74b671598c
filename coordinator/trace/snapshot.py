"""What a coordinator did between two looks, from the differences of its sums. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protos import coordinator_pb2 as pb

PARTS = ("draft", "verify", "draft_network", "target_network", "queue", "scheduling")
_ALONE = ("run", "undrafted")


@dataclass(frozen=True)
class SourceShare:
    """Rounds of one source. Rates are None without data."""

    source: str
    num_rounds: int
    accept_length: float | None
    mean_draft_tokens: float | None
    mean_block_size: float | None


@dataclass(frozen=True)
class LinkState:
    """One link; seconds of the wire alone, None where nothing was measured.

    Args:
        name: target or draft, with the address where there are several.
    """

    name: str
    is_connected: bool
    rtt_seconds: float | None
    rtt_p99_seconds: float | None
    jitter_seconds: float | None
    num_lost: int


@dataclass(frozen=True)
class Snapshot:
    """Rates and shares of the last `seconds`; None where there is nothing to tell.

    Args:
        accept_length: tokens of a round with proposals; acceptance_rate: accepted of verified.
        mean_draft_tokens: k; mean_block_size: v, both of rounds with proposals.
        cohorts: share of planned rounds by P; round_ms: of a round with proposals, by part.
        kv_held, kv_cached: shares of the target's pages; prefix_hits: cached share of prompt tokens of
            texts that ended.
    """

    model: str
    seconds: float
    num_running: int
    num_waiting: int
    tokens_per_second: float
    texts_per_second: float
    num_failed: int
    accept_length: float | None
    acceptance_rate: float | None
    mean_draft_tokens: float | None
    mean_block_size: float | None
    sources: tuple[SourceShare, ...]
    cohorts: dict[int, float]
    round_ms: dict[str, float]
    links: tuple[LinkState, ...]
    kv_held: float | None
    kv_cached: float | None
    prefix_hits: float | None


def snapshot(before: pb.GetStatsResponse, after: pb.GetStatsResponse) -> Snapshot:
    """Between two looks at one coordinator."""
    seconds = max(after.seconds - before.seconds, 1e-9)
    rounds = _differences(before, after)
    drafts = [each for each in rounds if each.source not in _ALONE]
    whole = _sum(drafts)
    num_prompt = after.prompt_tokens - before.prompt_tokens
    kv = after.kv if after.HasField("kv") and after.kv.num_pages else None
    return Snapshot(
        model=after.model,
        seconds=seconds,
        num_running=after.num_running,
        num_waiting=after.num_waiting,
        tokens_per_second=(after.num_tokens - before.num_tokens) / seconds,
        texts_per_second=(after.num_texts - before.num_texts) / seconds,
        num_failed=after.num_failed - before.num_failed,
        accept_length=_per(whole.num_tokens, whole.num_rounds),
        acceptance_rate=_per(whole.num_accepted, whole.num_verified),
        mean_draft_tokens=_per(whole.num_drafted, whole.num_rounds),
        mean_block_size=_per(whole.num_verified + whole.num_rounds, whole.num_rounds),
        sources=tuple(_share(each) for each in rounds if each.num_rounds),
        cohorts=_cohorts(whole),
        round_ms=_round_ms(whole),
        links=tuple(_link(each, after.links) for each in after.links),
        kv_held=kv.pages_held / kv.num_pages if kv else None,
        kv_cached=kv.pages_cached / kv.num_pages if kv else None,
        prefix_hits=_per(after.cached_tokens - before.cached_tokens, num_prompt),
    )


def _differences(before: pb.GetStatsResponse, after: pb.GetStatsResponse) -> list[pb.RoundSums]:
    known = {each.source: each for each in before.rounds}
    return [_less(each, known.get(each.source, pb.RoundSums())) for each in after.rounds]


_COUNTS = ("num_rounds", "num_tokens", "num_drafted", "num_verified", "num_accepted")
_SECONDS = tuple(f"{part}_seconds" for part in PARTS)


def _less(after: pb.RoundSums, before: pb.RoundSums) -> pb.RoundSums:
    values = {name: getattr(after, name) - getattr(before, name) for name in (*_COUNTS, *_SECONDS)}
    old = [*before.num_rounds_by_cohorts, *[0] * len(after.num_rounds_by_cohorts)]
    cohorts = [new - gone for new, gone in zip(after.num_rounds_by_cohorts, old, strict=False)]
    return pb.RoundSums(source=after.source, num_rounds_by_cohorts=cohorts, **values)


def _sum(rounds: list[pb.RoundSums]) -> pb.RoundSums:
    values = {name: sum(getattr(each, name) for each in rounds) for name in (*_COUNTS, *_SECONDS)}
    most = max((len(each.num_rounds_by_cohorts) for each in rounds), default=0)
    cohorts = [
        sum(each.num_rounds_by_cohorts[index] for each in rounds if index < len(each.num_rounds_by_cohorts))
        for index in range(most)
    ]
    return pb.RoundSums(num_rounds_by_cohorts=cohorts, **values)


def _share(sums: pb.RoundSums) -> SourceShare:
    if sums.source in _ALONE:
        return SourceShare(sums.source, sums.num_rounds, None, None, None)
    return SourceShare(
        sums.source,
        sums.num_rounds,
        _per(sums.num_tokens, sums.num_rounds),
        _per(sums.num_drafted, sums.num_rounds),
        _per(sums.num_verified + sums.num_rounds, sums.num_rounds),
    )


def _cohorts(sums: pb.RoundSums) -> dict[int, float]:
    total = sum(sums.num_rounds_by_cohorts)
    return {
        index + 1: count / total for index, count in enumerate(sums.num_rounds_by_cohorts) if total and count
    }


def _round_ms(sums: pb.RoundSums) -> dict[str, float]:
    if not sums.num_rounds:
        return {}
    return {part: 1e3 * getattr(sums, f"{part}_seconds") / sums.num_rounds for part in PARTS}


def _link(stats: pb.LinkStats, links: Sequence[pb.LinkStats]) -> LinkState:
    is_only = sum(each.name == stats.name for each in links) == 1

    def optional(name: str) -> float | None:
        return getattr(stats, name) if stats.HasField(name) else None

    return LinkState(
        stats.name if is_only else f"{stats.name} {stats.address}",
        stats.is_connected,
        optional("rtt_seconds"),
        optional("rtt_p99_seconds"),
        optional("jitter_seconds"),
        stats.num_lost,
    )


def _per(amount: float, units: float) -> float | None:
    return amount / units if units else None
