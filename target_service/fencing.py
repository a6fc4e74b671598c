"""What to do with a command that may be late, repeated, or from another life. Pure.

The checks and their order are the protocol's: an epoch names one life of a request, a round one
step of it; a repeat of the last done round is answered from store, so a lost answer costs nothing.
"""

from __future__ import annotations

from enum import Enum

from target_service.commands import Close, Command, Fetch, Hold, Open, Run, Verify
from target_service.sequence import Sequence


class Action(Enum):
    EXECUTE = "execute"
    OPEN = "open"  # free the old sequence if there is one, open anew
    REPLAY = "replay"  # send the stored answer
    IGNORE = "ignore"
    STALE_EPOCH = "stale epoch"
    OUT_OF_STEP = "out of step"  # with what is held
    OUT_OF_STEP_UNKNOWN = "out of step, nothing held"  # with epoch 0


def check(command: Command, sequence: Sequence | None, last_closed_epoch: int) -> Action:
    """Decides by epoch, round and committed length.

    Args:
        command: just arrived.
        sequence: what is held under the command's key.
        last_closed_epoch: the highest epoch closed under this key on this stream; 0 for none.
    """
    epoch = command.address.epoch
    if sequence is not None and epoch < sequence.epoch:
        return Action.STALE_EPOCH
    if isinstance(command, Close):
        return Action.EXECUTE  # answered by Closed for unknown and closed ids too
    if epoch <= last_closed_epoch:
        return Action.STALE_EPOCH
    if isinstance(command, Open) and (sequence is None or epoch > sequence.epoch):
        return Action.OPEN
    if sequence is None or epoch > sequence.epoch:
        return Action.OUT_OF_STEP_UNKNOWN
    if isinstance(command, Hold):
        return Action.EXECUTE
    return _check_round(command, sequence)


def _check_round(command: Open | Verify | Run | Fetch, sequence: Sequence) -> Action:
    number = command.address.round
    if sequence.active is not None and number == sequence.active.number:
        return Action.IGNORE
    if number == sequence.last_round:
        return Action.REPLAY
    if number < sequence.last_round:
        return Action.IGNORE
    expected = sequence.last_round + 1
    in_step = sequence.active is None and sequence.finish_reason is None and number == expected
    if isinstance(command, Open) or not in_step:
        return Action.OUT_OF_STEP
    return Action.EXECUTE if command.committed_length == sequence.committed_length else Action.OUT_OF_STEP
