"""Whether a drafter belongs to a target. Pure."""

from __future__ import annotations

from protos.common_pb2 import Describe
from protos.errors import ContractMismatch

# What must be equal; a replay drafter states only what it knows.
_EQUAL_FIELDS = ("vocab_size", "hidden_size", "num_layers", "embedding_hash", "noise_version")
REPLAY_KIND = "replay"


def check_protocol(describe: Describe, major: int) -> None:
    """Raises ContractMismatch when the other side speaks another major version."""
    if describe.protocol.major != major:
        raise ContractMismatch(
            f"speaks protocol {describe.protocol.major}, this coordinator speaks {major}", field="protocol"
        )


# What two targets must share so that a text may go on from one to the other. How much room they have may
# differ, and the kernels that round their logits (see `ledger.Kernels`).
_MODEL_FIELDS = (
    *("fingerprint", "tokenizer_hash", "vocab_size", "embedding_hash", "noise_version"),
    *("max_verify_block_size", "page_size"),
)


def check_same_model(first: Describe, other: Describe) -> None:
    """Refuses a target that is another model than the first one.

    Raises:
        ContractMismatch: naming the field and both values.
    """
    for name in _MODEL_FIELDS:
        ours, theirs = getattr(first, name), getattr(other, name)
        if ours != theirs:
            raise ContractMismatch(f"this coordinator serves {ours!r}, the target has {theirs!r}", field=name)
    if list(first.tapped_layers) != list(other.tapped_layers):
        raise ContractMismatch(
            f"the first target taps layers {list(first.tapped_layers)}, this one "
            f"{list(other.tapped_layers)}: start it with the same --tapped-layers",
            field="tapped_layers",
        )


def check_pairing(target: Describe, drafter: Describe) -> None:
    """Refuses a drafter whose proposals would be noise for this target.

    Raises:
        ContractMismatch: naming the field and both values.
    """
    for name in _EQUAL_FIELDS:
        ours, theirs = getattr(target, name), getattr(drafter, name)
        if drafter.drafter_kind == REPLAY_KIND and not theirs:
            continue
        if ours != theirs:
            raise ContractMismatch(f"the target has {ours!r}, the drafter {theirs!r}", field=name)
    wanted, given = list(drafter.tapped_layers), list(target.tapped_layers)
    if drafter.drafter_kind == REPLAY_KIND and not wanted:
        return
    if wanted != given:
        raise ContractMismatch(
            f"the drafter reads layers {wanted}, the target taps {given}: "
            f"start the target with --tapped-layers {','.join(map(str, wanted))}",
            field="tapped_layers",
        )


def pairing_warnings(target: Describe, drafter: Describe) -> list[str]:
    """What is worth a warning but no refusal."""
    warnings = []
    trained_for = drafter.trained_for_fingerprint
    if trained_for and trained_for != target.fingerprint:
        warnings.append(
            f"the drafter was trained for target {trained_for[:12]}, this one is "
            f"{target.fingerprint[:12]}: proposals may be accepted less often"
        )
    return warnings
