"""Wrong builds that the suite must catch: each replaces one function and names its check.

A check is a test function that is called in process, with the build's arguments, while the wrong
function is in place; it must raise AssertionError.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from coordinator import drafting
from coordinator.session import Session
from coordinator.toolstream import ToolStream, ToolUpdate
from coordinator.tuner import choose as tuner_choose
from coordinator.tuner.cycle import CycleCosts
from coordinator.tuner.search import Search
from coordinator.tuner.survival import Verified
from draft_service import drafter
from draft_service import sampling as draft_sampling
from protos import noise
from target_service import commands as c
from target_service import fencing, processors, rejection, sampling, settling, verification
from target_service.fencing import Action
from target_service.grammar import GrammarRows, Matcher
from target_service.verification import Decision, Limits

Apply = Callable[[pytest.MonkeyPatch], None]
_OURS = ("protos", "target_service", "draft_service", "coordinator", "deploy", "tests")


@dataclass(frozen=True)
class WrongBuild:
    """A mistake that has been made before.

    Args:
        says: what is wrong.
        apply: puts the mistake in place.
        check: the test that catches it.
        arguments: keyword arguments of a parametrised test function.
    """

    says: str
    apply: Apply
    check: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


def everywhere(original: Any, wrong: Any) -> Apply:
    """Replaces a function under every name that the project's modules have imported it by."""

    def apply(monkeypatch: pytest.MonkeyPatch) -> None:
        for module_name, module in list(sys.modules.items()):
            if module_name.split(".")[0] not in _OURS or module_name == __name__:
                continue
            for name, value in list(vars(module).items()):
                if value is original:
                    monkeypatch.setattr(module, name, wrong)

    return apply


def in_module(module: Any, name: str, wrong: Any) -> Apply:
    """Replaces a name in one module only."""
    return lambda monkeypatch: monkeypatch.setattr(module, name, wrong)


# ---- noise ---------------------------------------------------------------------------------------


def _exponential_of_rounded_u(h: torch.Tensor) -> torch.Tensor:
    return -torch.log1p(-(h.to(torch.float32).add(0.5).mul(2.0**-32)))


def _minus_log_of_rounded_u(h: torch.Tensor) -> torch.Tensor:
    return -torch.log(h.to(torch.float32).add(0.5).mul(2.0**-32))


# ---- law -----------------------------------------------------------------------------------------


def _argmax(log_law: torch.Tensor, _states: object, _token_ids: torch.Tensor) -> torch.Tensor:
    return log_law.argmax(dim=-1)


def _hashes_columns(log_law: torch.Tensor, states: Any, token_ids: torch.Tensor) -> torch.Tensor:
    return noise.coupled_choice(log_law, states, torch.arange(len(token_ids)))


def _other_domain(key: bytes, _domain: noise.Domain, position: int) -> tuple[int, int]:
    return noise.row_state(key, noise.Domain.DRAFT, position)


def _second_draw_after_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.test_law import P

    generator = torch.Generator().manual_seed(0)
    right = verification.decide

    def wrong(choices: Sequence[int], proposals: Sequence[int], limits: Limits) -> Decision:
        decision = right(choices, proposals, limits)
        if decision.num_accepted == len(proposals):
            return decision
        again = int(torch.multinomial(P, 1, generator=generator))
        return Decision((*decision.tokens[:-1], again), decision.num_accepted, decision.finish_reason)

    everywhere(right, wrong)(monkeypatch)


# ---- verification --------------------------------------------------------------------------------


def _number_of_matches(choices: Sequence[int], proposals: Sequence[int]) -> int:
    return sum(a == b for a, b in zip(choices, proposals, strict=False))


