"""Settings of the target service."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from protos.config import ServiceConfig


class TargetConfig(ServiceConfig):
    """Sources: command line > DLITE_TARGET_* > --config > these defaults."""

    section: ClassVar[str] = "target"
    model_config = SettingsConfigDict(**{**ServiceConfig.model_config, "env_prefix": "DLITE_TARGET_"})

    target: str = Field("", description="folder or hub name of the target model")
    address: str = Field("127.0.0.1:0", description="host:port (port 0: any free one) or unix:PATH")
    tapped_layers: tuple[int, ...] = Field((), description="feature layer ids; must equal the drafter's")
    num_tapped_layers: int = Field(8, ge=2, description="m, when no layer ids are given")
    dtype: str = Field("auto", description="float32, float64, bfloat16; auto: float32 on CPU")
    device: str = Field("cpu", description="torch device")
    attention: str = Field("auto", description="sdpa, or flash with flash-attn on a GPU; auto: sdpa")
    linear_kernel: str = Field(
        "auto", description="torch, torch_fused, onednn, fbgemm_fp16; auto: measured once, kept in the cache"
    )
    threads: int = Field(1, ge=1, description="compute threads")
    page_size: int = Field(16, ge=1, description="tokens a KV page holds")
    num_pages: int = Field(0, ge=0, description="pages in the pool; 0: from max_pool_bytes")
    max_pool_bytes: int = Field(1 << 30, ge=1, description="most bytes of KV when num_pages is 0")
    prefill_rows: int = Field(256, ge=1, description="most rows of prefill in a step")
    prefill_seconds: float = Field(
        0.25, ge=0, description="time that prefill may take of a step, by measured row cost; 0: no limit"
    )
    max_context: int = Field(0, ge=0, description="longest prompt + text; 0: the model's own")
    max_verify_block_size: int = Field(32, ge=1, description="most rows of one verification")
    feature_dtype: Literal["auto", "f32", "f16", "bf16", "int8"] = Field(
        "auto", description="pivot features on the wire; int8 halves bf16's bytes at little loss"
    )
    prefix_cache: bool = Field(True, description="find the pages of past texts again")
    trust_remote_code: bool = Field(False, description="run code that the model's folder brings")
    grammar_no_forcing: bool = Field(
        False,
        description="let grammars write a text that is forced in any tokens, not only its canonical ones",
    )
