"""What the engine refuses before it starts a round, with numbers and advice. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from target_service.commands import Command, Held, Open, RefusalCode, Refused, Run, SamplingParams, Verify
from target_service.limits import EngineLimits
from target_service.rejection import law_problem

KEY_BYTES = 16


def out_of_step(command: Command, held: Held) -> Refused:
    """The coordinator's view differs from ours; held.epoch 0 means that we hold nothing."""
    message = "nothing is held under this id and epoch: open it again"
    if held.epoch:
        message = (
            f"held: epoch {held.epoch}, round {held.round} done, {held.committed_length} committed tokens"
        )
    return Refused(command.address, RefusalCode.OUT_OF_STEP, message, held=held)


def stale_epoch(command: Command) -> Refused:
    return Refused(
        command.address,
        RefusalCode.STALE_EPOCH,
        f"epoch {command.address.epoch} of this request is over: open it with a higher one",
    )


def refusal_of(command: Command, limits: EngineLimits, vocab_size: int) -> Refused | None:
    """Why a round cannot be computed, or None."""
    problem = _problem(command, limits, vocab_size)
    if problem is None:
        return None
    field, message = problem
    return Refused(command.address, RefusalCode.INVALID_ARGUMENT, message, field)


def mode_refusal(command: Command, params: SamplingParams) -> Refused | None:
    """Proposals come with their laws in rejection mode, and only there."""
    if not isinstance(command, Verify) or not command.proposals:
        return None
    if params.uses_rejection == bool(command.laws):
        return None
    wanted = "one law for each proposal" if params.uses_rejection else "no law"
    message = f"{len(command.laws)} laws, this request's mode wants {wanted}"
    return Refused(command.address, RefusalCode.INVALID_ARGUMENT, message, "law")


def _problem(command: Command, limits: EngineLimits, vocab_size: int) -> tuple[str, str] | None:
    if isinstance(command, Open):
        return _open_problem(command, limits, vocab_size)
    if isinstance(command, Verify):
        most = limits.max_verify_block_size - 1
        if len(command.proposals) > most:
            return "proposals", f"{len(command.proposals)} proposals, at most {most} are verified"
        return _vocabulary_problem("proposals", command.proposals, vocab_size) or _laws_problem(
            command, vocab_size
        )
    if isinstance(command, Run) and command.max_tokens < 1:
        return "max_tokens", f"a Run decodes at least one token, not {command.max_tokens}"
    return None


def _vocabulary_problem(field: str, ids: Iterable[int], vocab_size: int) -> tuple[str, str] | None:
    largest = max(ids, default=0)
    if largest >= vocab_size:
        return field, f"token id {largest} is outside the vocabulary of {vocab_size}"
    return None


def _laws_problem(command: Verify, vocab_size: int) -> tuple[str, str] | None:
    if not command.laws:
        return None
    if len(command.laws) != len(command.proposals):
        return "law", f"{len(command.laws)} laws for {len(command.proposals)} proposals"
    for proposal, law in zip(command.proposals, command.laws, strict=True):
        problem = law_problem(proposal, law) or _vocabulary_problem("law", law.token_ids, vocab_size)
        if problem is not None:
            return problem
    return None


def _params_problem(command: Open, vocab_size: int) -> tuple[str, str] | None:
    params = command.params
    bans = (token for word in params.bad_words for token in word)
    for name, ids in (
        ("logit_bias", (token for token, _ in params.logit_bias)),
        ("allowed_token_ids", params.allowed_token_ids),
        ("bad_words", bans),
    ):
        problem = _vocabulary_problem(f"params.{name}", ids, vocab_size)
        if problem is not None:
            return problem
    if params.min_tokens > params.max_tokens:
        return "params.min_tokens", f"{params.min_tokens} are more than max_tokens {params.max_tokens}"
    return None


def _open_problem(command: Open, limits: EngineLimits, vocab_size: int) -> tuple[str, str] | None:
    num_tokens, num_prompt = len(command.token_ids), command.num_prompt_tokens
    if num_tokens == 0:
        return "token_ids", "an empty sequence has nothing to predict from: send at least one token"
    if not 1 <= num_prompt <= num_tokens:
        return "num_prompt_tokens", f"{num_prompt} is not between 1 and {num_tokens}"
    if len(command.sampling_key) != KEY_BYTES:
        return "sampling_key", f"{len(command.sampling_key)} bytes, expected {KEY_BYTES}"
    most = command.params.max_tokens
    if num_tokens - num_prompt >= most:
        return "params.max_tokens", f"{num_tokens - num_prompt} tokens are generated, the limit is {most}"
    total = num_prompt + most
    if total > limits.max_context:
        return "params.max_tokens", (
            f"{num_prompt} prompt tokens + max_tokens {most} = {total} exceed the context of "
            f"{limits.max_context}"
        )
    pages, room = -(-total // limits.page_size), limits.num_pages
    if pages > room:
        return "params.max_tokens", (
            f"{total} tokens take {pages} pages of {limits.page_size}, the pool has {room}: "
            "it can never fit; ask for fewer tokens or give the target more pages"
        )
    return _vocabulary_problem("token_ids", command.token_ids, vocab_size) or _params_problem(
        command, vocab_size
    )
