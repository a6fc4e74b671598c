"""Random models of the check: a machine with a GPU need not reach a model hub."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from target_service.model import input_embedding

MAX_CONTEXT = 1024


@dataclass(frozen=True)
class Size:
    """Widths of a Llama."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int
    vocab_size: int


SIZES = {
    "tiny": Size(64, 3, 4, 2, 128, 199),
    "small": Size(1024, 12, 16, 8, 2816, 32_000),
    "8b": Size(4096, 32, 32, 8, 14_336, 128_256),
}


def random_model(size: Size, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """The same weights for the same size, type and device."""
    config = LlamaConfig(
        vocab_size=size.vocab_size,
        hidden_size=size.hidden_size,
        intermediate_size=size.intermediate_size,
        num_hidden_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        num_key_value_heads=size.num_kv_heads,
        max_position_embeddings=MAX_CONTEXT,
        tie_word_embeddings=False,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(1)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            model: Any = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    loaded: PreTrainedModel = model.eval().requires_grad_(False)
    return loaded


def weight_bytes(model: PreTrainedModel) -> int:
    """Bytes a one-row step reads: everything but the embedding table."""
    return sum(parameter.nbytes for parameter in model.parameters()) - input_embedding(model).nbytes
