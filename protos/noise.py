"""The random numbers both devices must agree on, as a pure function of integers.

Hash `blake2b-lowbias32x2`, version 1:

    (a, b) = the two little-endian uint32 of blake2b(key[16] | domain u32 | position u64, 8 bytes)
    h      = mix(mix(token ^ a) + b mod 2^32)
    mix(x) = the 32-bit finaliser x ^= x>>16; x *= 0x21f0aaad; x ^= x>>15; x *= 0x735a2d97; x ^= x>>15

Every operation is an integer operation modulo 2^32, so `h` is bit-equal on every device. The
exponential variate `E = -log1p(-(h + .5) 2^-32)` is float32; `u` is clamped to the largest float32
below 1, so E is finite and positive for every h (without the clamp h >= 2^32 - 128 gives E = inf).
`argmax log p - log E` draws exactly from p (exponential races; Daliri et al. 2024 for the coupling).

Shapes: N rows, V token ids.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from enum import IntEnum

import torch

NOISE_NAME = "blake2b-lowbias32x2"
NOISE_VERSION = 1
KEY_BYTES = 16

_MASK = 0xFFFFFFFF
_C1 = 0x21F0AAAD
_C2 = 0x735A2D97
_LARGEST_BELOW_ONE = 1.0 - 2.0**-24


class Domain(IntEnum):
    """Kinds of draw; two kinds never share a random number."""

    TOKEN = 0
    DRAFT = 1
    COIN = 2
    RESIDUAL = 3
    BONUS = 4


def row_state(key: bytes, domain: Domain, position: int) -> tuple[int, int]:
    """The two 32-bit words that stand for (key, domain, position).

    Raises:
        ValueError: the key is not 16 bytes or the position is negative.
    """
    if len(key) != KEY_BYTES:
        raise ValueError(f"a sampling key has {KEY_BYTES} bytes, this one has {len(key)}")
    if position < 0:
        raise ValueError(f"position {position} is negative")
    packed = key + struct.pack("<IQ", int(domain), position)
    a, b = struct.unpack("<II", hashlib.blake2b(packed, digest_size=8).digest())
    return a, b


def _mix_int(x: int) -> int:
    x ^= x >> 16
    x = (x * _C1) & _MASK
    x ^= x >> 15
    x = (x * _C2) & _MASK
    return x ^ (x >> 15)


def hash32(key: bytes, domain: Domain, position: int, token: int) -> int:
    """The hash of one token, in Python integers: the slow twin of `hash_rows`."""
    a, b = row_state(key, domain, position)
    return _mix_int((_mix_int((token ^ a) & _MASK) + b) & _MASK)


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value


def _mix(x: torch.Tensor) -> torch.Tensor:
    # int32 products wrap modulo 2^32; the arithmetic right shift needs its sign bits masked off.
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * _C1
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * _C2
    return x ^ ((x >> 15) & 0x1FFFF)


def hash_rows(states: Sequence[tuple[int, int]], token_ids: torch.Tensor) -> torch.Tensor:
    """Hashes as int64 in [0, 2^32).

    Args:
        states: N row states from `row_state`.
        token_ids: [V] integers on the device to compute on.

    Returns:
        [N, V] int64.
    """
    words = torch.tensor(
        [[_signed(a), _signed(b)] for a, b in states], dtype=torch.int32, device=token_ids.device
    ).reshape(-1, 2)  # [N, 2]
    tokens = token_ids.to(torch.int32)
    h = _mix(_mix(tokens[None, :] ^ words[:, :1]) + words[:, 1:])
    return h.to(torch.int64) & _MASK


def exponential(h: torch.Tensor) -> torch.Tensor:
    """`E = -log1p(-(h + .5) 2^-32)` in float32 for hashes in [0, 2^32): finite and positive."""
    u = h.to(torch.float32).add_(0.5).mul_(2.0**-32).clamp_(max=_LARGEST_BELOW_ONE)
    return -torch.log1p(-u)


def coupled_choice(
    log_law: torch.Tensor,  # [N, V]
    states: Sequence[tuple[int, int]],
    token_ids: torch.Tensor,  # [V]
) -> torch.Tensor:
    """Draws one column for each row: `argmax log p - log E`, ties to the lower column.

    A column with p = 0 (log law -inf) is never drawn while any other has p > 0.

    Args:
        log_law: [N, V] float32 or float64 log-probabilities (need not be normalised).
        states: N row states, domain TOKEN for the target and for a drafter coupled to it.
        token_ids: [V] the target's id of each column.

    Returns:
        [N] int64 column indices.
    """
    e = exponential(hash_rows(states, token_ids))
    return torch.argmax(log_law - torch.log(e), dim=-1)


def uniform(key: bytes, domain: Domain, position: int, salt: int = 0) -> float:
    """One number in (0, 1), for the coin of rejection sampling."""
    return (hash32(key, domain, position, salt) + 0.5) * 2.0**-32
