"""Structured output: which tokens a grammar allows after a text, by `llguidance`.

A matcher holds the state after the committed tokens. For a round it is walked along the proposals,
one mask for each row, and walked back; only committed tokens move it for good. So a mask is a
function of the committed prefix and the proposals before its row, and of nothing else.

V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
import torch

from protos.errors import InvalidRequest

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# A hint longer than a block is of no use.
_MAX_FORCED = 64
# Sets a grammar free to write a forced text in tokens other than its canonical ones.
_NO_FORCING = '%llguidance {"no_forcing": true}\n'
# Between JSON tokens, unless the schema's own `x-guidance` says otherwise: without a bound a model
# may write blanks for ever.
_WHITESPACE = "[ ]?"


class GrammarKind(Enum):
    """How a grammar is written; the values are the field names of ResponseFormat."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    LARK = "grammar"


@dataclass(frozen=True)
class GrammarSpec:
    """A grammar as it was sent; `text` of a choice is a JSON list of strings."""

    kind: GrammarKind
    text: str

    @property
    def field(self) -> str:
        return f"grammar.{self.kind.value}"


@dataclass(frozen=True, eq=False)
class GrammarRows:
    """What a grammar says of the rows of a round.

    Attributes:
        allowed: [rows, V] bool.
        is_over: of each row, whether the text before it is complete and only its end may follow.
    """

    allowed: torch.Tensor
    is_over: tuple[bool, ...]


class Matcher:
    """One request's grammar.

    Invariant: between calls `_matcher` has consumed exactly the committed tokens up to the one that
    completed the text.

    Args:
        template: of the grammar; it stays as it is.
        vocab_size: V of the model, at least that of the tokenizer.
    """

    def __init__(self, template: LLMatcher, vocab_size: int) -> None:
        self._matcher = template.deep_copy()
        self._vocab_size = vocab_size
        self.error = ""

    def advance(self, token_ids: Sequence[int]) -> bool:
        """Takes committed tokens; False when the grammar does not allow them."""
        for index, token in enumerate(token_ids):
            if self.error or self._matcher.is_stopped():
                # A complete text moves no further: whatever ends it may be repeated.
                return not self.error and bool(self._mask()[list(token_ids[index:])].all())
            if not self._matcher.try_consume_tokens([token]):
                return False
        return True

    def rows(self, proposals: Sequence[int]) -> GrammarRows:
        """Row i is after proposals[:i]; rows behind a proposal that is not allowed are never reached."""
        masks, is_over = [self._mask()], [self._matcher.is_stopped()]
        walked = 0
        for token in proposals:
            if not masks[-1][token]:
                break
            if not self._matcher.is_stopped():
                if not self._matcher.try_consume_tokens([token]):
                    break
                walked += 1
            masks.append(self._mask())
            is_over.append(self._matcher.is_stopped())
        if walked:
            self._matcher.rollback(walked)
        missing = 1 + len(proposals) - len(masks)
        masks += [masks[-1]] * missing
        is_over += [is_over[-1]] * missing
        return GrammarRows(torch.from_numpy(np.stack(masks)), tuple(is_over))

    def forced(self) -> tuple[int, ...]:
        """Tokens that must come next: a hint, verified like any other proposal."""
        if self.error or self._matcher.is_stopped():
            return ()
        return tuple(self._matcher.compute_ff_tokens()[:_MAX_FORCED])

    def _mask(self) -> np.ndarray:
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.zeros(self._vocab_size, dtype=bool)
        mask = np.unpackbits(bits, bitorder="little")[: self._vocab_size].astype(bool)
        if self._matcher.is_error():
            self.error = self.error or _first_line(self._matcher.get_error())
        else:
            allowed[: len(mask)] = mask
        return allowed


class GrammarFactory:
    """Compiles grammars for one tokenizer; the tokenizer is built when the first one comes.

    Args:
        tokenizer_json: content of the model's tokenizer.json; None when it has none.
        vocab_size: V of the model.
        eos_ids: tokens that end a text.
        no_forcing: see `TargetConfig`.
    """

    def __init__(
        self, tokenizer_json: bytes | None, vocab_size: int, eos_ids: frozenset[int], no_forcing: bool
    ) -> None:
        self._tokenizer_json = tokenizer_json
        self._vocab_size = vocab_size
        self._eos_ids = sorted(eos_ids)
        self._no_forcing = no_forcing
        self._tokenizer: LLTokenizer | None = None

    def compile(self, spec: GrammarSpec) -> Callable[[], Matcher]:
        """What makes matchers of a grammar. Takes milliseconds to a second; one call at a time.

        Raises:
            InvalidRequest: naming the field, if the grammar is none or the target has no tokenizer.
        """
        from llguidance import LLMatcher

        try:
            source = _source(spec, self._no_forcing)
        except ValueError as error:
            raise InvalidRequest(f"not JSON: {error}", field=spec.field) from error
        template = LLMatcher(self._load(spec), source, log_level=0)
        if template.is_error():
            raise InvalidRequest(_first_line(template.get_error()), field=spec.field)
        return lambda: Matcher(template, self._vocab_size)

    def _load(self, spec: GrammarSpec) -> LLTokenizer:
        from llguidance import LLTokenizer

        if self._tokenizer_json is None or not self._eos_ids:
            raise InvalidRequest("the target has no tokenizer or no end-of-text token", field=spec.field)
        if self._tokenizer is None:
            text = self._tokenizer_json.decode()
            self._tokenizer = LLTokenizer(text, n_vocab=self._vocab_size, eos_token=self._eos_ids)
        return self._tokenizer


def _source(spec: GrammarSpec, no_forcing: bool) -> str:
    from llguidance import LLMatcher, regex_to_lark

    prefix = _NO_FORCING if no_forcing else ""
    if spec.kind is GrammarKind.JSON_SCHEMA:
        schema = json.loads(spec.text)
        if isinstance(schema, dict):
            schema = {"x-guidance": {"whitespace_pattern": _WHITESPACE}, **schema}
        return LLMatcher.grammar_from_lark(f"{prefix}start: %json {json.dumps(schema)}")
    if spec.kind is GrammarKind.REGEX:
        regex = regex_to_lark(spec.text).replace("\n", "\\n")
        return LLMatcher.grammar_from_lark(f"{prefix}start: /{regex}/")
    if spec.kind is GrammarKind.CHOICE:
        choices = " | ".join(json.dumps(choice) for choice in json.loads(spec.text))
        return LLMatcher.grammar_from_lark(f"{prefix}start: {choices}")
    return LLMatcher.grammar_from_lark(prefix + spec.text)


def _first_line(message: str) -> str:
    return message.strip().splitlines()[0] if message.strip() else "the grammar cannot be followed"
