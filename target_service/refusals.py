"""What the engine refuses before it starts a round, with numbers and advice. Pure."""

from __future__ import annotations

from target_service.commands import Command, Held, Open, RefusalCode, Refused, Run, Verify
from target_service.limits import EngineLimits

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


def _problem(command: Command, limits: EngineLimits, vocab_size: int) -> tuple[str, str] | None:
    if isinstance(command, Open):
        return _open_problem(command, limits, vocab_size)
    if isinstance(command, Verify):
        most = limits.max_verify_block_size - 1
        if len(command.proposals) > most:
            return "proposals", f"{len(command.proposals)} proposals, at most {most} are verified"
        return _vocabulary_problem("proposals", command.proposals, vocab_size)
    if isinstance(command, Run) and command.max_tokens < 1:
        return "max_tokens", f"a Run decodes at least one token, not {command.max_tokens}"
    return None


def _vocabulary_problem(field: str, ids: tuple[int, ...], vocab_size: int) -> tuple[str, str] | None:
    if ids and max(ids) >= vocab_size:
        return field, f"token id {max(ids)} is outside the vocabulary of {vocab_size}"
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
    return _vocabulary_problem("token_ids", command.token_ids, vocab_size)
