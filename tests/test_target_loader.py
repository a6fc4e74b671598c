"""What is refused at load, by name (pitfalls D12), and what a target says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, MistralConfig, Qwen2Config

from protos.errors import ContractMismatch, InvalidRequest, NotFound
from protos.feature_layers import build_target_layer_ids
from target_service import attention, loader
from target_service.build import pool_pages
from target_service.config import TargetConfig
from target_service.fingerprint import embedding_hash, model_fingerprint, tokenizer_hash
from target_service.model import TargetModel
from tests.fakes import GOLDEN, tiny_target


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (MistralConfig(sliding_window=8), "sliding"),
        (Qwen2Config(use_sliding_window=True, sliding_window=8, max_window_layers=0), "sliding"),
        (LlamaConfig(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}), "dynamic"),
        (LlamaConfig(quantization_config={"quant_method": "gptq"}), "quantised"),
    ],
)
def test_unsupported_architectures_are_refused_by_name(config: object, words: str) -> None:
    with pytest.raises(ContractMismatch, match=words):
        loader.refuse_unsupported(config)


def test_unknown_folder() -> None:
    with pytest.raises(NotFound, match="no folder and no hub name"):
        loader.resolve_folder("./nowhere")


def test_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(ContractMismatch, match=r"config\.json"):
        loader.read_config(tmp_path)


def test_unknown_dtype() -> None:
    with pytest.raises(InvalidRequest, match="float7"):
        loader.load(str(GOLDEN / "target_qwen3"), "float7", "cpu")


@pytest.mark.parametrize("ids", [(0,), (0, 0), (1, 0), (-1, 2), (0, 3)])
def test_tapped_layers(ids: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest, match="ascending layer ids"):
        loader.check_tapped_layers(ids, 3)


def test_tapped_layer_rule() -> None:
    assert build_target_layer_ids(30, 8) == (0, 1, 6, 12, 17, 23, 28, 29)


def test_the_self_test_finds_an_attention_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    right = attention.paged_attention

    def unscaled(*args: object, **kwargs: object) -> object:
        return right(*args, **{**kwargs, "scaling": 1.0})  # type: ignore[arg-type]

    model = TargetModel(tiny_target("llama"), (0, 2), 4, 16)
    model.self_test()
    monkeypatch.setattr(attention, "paged_attention", unscaled)
    broken = TargetModel(tiny_target("llama"), (0, 2), 4, 16)
    with pytest.raises(ContractMismatch, match="differs from the stock model"):
        broken.self_test()
    monkeypatch.undo()
    attention.register()


def test_fingerprint_is_cached_and_follows_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    folder.mkdir()
    for path in (GOLDEN / "target_qwen3").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    first = model_fingerprint(folder)
    assert first == model_fingerprint(folder)
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    assert model_fingerprint(folder) != first


def test_hashes() -> None:
    assert tokenizer_hash({}) == ""
    assert tokenizer_hash({"a": b"x"}) != tokenizer_hash({"a": b"y"})
    embedding = torch.randn(4, 3)
    assert embedding_hash(embedding) == embedding_hash(embedding.to(torch.float64))


def test_pool_pages() -> None:
    # The tiny model keeps 2 * 3 layers * 2 heads * 8 * 8 bytes = 768 bytes a token.
    model = tiny_target("llama")
    config = TargetConfig.load(None, target="x", max_pool_bytes=10 * 16 * 768)
    assert pool_pages(config, model, 10_000) == 10
    assert pool_pages(config, model, 16) == 8
    assert pool_pages(TargetConfig.load(None, num_pages=3), model, 1) == 3
    with pytest.raises(InvalidRequest, match="no page"):
        pool_pages(TargetConfig.load(None, max_pool_bytes=1000), model, 10)
    with pytest.raises(InvalidRequest, match="headroom"):
        pool_pages(TargetConfig.load(None, num_pages=1 << 40), model, 10)
