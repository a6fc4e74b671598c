"""Brings the tokenizer files from the target."""

from __future__ import annotations

from typing import Any

import grpc

from coordinator.tokenizer import Tokenizer, load_tokenizer
from protos import rpc, target_pb2
from protos.security import Address
from protos.statuses import error_from

METHOD = "/dlite.v1.Target/GetTokenizer"
_TIMEOUT_SECONDS = 30.0


async def fetch_tokenizer(address: Address, expected_hash: str) -> Tokenizer:
    """Fetches and loads the target's tokenizer.

    Args:
        expected_hash: `Describe.tokenizer_hash`.

    Raises:
        ContractMismatch: the files do not have this hash.
        Unavailable: the target does not answer.
    """
    files: dict[str, bytes] = {}
    async with rpc.open_channel(address) as channel:
        method: Any = channel.unary_stream(METHOD)
        request = target_pb2.GetTokenizerRequest().SerializeToString()
        call = method(request, timeout=_TIMEOUT_SECONDS, wait_for_ready=True)
        try:
            async for data in call:
                chunk = rpc.parse(target_pb2.TokenizerChunk, data)
                files[chunk.name] = files.get(chunk.name, b"") + chunk.data
        except grpc.aio.AioRpcError as error:
            raise error_from(error) from error
    return load_tokenizer(files, expected_hash)