def _decide_without(what: str) -> Callable[[Sequence[int], Sequence[int], Limits], Decision]:
    """`decide` with one thing wrong."""

    def wrong(choices: Sequence[int], proposals: Sequence[int], limits: Limits) -> Decision:
        num_accepted = verification.accepted_prefix(choices, proposals)
        tokens = tuple(choices[: num_accepted + 1])
        if what == "bonus" and num_accepted == len(proposals) > 0:
            tokens = tokens[:-1]
        if what == "stop before cap" and len(tokens) >= limits.remaining:
            return Decision(tokens[: limits.remaining], num_accepted, c.FinishReason.LENGTH)
        stops = tokens[-1:] if what == "stop inside" else tokens
        if any(token in limits.stop_ids for token in stops):
            end = next(n for n, token in enumerate(tokens, 1) if token in limits.stop_ids)
            return Decision(tokens[:end], min(num_accepted, end), c.FinishReason.STOP)
        return Decision(tokens, num_accepted, None)

    return wrong


# ---- settling ------------------------------------------------------------------------------------


def _pivot_of_the_block_end(sequence: Any, outcome: Any, features: torch.Tensor, now: float) -> list[c.Event]:
    return _advance(sequence, outcome, features[-1:].expand_as(features), now)


def _kept_rejected_rows(choices: Sequence[int], proposals: Sequence[int], _limits: Limits) -> Decision:
    """Commits the choices of rejected rows too: each request advances by the whole block."""
    num_accepted = verification.accepted_prefix(choices, proposals)
    return Decision((*proposals[:num_accepted], *choices[num_accepted:]), len(proposals), None)


_advance = settling.advance

# ---- protocol ------------------------------------------------------------------------------------


def _fencing_that_takes(*actions: Action) -> Callable[..., Action]:
    """Fencing that executes what it should have answered otherwise."""

    def wrong(command: c.Command, sequence: Any, last_closed_epoch: int) -> Action:
        action = _check(command, sequence, last_closed_epoch)
        if action not in actions:
            return action
        return Action.OPEN if isinstance(command, c.Open) else Action.EXECUTE

    return wrong


_check = fencing.check


def _session_takes_any_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Session.commit

    def wrong(self: Session, verdict: Any) -> Any:
        verdict.epoch = self.epoch
        return right(self, verdict)

    monkeypatch.setattr(Session, "commit", wrong)


# ---- rejection -----------------------------------------------------------------------------------


def _first_law_for_every_slot(items: Any, draws: Any) -> Any:
    """q of the backbone alone: not given the proposal before."""
    results = _collect(items, draws)
    return [replace(result, laws=result.laws[:1] * len(result.laws)) for result in results]


def _recorded_at_another_temperature(log_law: Any, max_entries: Any, token_ids: Any) -> Any:
    kept, _ = _truncated(log_law, max_entries, token_ids)
    _, sharper = _truncated(torch.log_softmax(2 * log_law, dim=-1), max_entries, token_ids)
    return kept, sharper


