"""Hands a trace to a fresh tuner: what it would have chosen at each point. Pure.

A point is the start of a cohort (or, where rounds went alone, of a round). Before it the tuner has seen
every round that had ended by then, and nothing else.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from coordinator.trace.activity import Activity, Span
from coordinator.trace.reader import Trace
from coordinator.trace.record import RoundRecord, RoundSource
from coordinator.tuner.choose import evaluate
from coordinator.tuner.costs import CostPriors
from coordinator.tuner.cycle import Shape
from coordinator.tuner.explain import Explanation
from coordinator.tuner.survival import Verified
from coordinator.tuner.tuner import Decision, TunedRequest, Tuner, TunerSettings
from protos.errors import InvalidRequest

# What a point's measured rate looks at, at least: one cycle alone says little.
_LEAST_SECONDS = 0.25
_STEPS_REMEMBERED = 4096


@dataclass(frozen=True)
class Point:
    """One decision: what was done, and what this tuner would have done.

    Args:
        seconds: since the trace began.
        chosen: mean `v` of what was done; replayed: of this tuner.
        told: tokens per second that were predicted when it was chosen; 0: unknown.
        predicted_chosen, predicted_replayed: by this tuner, of either choice.
        measured: tokens per second from here on, for a quarter of a second at least.
    """

    seconds: float
    num_requests: int
    chosen: float
    replayed: float
    chosen_cohorts: int
    replayed_cohorts: int
    told: float
    predicted_chosen: float
    predicted_replayed: float
    measured: float


@dataclass(frozen=True)
class Replay:
    """All points, and what the tuner believes at the end.

    Args:
        target: whose rounds these are.
        num_others: rounds at other targets: these had tuners of their own.
    """

    points: tuple[Point, ...]
    explanation: Explanation | None
    target: str = ""
    num_others: int = 0


@dataclass(frozen=True)
class Group:
    """Rounds that went together."""

    records: tuple[RoundRecord, ...]

    @property
    def start(self) -> float:
        return min(record.ended - record.parts.wall for record in self.records)

    @property
    def end(self) -> float:
        return max(record.ended for record in self.records)


def replay(
    trace: Trace, settings: TunerSettings, priors: CostPriors, seed: int = 0, target: str = ""
) -> Replay:
    """Runs the rounds of one target through a new tuner; draws (of probes) come from the seed.

    Args:
        target: its address; empty for the one with the most rounds.

    Raises:
        InvalidRequest: the trace has no round of this target.
    """
    target, records = _rounds_of(trace, target)
    activity = Activity(records)
    tuner = Tuner(priors, random.Random(seed).random, settings)
    teacher = _Teacher(tuner, activity)
    waiting = deque(sorted(records, key=lambda record: record.ended))
    points = []
    for group in groups(records):
        while waiting and waiting[0].ended <= group.start:
            teacher.note(waiting.popleft())
        running = activity.running(group.start)
        if not running:
            continue
        requests = [teacher.tuned(span) for span in running]
        decision = tuner.decide(requests)
        while tuner.think():
            pass
        points.append(_point(group, activity, tuner, requests, decision))
        teacher.note_cycle(group, decision, len(running))
    while waiting:
        teacher.note(waiting.popleft())
    return Replay(tuple(points), tuner.explain(), target, len(trace.records) - len(records))


def _rounds_of(trace: Trace, target: str) -> tuple[str, tuple[RoundRecord, ...]]:
    counts = Counter(record.target for record in trace.records)
    if target and target not in counts:
        raise InvalidRequest(f"the trace has no round at {target!r}", field="target_address")
    target = target or max(counts, key=lambda name: counts[name], default="")
    return target, tuple(record for record in trace.records if record.target == target)


def groups(records: Sequence[RoundRecord]) -> tuple[Group, ...]:
    """By cohort, a round without one alone; in order of their start."""
    by_cohort: dict[int, list[RoundRecord]] = defaultdict(list)
    alone = []
    for record in records:
        if record.cohort:
            by_cohort[record.cohort].append(record)
        else:
            alone.append(Group((record,)))
    found = [*alone, *(Group(tuple(group)) for group in by_cohort.values())]
    return tuple(sorted(found, key=lambda group: group.start))


class _Teacher:
    """Tells a tuner of recorded rounds as the coordinator would have."""

    def __init__(self, tuner: Tuner, activity: Activity) -> None:
        self._tuner = tuner
        self._activity = activity
        self._steps: dict[tuple[str, int], None] = {}

    def tuned(self, span: Span) -> TunedRequest:
        """A request as the tuner sees it."""
        return TunedRequest(span.request_id, span.class_name, self._activity.most_draft_tokens, span.context)

    def note(self, record: RoundRecord) -> None:
        span = self._activity.span(record.request_id)
        name = record.class_name if record.is_speculative else span.class_name
        request = TunedRequest(record.request_id, name, self._activity.most_draft_tokens, record.context)
        if record.num_verified:
            verified = Verified(record.num_verified, record.num_accepted, record.is_cut)
            self._tuner.note_block(request, verified, record.plan.is_probe)
        self._tuner.survival.note_tokens(record.request_id, name, record.num_tokens)
        self._note_costs(record)
        if record is span.last:
            self._tuner.forget(record.request_id)

    def note_cycle(self, group: Group, decision: Decision, num_running: int) -> None:
        speculating = [record for record in group.records if record.num_verified]
        if not speculating or group.end <= group.start:
            return
        sizes = [record.block_size for record in speculating]
        shape = Shape(
            num_runs=max(num_running - len(speculating), 0),
            num_speculating=len(speculating),
            num_proposals=sum(sizes) - len(sizes),
            num_draft_tokens=max(record.num_drafted for record in speculating),
        )
        if len(speculating) == len(decision.block_sizes) and tuple(sizes) == decision.block_sizes:
            num_tokens = sum(record.num_tokens for record in group.records)
            self._tuner.note_cycle(decision, shape, num_tokens, group.end - group.start)

    def _note_costs(self, record: RoundRecord) -> None:
        costs, target, draft = self._tuner.costs, record.target_step, record.draft_step
        if target.rows and self._is_new("target", target.number):
            costs.verify.note(target.rows, target.seconds, target.context)
        elif not target.seconds and record.parts.verify:
            # Rounds of services that do not number their steps: as if each had been alone there.
            steps = 1 if record.is_speculative else max(record.num_tokens, 1)
            costs.verify.note(record.block_size, record.parts.verify / steps, record.context)
        if record.source is RoundSource.DRAFTER and record.num_drafted:
            if draft.rows and self._is_new("draft", draft.number):
                costs.draft.note(draft.rows, draft.seconds, record.num_drafted)
            elif not draft.seconds and record.parts.draft:
                costs.draft.note(1, record.parts.draft, record.num_drafted)
            costs.draft_link.note(record.parts.draft_network, 0)
        if record.num_verified:
            costs.target_link.note(record.parts.target_network, 0)

    def _is_new(self, service: str, number: int) -> bool:
        key = (service, number)
        if number and key in self._steps:
            return False
        self._steps[key] = None
        if len(self._steps) > _STEPS_REMEMBERED:
            del self._steps[next(iter(self._steps))]
        return True


def _point(
    group: Group, activity: Activity, tuner: Tuner, requests: Sequence[TunedRequest], decision: Decision
) -> Point:
    plan = decision.plan
    done = {record.request_id: record for record in group.records}
    most = activity.most_draft_tokens + 1
    sizes = [min(_size(done, each.request_id, activity, group.start), most) for each in requests]
    survivals = [
        tuner.survival.hoped_survival(each.request_id, each.class_name, each.most_draft_tokens)
        for each in requests
    ]
    first = group.records[0].plan
    num_cohorts = max(first.num_cohorts, 1)
    return Point(
        seconds=group.start - activity.begin,
        num_requests=len(requests),
        chosen=sum(sizes) / len(sizes),
        replayed=sum(plan.block_sizes) / len(plan.block_sizes),
        chosen_cohorts=num_cohorts,
        replayed_cohorts=plan.num_cohorts,
        told=first.tokens_per_second,
        predicted_chosen=evaluate(sizes, num_cohorts, survivals, decision.costs),
        predicted_replayed=plan.tokens_per_second,
        measured=activity.rate(group.start, max(group.end, group.start + _LEAST_SECONDS)),
    )


def _size(done: Mapping[str, RoundRecord], request_id: str, activity: Activity, instant: float) -> int:
    """`v` of a request in this group, or of the round that it was in meanwhile."""
    return done[request_id].block_size if request_id in done else activity.size_at(request_id, instant)


def thinned(points: Sequence[Point], most: int) -> Iterator[Point]:
    """At most so many of them, evenly."""
    step = max(-(-len(points) // most), 1)
    yield from points[::step]
