"""Sampling keys: the only randomness of a text. Pure, but for the bytes drawn where nothing is given."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from coordinator.bounds import KEY_BYTES
from protos import coordinator_pb2
from protos.errors import InvalidRequest

_SEEDS = 2**64


def seed_key(seed: int) -> bytes:
    """The sampling key of a seed: the same in every process and version."""
    return hashlib.sha256(b"dlite seed v1" + seed.to_bytes(8, "little")).digest()[:KEY_BYTES]


def derived_key(key: bytes, index: int) -> bytes:
    """The key of choice `index` of a request that was given `key` and no seed; choice 0 has `key` itself."""
    if index == 0:
        return key
    return hashlib.sha256(b"dlite choice v1" + key + index.to_bytes(4, "little")).digest()[:KEY_BYTES]


def choice_keys(
    message: coordinator_pb2.GenerateRequest, num_choices: int, random_bytes: Callable[[int], bytes]
) -> tuple[bytes, ...]:
    """One key for each choice: of seed + i, else derived from the key given or drawn.

    So choice i of seed s is the text that seed s + i gives alone.

    Raises:
        InvalidRequest: a key of another length, or seed and key that differ.
    """
    key = message.resume.sampling_key
    if key and len(key) != KEY_BYTES:
        raise InvalidRequest(f"{len(key)} bytes instead of {KEY_BYTES}", field="resume.sampling_key")
    if not message.HasField("seed"):
        key = key or random_bytes(KEY_BYTES)
        return tuple(derived_key(key, index) for index in range(num_choices))
    keys = tuple(seed_key((message.seed + index) % _SEEDS) for index in range(num_choices))
    if key and key != keys[0]:
        raise InvalidRequest("is not the key of the seed given: leave one out", field="resume.sampling_key")
    return keys