def _accepted_up_to_equality(p: torch.Tensor, q: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    return u <= (p / q).clamp(max=1.0)


def _unguarded_residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    rest = (p - q).clamp(min=0.0)
    return rest / rest.sum(dim=-1, keepdim=True)


def _unfiltered_drafts(p: torch.Tensor, drafts: Any, places: Any) -> torch.Tensor:
    """The filters shape the bonus token only."""
    from tests.test_rejection import FAR_P

    return _verify_drafts(FAR_P.expand_as(p), drafts, places)


def _drafts_noise(key: bytes, _domain: noise.Domain, position: int) -> tuple[int, int]:
    return noise.row_state(key, noise.Domain.DRAFT, position)


def _verified_by_confidence(proposal: Any, num_verified: int | None) -> Any:
    """Verifies proposals only as far as the drafter is confident of them."""
    confidences = [
        law.probabilities[list(law.token_ids).index(token)]
        for token, law in zip(proposal.tokens, proposal.law, strict=True)
    ]
    confident = next((i for i, q in enumerate(confidences) if q < 0.2), len(confidences))
    return _drafted(proposal, min(confident, num_verified or 0))


_drafted = drafting.drafted
_collect, _truncated, _verify_drafts = drafter.collect, draft_sampling.truncated, rejection.verify_drafts

# ---- processors ----------------------------------------------------------------------------------


def _blocks_seen_as(what: str) -> Apply:
    """Processors that do not follow the proposed prefix."""

    def wrong(logits: torch.Tensor, blocks: Any) -> torch.Tensor:
        processed = logits.float().clone() if blocks else logits
        for block in blocks:
            for row in range(block.num_rows):
                seen = block.proposals[:row][-1:] if what == "last token" else ()
                lone = replace(block, first_row=0, generated=[*block.generated, *seen], proposals=())
                found = _process(logits[block.first_row + row][None], [lone])
                processed[block.first_row + row] = found[0]
        return processed

    return everywhere(processors.process, wrong)


def _one_mask_for_all_rows(self: Matcher, proposals: Sequence[int]) -> GrammarRows:
    rows = _grammar_rows(self, [])
    count = 1 + len(proposals)
    return GrammarRows(rows.allowed.expand(count, -1), rows.is_over * count)


def _walked_and_left_there(self: Matcher, proposals: Sequence[int]) -> GrammarRows:
    rows = _grammar_rows(self, proposals)
    for row, token in enumerate(proposals):
        if not rows.allowed[row][token] or rows.is_over[row]:
            break
        self.advance([token])
    return rows


_grammar_rows = Matcher.rows


def _one_call_a_piece(self: ToolStream, text: str) -> ToolUpdate:
    update = _feed(self, text)
    return ToolUpdate(update.text, update.calls[:1])


_feed = ToolStream.feed


def _no_processors(logits: torch.Tensor, _blocks: Any) -> torch.Tensor:
    return logits


_process = processors.process

# ---- tuner ---------------------------------------------------------------------------------------


def _first_fall(
    survivals: Sequence[Sequence[float]],
    costs: CycleCosts,
    max_cohorts: int = tuner_choose.MAX_COHORTS,
) -> tuner_choose.Choice:
    table = tuner_choose.Table(survivals, costs, max_cohorts)
    best = table.run()
    for longest in range(1, table.longest + 1):
        found = table.best_with(longest)
        if found.tokens_per_second < best.tokens_per_second:
            break
        best = found
    return best


def _misses_where_nothing_was_verified(self: Verified) -> tuple[bool, ...]:
    return tuple(index < self.num_accepted for index in range(5))


def _ratchet(monkeypatch: pytest.MonkeyPatch) -> None:
    fewest = [1000]
    init, advance = Search.__init__, Search.advance

    def wrong_init(self: Search, survivals: Sequence[Sequence[float]], *others: Any) -> None:
        init(self, [survival[: fewest[0]] for survival in survivals], *others)

    def wrong_advance(self: Search, num_sums: int) -> None:
        advance(self, num_sums)
        if self.is_done:
            fewest[0] = min(fewest[0], self.best.num_draft_tokens)

    monkeypatch.setattr(Search, "__init__", wrong_init)
    monkeypatch.setattr(Search, "advance", wrong_advance)


_EDGES = "tests/test_noise.py::test_edge_values_give_finite_positive_variates"
_LAW = "tests/test_law.py::test_argmax_drafter_is_unbiased"
_VERIFICATION = "tests/test_verification.py::"
_REJECTION = "tests/test_rejection.py::"
_PROCESSORS = "tests/test_processors.py::"
_GRAMMAR = "tests/test_grammar.py::"

WRONG_BUILDS: dict[str, WrongBuild] = {
    "u-rounded-to-one": WrongBuild(
        "u is rounded to 1 in float32, so E is infinite for h >= 2^32 - 128",
        in_module(noise, "exponential", _exponential_of_rounded_u),
        _EDGES,
    ),
    "log-of-rounded-u": WrongBuild(
        "E = -log u with u rounded to 1 is zero, and log E is -inf: a token of any law wins",
        in_module(noise, "exponential", _minus_log_of_rounded_u),
        _EDGES,
    ),
    "second-draw-after-a-miss": WrongBuild(
        "on a miss a second token is drawn instead of the one the proposal was compared with",
        _second_draw_after_a_miss,
        _LAW,
    ),
    "argmax-of-the-filtered-law": WrongBuild(
        "the law is filtered, and then its most probable token is taken",
        in_module(sampling, "coupled_choice", _argmax),
        _LAW,
    ),
    "drafter-with-other-noise": WrongBuild(
        "the drafter draws from another domain than the target",
        in_module(draft_sampling, "row_state", _other_domain),
        "tests/test_law.py::test_equal_laws_accept_every_proposal",
    ),
    "noise-by-draft-id": WrongBuild(
        "with a reduced vocabulary the drafter hashes its own ids instead of the target's",
        in_module(draft_sampling, "coupled_choice", _hashes_columns),
        "tests/test_reduced_vocabulary.py::test_with_equal_laws_every_mapped_proposal_is_accepted",
    ),
    "argmax-declared-as-a-draw": WrongBuild(
        "the drafter takes its most probable token and declares its whole law",
        in_module(draft_sampling, "coupled_choice", _argmax),
        _REJECTION + "test_the_declared_law_is_the_drawn_one",
    ),
    "redraw-from-p": WrongBuild(
        "after a miss a token is drawn from p instead of the residual",
        in_module(rejection, "residual_law", lambda p, _q: p),
        _REJECTION + "test_near_laws",
    ),
    "law-recorded-at-another-temperature": WrongBuild(
        "the law that is sent is not the one that was drawn from",
        in_module(draft_sampling, "truncated", _recorded_at_another_temperature),
        _REJECTION + "test_near_laws",
    ),
    "filters-on-the-bonus-only": WrongBuild(
        "verified and redrawn tokens ignore top-k",
        in_module(sampling, "verify_drafts", _unfiltered_drafts),
        _REJECTION + "test_far_laws_with_top_k",
    ),
    "law-of-the-first-slot": WrongBuild(
        "the law of a slot is not given the proposal before it",
        everywhere(drafter.collect, _first_law_for_every_slot),
        _REJECTION + "test_drafts_are_conditional_on_the_proposal_before",
    ),
    "accepted-up-to-equality": WrongBuild(
        "u <= p/q accepts tokens of probability 0",
        everywhere(rejection.is_accepted, _accepted_up_to_equality),
        _REJECTION + "test_acceptance_is_strict",
    ),
    "residual-without-fallback": WrongBuild(
        "a residual without mass is divided by zero",
        everywhere(rejection.residual_law, _unguarded_residual),
        _REJECTION + "test_equal_laws_leave_p_and_no_nan",
    ),
    "residual-from-the-drafts-noise": WrongBuild(
        "the residual is drawn with the noise that drew the proposal",
        in_module(rejection, "row_state", _drafts_noise),
        _REJECTION + "test_far_laws",
    ),
    "v-by-confidence-in-rejection": WrongBuild(
        "v depends on the probabilities of the proposals",
        everywhere(drafting.drafted, _verified_by_confidence),
        "tests/test_conformance_rejection.py::test_v_does_not_depend_on_what_was_proposed",
    ),
    "penalties-outside-the-block": WrongBuild(
        "penalties do not count the proposals of the block",
        _blocks_seen_as("nothing"),
        _PROCESSORS + "test_frequency_penalty_counts_inside_the_block",
    ),
    "penalties-of-the-last-token": WrongBuild(
        "only the last token of a block enters the counts",
        _blocks_seen_as("last token"),
        _PROCESSORS + "test_frequency_penalty_counts_inside_the_block",
    ),
    "processors-skipped-in-verification": WrongBuild(
        "verification decides from the raw logits",
        everywhere(processors.process, _no_processors),
        _PROCESSORS + "test_min_tokens_counts_tokens",
    ),
    "one-grammar-mask-for-all-rows": WrongBuild(
        "rows of a block are masked by the grammar's state before the block",
        lambda monkeypatch: monkeypatch.setattr(Matcher, "rows", _one_mask_for_all_rows),
        _GRAMMAR + "test_illegal_drafts_change_nothing",
    ),
    "grammar-advanced-by-proposals": WrongBuild(
        "the automaton is not rolled back to the committed tokens",
        lambda monkeypatch: monkeypatch.setattr(Matcher, "rows", _walked_and_left_there),
        _GRAMMAR + "test_every_row_is_that_of_a_fresh_matcher",
    ),
    "one-tool-call-a-delta": WrongBuild(
        "the parser steps once for each delta: of two calls in one piece the second is lost",
        lambda monkeypatch: monkeypatch.setattr(ToolStream, "feed", _one_call_a_piece),
        "tests/test_tools.py::test_every_chunking_gives_the_same_calls",
    ),
    "acceptance-is-a-sum": WrongBuild(
        "matches after the first miss count as accepted",
        everywhere(verification.accepted_prefix, _number_of_matches),
        _VERIFICATION + "test_acceptance_is_a_prefix_not_a_sum",
    ),
    "cap-before-stop": WrongBuild(
        "the limit is tested before the stop id",
        everywhere(verification.decide, _decide_without("stop before cap")),
        _VERIFICATION + "test_stop_is_tested_before_the_cap",
    ),
    "stop-at-block-end-only": WrongBuild(
        "only the last token of a block is tested for a stop id",
        everywhere(verification.decide, _decide_without("stop inside")),
        _VERIFICATION + "test_stop_at_every_slot",
        {"slot": 1},
    ),
    "no-bonus-token": WrongBuild(
        "a fully accepted block commits no token of the target",
        everywhere(verification.decide, _decide_without("bonus")),
        _VERIFICATION + "test_full_acceptance_has_a_bonus",
    ),
    "pivot-of-the-block-end": WrongBuild(
        "the pivot features are those of the last row, not of the last accepted one",
        everywhere(settling.advance, _pivot_of_the_block_end),
        "tests/test_target_parity.py::test_features_after_partial_acceptance_are_a_fresh_prefill",
        {"accepted": 1},
    ),
    "advance-by-the-block": WrongBuild(
        "a request advances by the whole block instead of by its own A + 1",
        everywhere(verification.decide, _kept_rejected_rows),
        "tests/test_target_parity.py::test_crop_then_extend_is_never_drafted",
    ),
    "stale-epoch-executed": WrongBuild(
        "a command of an epoch that is over is executed",
        everywhere(fencing.check, _fencing_that_takes(Action.STALE_EPOCH)),
        "tests/test_fencing.py::test_lower_epoch_is_stale",
        {"number": 1},
    ),
    "gap-executed": WrongBuild(
        "a round that does not start where the target is, is executed",
        everywhere(fencing.check, _fencing_that_takes(Action.OUT_OF_STEP)),
        "tests/test_fencing.py::test_gap_is_out_of_step_with_what_is_held",
        {"number": 1, "length": 2},
    ),
    "running-round-executed-again": WrongBuild(
        "a repeat of the running round is executed as well",
        everywhere(fencing.check, _fencing_that_takes(Action.IGNORE)),
        "tests/test_fencing.py::test_repeat_while_running_is_ignored",
    ),
    "verdict-of-another-epoch": WrongBuild(
        "the session takes a verdict of another epoch",
        _session_takes_any_epoch,
        "tests/test_session.py::test_other_rounds_and_epochs_are_ignored",
        {"fields": {"epoch": 6}},
    ),
    "stop-at-the-first-fall": WrongBuild(
        "the best v is sought until the rate falls for the first time",
        everywhere(tuner_choose.choose, _first_fall),
        "tests/test_tuner_choose.py::test_a_staircase_is_looked_over_at_every_load",
        {"num_requests": 2},
    ),
    "censored-averages": WrongBuild(
        "acceptance is an average of A, so that what v left out counts as missed",
        in_module(Verified, "outcomes", _misses_where_nothing_was_verified),
        "tests/test_tuner_estimates.py::test_survival_is_uncensored",
    ),
    "tuner-ratchet": WrongBuild(
        "k falls with the load and never rises again",
        _ratchet,
        "tests/test_tuner_runs.py::test_recovers_after_load_falls",
    ),
}
