"""The target's tokenizer, loaded from the files that the target serves. Imports no torch."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from protos.errors import ContractMismatch, InvalidRequest


class Tokenizer(Protocol):
    """What the coordinator needs of a tokenizer."""

    @property
    def has_text(self) -> bool:
        """False when the target has no tokenizer: ids go in and out, text is empty."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of a plain prompt, with the special tokens the tokenizer adds by itself."""
        ...

    @property
    def template_knows_tools(self) -> bool:
        """Whether the chat template has a place for tools."""
        ...

    @property
    def response_template(self) -> Mapping[str, Any] | None:
        """How answers are written, in the form of `transformers`' response parser, if that is known."""
        ...

    @property
    def answer_start(self) -> str:
        """What the chat template writes of the answer itself."""
        ...

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """Text of a conversation up to the point where the assistant answers, special tokens written out.

        Raises:
            InvalidRequest: there is no chat template, or it refuses these messages.
        """
        ...

    def encode_rendered(self, text: str) -> list[int]:
        """Ids of (a part of) a rendered conversation: nothing is added."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text without special tokens."""
        ...

    def decode_exact(self, token_ids: Sequence[int]) -> str:
        """Text with special tokens written out."""
        ...


class NoTokenizer:
    """Stands in for the tokenizer of a target that has none."""

    has_text = False
    template_knows_tools = False
    response_template = None
    answer_start = ""

    def encode(self, text: str) -> list[int]:
        raise InvalidRequest("the target has no tokenizer: send token_ids", field="prompt")

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        raise InvalidRequest("the target has no tokenizer: send token_ids", field="messages")

    def encode_rendered(self, text: str) -> list[int]:
        raise InvalidRequest("the target has no tokenizer: send token_ids", field="messages")

    def decode(self, token_ids: Sequence[int]) -> str:
        return ""

    def decode_exact(self, token_ids: Sequence[int]) -> str:
        return ""


class FileTokenizer:
    """A fast tokenizer with its chat template."""

    has_text = True

    def __init__(self, directory: Path) -> None:
        # The fast class itself: AutoTokenizer would import torch.
        from transformers import PreTrainedTokenizerFast

        self._tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
        self._backend = self._tokenizer.backend_tokenizer

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=True).ids
        return ids

    @property
    def template_knows_tools(self) -> bool:
        return "tools" in str(self._tokenizer.chat_template)

    @property
    def response_template(self) -> Mapping[str, Any] | None:
        template: Mapping[str, Any] | None = getattr(self._tokenizer, "response_template", None)
        return template

    @cached_property
    def answer_start(self) -> str:
        messages = [{"role": "user", "content": ""}]
        before, whole = self._render(messages, (), False), self._render(messages, (), True)
        return whole.removeprefix(before) if whole.startswith(before) else ""

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """See `Tokenizer`."""
        return self._render(messages, tools, True)

    def _render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], answers: bool
    ) -> str:
        from jinja2 import TemplateError

        if not self._tokenizer.chat_template:
            raise InvalidRequest(
                "the target's tokenizer has no chat template: send prompt or token_ids", field="messages"
            )
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) or None,
                tokenize=False,
                add_generation_prompt=answers,
            )
        except TemplateError as error:
            raise InvalidRequest(f"the chat template refuses this: {error}", field="messages") from error
        return text

    def encode_rendered(self, text: str) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=True)
        return text

    def decode_exact(self, token_ids: Sequence[int]) -> str:
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=False)
        return text


def tokenizer_hash(files: Mapping[str, bytes]) -> str:
    """sha256 over name, a zero byte and content of each file, sorted by name."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(name.encode() + b"\0" + files[name] + b"\0")
    return digest.hexdigest()


def load_tokenizer(files: Mapping[str, bytes], expected_hash: str) -> Tokenizer:
    """Loads the tokenizer from its files.

    Raises:
        ContractMismatch: the files are not those the target describes, or are no tokenizer.
    """
    if "tokenizer.json" not in files:
        return NoTokenizer()
    found = tokenizer_hash(files)
    if found != expected_hash:
        raise ContractMismatch(
            f"the target describes tokenizer {expected_hash[:12]} but served {found[:12]}",
            field="tokenizer_hash",
        )
    with tempfile.TemporaryDirectory(prefix="dlite-tokenizer-") as name:
        directory = Path(name)
        for file_name, content in files.items():
            if Path(file_name).name != file_name or file_name.startswith("."):
                raise ContractMismatch(f"{file_name!r} is not a plain file name", field="name")
            (directory / file_name).write_bytes(content)
        _default_config(directory)
        try:
            return FileTokenizer(directory)
        except (ValueError, OSError, KeyError, TypeError) as error:
            raise ContractMismatch(f"the target's tokenizer cannot be loaded: {error}") from error


def _default_config(directory: Path) -> None:
    """A bare tokenizer.json is enough; the library wants a config beside it."""
    config = directory / "tokenizer_config.json"
    if not config.exists():
        config.write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
