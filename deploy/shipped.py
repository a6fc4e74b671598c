"""Drafters that come with the project, and which one a target gets when nobody names one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from protos.errors import NotFound

DRAFTERS = Path(__file__).parent / "drafters"
AUTO = "auto"
UNTRAINED = "untrained"
_WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Found:
    """The shipped drafter of a target, or (with `folder` None) why there is none."""

    folder: Path | None
    reason: str = ""


def shipped_drafter(target: Path, root: Path = DRAFTERS) -> Found:
    """The drafter that was trained for exactly this target.

    Args:
        target: model folder.
        root: folder of drafter folders.
    """
    configs = sorted(root.glob("*/config.json"))
    if not configs:
        return Found(None, "no drafter is shipped")
    from draft_service.checkpoint import read_draft_config
    from target_service.fingerprint import model_fingerprint

    fingerprint = model_fingerprint(target)
    for config in configs:
        folder = config.parent
        if read_draft_config(folder).target_fingerprint != fingerprint:
            continue
        if not (folder / _WEIGHTS).is_file():
            return Found(None, f"the shipped drafter {folder.name} has no {_WEIGHTS} here")
        return Found(folder)
    return Found(None, f"no shipped drafter is for this target (fingerprint {fingerprint[:12]})")


def trained_drafter(drafter: str, target: Path) -> Path:
    """The folder of a drafter that is to be measured: "auto" is the shipped one, and nothing replaces it.

    Raises:
        NotFound: there is no such drafter.
    """
    if drafter != AUTO:
        folder = Path(drafter).expanduser()
        if not (folder / "config.json").is_file():
            raise NotFound(f"{drafter!r} is no checkpoint folder", field="--drafter")
        return folder.resolve()
    found = shipped_drafter(target)
    if found.folder is None:
        raise NotFound(f"{found.reason}; name a checkpoint folder", field="--drafter")
    return found.folder


def named_drafter(drafter: str, target: Path, say: Callable[[str], None]) -> str:
    """What "auto" stands for: the shipped drafter's folder, or "untrained"; other names are kept.

    Args:
        say: told what "auto" became.
    """
    if drafter != AUTO:
        return drafter
    found = shipped_drafter(target)
    if found.folder is None:
        say(f"drafter: {found.reason}; an untrained one takes its place")
        return UNTRAINED
    say(f"drafter: {found.folder.name}, shipped for this target")
    return str(found.folder)
