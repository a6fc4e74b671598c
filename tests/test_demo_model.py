"""The cache of prepared models, and names of models. The fetch itself is proved by the demo."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from deploy import demo_model, model_cache
from deploy.demo_model import resolve_model
from deploy.model_cache import cache_root, is_complete, prepared
from protos.errors import InvalidRequest, Unavailable


def build(folder: Path) -> None:
    (folder / "model.bin").write_bytes(b"weights")
    (folder / "config.json").write_text("{}")


def must_not_build(folder: Path) -> None:
    pytest.fail("the folder is there already")


def test_a_folder_is_built_once(tmp_path: Path) -> None:
    folder = prepared("m-v1", build, root=tmp_path)
    assert (folder / "model.bin").read_bytes() == b"weights"
    assert prepared("m-v1", must_not_build, root=tmp_path) == folder


def damage_by_truncation(folder: Path) -> None:
    (folder / "model.bin").write_bytes(b"weight")


def damage_by_other_bytes(folder: Path) -> None:
    (folder / "model.bin").write_bytes(b"WEIGHTS")


def damage_by_removal(folder: Path) -> None:
    (folder / "config.json").unlink()


def damage_of_the_manifest(folder: Path) -> None:
    (folder / model_cache.MANIFEST).write_text("{")


@pytest.mark.parametrize(
    "damage", [damage_by_truncation, damage_by_other_bytes, damage_by_removal, damage_of_the_manifest]
)
def test_a_damaged_folder_is_built_again(tmp_path: Path, damage: object) -> None:
    folder = prepared("m-v1", build, root=tmp_path)
    assert callable(damage)
    damage(folder)
    assert not is_complete(folder)
    prepared("m-v1", build, root=tmp_path)
    assert is_complete(folder)


def test_a_touched_but_equal_file_is_accepted(tmp_path: Path) -> None:
    folder = prepared("m-v1", build, root=tmp_path)
    (folder / "model.bin").write_bytes(b"weights")
    assert prepared("m-v1", must_not_build, root=tmp_path) == folder


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def failing(folder: Path) -> None:
        build(folder)
        raise Unavailable("the network is gone")

    with pytest.raises(Unavailable):
        prepared("m-v1", failing, root=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".m-v1.lock"]
    assert is_complete(prepared("m-v1", build, root=tmp_path))


def _count_build(folder: Path) -> None:
    build(folder)
    with (folder.parent.parent / "builds").open("a") as log:
        log.write("built\n")


def _prepare_in_process(root: Path) -> None:
    prepared("m-v1", _count_build, root=root)


def test_two_processes_build_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_prepare_in_process, args=(tmp_path,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert (tmp_path / "builds").read_text() == "built\n"


def test_the_manifest_names_every_file(tmp_path: Path) -> None:
    folder = prepared("m-v1", build, root=tmp_path)
    files = json.loads((folder / model_cache.MANIFEST).read_text())["files"]
    assert set(files) == {"model.bin", "config.json"}
    assert files["model.bin"]["num_bytes"] == 7


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "dlite"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    assert cache_root().parts[-2:] == (".cache", "dlite")


def test_a_folder_is_a_model(tmp_path: Path) -> None:
    build(tmp_path)
    assert resolve_model(str(tmp_path)) == tmp_path


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"config\.json"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize("name", ["", "smollm", "./missing/model", "/missing", "a/b/c", "~/missing"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="--target"):
        resolve_model(name)


@pytest.mark.parametrize("was_offline", [True, False])
def test_how_the_tokenizer_was_loaded_is_no_part_of_the_model(tmp_path: Path, was_offline: bool) -> None:
    """Fingerprints cover this file: they must be equal on every machine."""
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps({"local_files_only": was_offline, "is_local": was_offline, "bos": 1}))
    demo_model._forget_the_loading(file)
    assert file.read_text() == '{\n  "bos": 1,\n  "is_local": true,\n  "local_files_only": false\n}\n'
