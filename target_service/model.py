"""A transformers causal LM computing packed steps over our pages.

Feature ids follow DLite: id i is the output of decoder layer i; for the last layer it is the state
after the final norm, in prefill and verification alike. Hooks copy only the deciding rows.

Shapes: N rows, R deciding rows, m tapped layers, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from protos.errors import ContractMismatch
from target_service import attention, flash_kv
from target_service.attention import StepContext
from target_service.engine import StepOutput
from target_service.feature_taps import FeatureTaps
from target_service.flash_kv import FlashKV, Kernel
from target_service.packing import Extension, PackedStep, pack
from target_service.paged_kv import KVShape, PagedKV

# Logits of the paged path and of the stock model on the self-test prompt; float32 rounding over
# some tens of layers stays two orders below, a missing mask or bias is orders above.
SELF_TEST_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-2}
SELF_TEST_LENGTH = 6


class TargetModel:
    """The engine's model.

    Args:
        model: a causal LM of transformers in eval mode, switched to our attention here.
        tapped_layers: the m feature ids, ascending.
        num_pages, page_size: geometry of the KV pool allocated here.
        flash: flash-attn's paged kernel; None attends with torch's own.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tapped_layers: Sequence[int],
        num_pages: int,
        page_size: int,
        flash: Kernel | None = None,
    ) -> None:
        attention.register()
        model.set_attn_implementation(attention.KERNEL_NAME)
        self.model = model
        self.tapped_layers = tuple(tapped_layers)
        shape, device = kv_shape(model), model.device
        self.kv: PagedKV | FlashKV = (
            PagedKV(shape, num_pages, page_size, device)
            if flash is None
            else FlashKV(shape, num_pages, page_size, device, flash)
        )
        self._taps = FeatureTaps(model, tapped_layers)

    @property
    def device(self) -> torch.device:
        return self.kv.keys.device

    @property
    def attention_kernel(self) -> str:
        """Name for `Describe`."""
        return flash_kv.KERNEL_NAME if isinstance(self.kv, FlashKV) else attention.KERNEL_NAME

    @property
    def vocab_size(self) -> int:
        return int(self.model.config.vocab_size)

    @property
    def hidden_size(self) -> int:
        return int(self.model.config.hidden_size)

    def copy_page(self, source: int, destination: int) -> None:
        """Copies the keys and values of one page, all layers."""
        self.kv.copy_page(source, destination)

    def forward(self, step: PackedStep) -> StepOutput:
        """One pass over the packed rows; writes their keys and values into the pages."""
        self._taps.start(step.decision_rows)
        output = self.model(
            input_ids=step.token_ids[None],
            position_ids=step.positions[None],
            use_cache=False,
            logits_to_keep=step.decision_rows,
            paged=StepContext.of(step, self.kv),
        )
        return StepOutput(logits=output.logits[0], features=self._taps.take())

    @torch.inference_mode()
    def self_test(self, stock: torch.Tensor | None = None) -> None:
        """Compares the paged path with the stock model on a short prompt, in two chunks.

        Args:
            stock: `self_test_logits` of the model before its modules were swapped; computed here
                when they were not.

        Raises:
            ContractMismatch: the architecture does something our attention does not.
        """
        tokens = self_test_tokens(self.model)
        pages = tuple(range(-(-len(tokens) // self.kv.page_size)))
        chunks = (
            Extension(tokens[:3], 0, pages, 0),
            Extension(tokens[3:], 3, pages, len(tokens) - 3),
        )
        for chunk in chunks:
            paged = self.forward(pack([chunk], self.kv.page_size, self.device)).logits
        if stock is None:
            stock = self_test_logits(self.model)
        difference = float((paged - stock[3:]).abs().max())
        tolerance = SELF_TEST_TOLERANCE.get(paged.dtype, float(stock.abs().max()) * 0.1)
        if not difference <= tolerance:
            name = type(self.model).__name__
            raise ContractMismatch(
                f"{name}: paged attention differs from the stock model by {difference:.3g} "
                f"(at most {tolerance:.3g}); this architecture is not supported",
                field="target",
            )


def self_test_tokens(model: PreTrainedModel) -> tuple[int, ...]:
    """A short prompt of ids that every model has."""
    return tuple(range(1, 1 + min(SELF_TEST_LENGTH, int(model.config.vocab_size) - 1)))


@torch.inference_mode()
def self_test_logits(model: PreTrainedModel) -> torch.Tensor:
    """[T, V] of the self-test's prompt by the model's own modules and the library's attention."""
    kernel = model.config._attn_implementation
    model.set_attn_implementation("sdpa")
    tokens = torch.tensor([self_test_tokens(model)], device=model.device)
    logits: torch.Tensor = model(input_ids=tokens, use_cache=False).logits[0]
    model.set_attn_implementation(kernel)
    return logits


def kv_shape(model: PreTrainedModel) -> KVShape:
    """Geometry of the model's KV cache."""
    config = model.config
    heads = int(config.num_attention_heads)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return KVShape(int(config.num_hidden_layers), int(kv_heads), int(head_dim), model.dtype)


def input_embedding(model: PreTrainedModel) -> torch.Tensor:
    """The token embedding [V, D]."""
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, torch.Tensor)
    return weight
