"""Doubles for the coordinator's tests: a table target, a scripted drafter, a tiny tokenizer.

The table target decides the next token as a function of the last one, by the same fencing rules as
the real service. `TableEngine` is the target without a network; `coordinator_harness` plugs it into
the rounds in this process or puts it behind real gRPC.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from protos import common_pb2, target_pb2
from protos.common_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP

V = 258
D = 4
M = 2
EOS = 257
CHAT_TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)

NextToken = Callable[[list[int]], int]


def make_tokenizer() -> Tokenizer:
    """One token for each byte, and two special ones: ids 256 and 257."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|start|>", special=True), AddedToken("<|end|>", special=True)])
    return tokenizer


def tokenizer_files() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "tokenizer.json"
        make_tokenizer().save(str(path))
        content = path.read_bytes()
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    return {
        "tokenizer.json": content,
        "tokenizer_config.json": json.dumps(config).encode(),
        "chat_template.jinja": CHAT_TEMPLATE.encode(),
    }


def saying(text: str) -> NextToken:
    """A target that, after any prompt, says `text` byte by byte and then EOS for ever."""
    ids = make_tokenizer().encode(text).ids

    def decide(generated: list[int]) -> int:
        return ids[len(generated)] if len(generated) < len(ids) else EOS

    return decide


def counting(generated: list[int]) -> int:
    """Never ends, never repeats within 200 tokens: 0, 1, 2, .."""
    return len(generated) % 200


def cycling(period: int) -> NextToken:
    """Never ends, repeats after `period` tokens: lookup finds everything after the first turn."""
    return lambda generated: len(generated) % period


@dataclass(eq=False)
class TableSequence:
    """One request at the table target."""

    epoch: int
    tokens: list[int]
    num_prompt: int
    params: common_pb2.SamplingParams
    round: int = 0
    running: target_pb2.Command | None = None
    run_left: int = 0
    run_tokens: list[int] = field(default_factory=list)
    hold: bool = False
    finished: bool = False
    stored: list[target_pb2.Event] = field(default_factory=list)


class TableEngine:
    """The table target: `handle` takes a command, `step` decides one token of every Run.

    Args:
        decide: the next token, given the generated ones.
    """

    def __init__(self, decide: NextToken = counting) -> None:
        self.decide = decide
        self.sequences: dict[str, TableSequence] = {}
        self.closed_epochs: dict[str, int] = {}
        self.closes: list[tuple[str, int, int]] = []
        self.log: list[tuple[str, str]] = []
        self.opened: list[list[int]] = []
        self.salts: list[bytes] = []
        self._parts: list[int] = []

    def drop_all(self) -> None:
        """What happens when the stream ends, or the process."""
        self.sequences.clear()
        self.closed_epochs.clear()

    @property
    def is_running(self) -> bool:
        return any(item.running is not None for item in self.sequences.values())

    def handle(self, command: target_pb2.Command) -> list[target_pb2.Event]:
        kind = command.WhichOneof("kind")
        assert kind is not None
        self.log.append((command.request_id, kind))
        sequence = self.sequences.get(command.request_id)
        held = sequence.epoch if sequence else 0
        if kind == "close":
            return self._close(command, sequence)
        if command.epoch < held or command.epoch <= self.closed_epochs.get(command.request_id, 0):
            return [self._refused(command, target_pb2.REFUSAL_CODE_STALE_EPOCH, sequence)]
        if kind == "open" and command.epoch > held:
            return self._open(command)
        if sequence is None or command.epoch > held:
            return [self._refused(command, target_pb2.REFUSAL_CODE_OUT_OF_STEP, None)]
        if kind == "hold":
            sequence.hold = sequence.running is not None
            return []
        if sequence.running is not None or command.round < sequence.round:
            return []
        if command.round == sequence.round:
            return list(sequence.stored)
        body = getattr(command, kind)
        if command.round != sequence.round + 1 or body.committed_length != len(sequence.tokens):
            return [self._refused(command, target_pb2.REFUSAL_CODE_OUT_OF_STEP, sequence)]
        return self._round(command, kind, sequence)

    def step(self) -> list[target_pb2.Event]:
        events = []
        for request_id, sequence in self.sequences.items():
            if sequence.running is not None:
                events += self._run_token(request_id, sequence)
        return events

    def _open(self, command: target_pb2.Command) -> list[target_pb2.Event]:
        self._parts.extend(command.open.token_ids)
        self.salts.append(command.open.prefix_salt)
        if command.open.parts > 1 and command.open.part < command.open.parts - 1:
            return []
        tokens, self._parts = self._parts, []
        self.opened.append(list(tokens))
        sequence = TableSequence(command.epoch, tokens, command.open.num_prompt_tokens, command.open.params)
        self.sequences[command.request_id] = sequence
        return self._decide(command, sequence, [], command.open.want_features)

    def _round(
        self, command: target_pb2.Command, kind: str, sequence: TableSequence
    ) -> list[target_pb2.Event]:
        assert not sequence.finished, "a round after the request was finished"
        sequence.round = command.round
        if kind == "fetch":
            sequence.stored = [self._features(command, sequence)]
            return list(sequence.stored)
        if kind == "run":
            sequence.running, sequence.run_left = command, command.run.max_tokens
            sequence.run_tokens, sequence.hold, sequence.stored = [], False, []
            assert sequence.run_left > 0
            return []
        return self._decide(command, sequence, list(command.verify.proposals), command.verify.want_features)

    def _decide(
        self,
        command: target_pb2.Command,
        sequence: TableSequence,
        proposals: list[int],
        want_features: bool,
    ) -> list[target_pb2.Event]:
        decided: list[int] = []
        num_accepted = 0
        while not self._reason(sequence):
            token = self._next(sequence)
            sequence.tokens.append(token)
            decided.append(token)
            if num_accepted < len(proposals) and proposals[num_accepted] == token:
                num_accepted += 1
            else:
                break
        verdict = self._verdict(command.request_id, sequence, decided, True)
        verdict.verdict.num_accepted = num_accepted
        verdict.verdict.num_verified = len(proposals)
        verdict.verdict.timing.total_us = 100
        sequence.stored = [verdict]
        if want_features and not sequence.finished:
            sequence.stored.append(self._features(command, sequence))
        return list(sequence.stored)

    def _run_token(self, request_id: str, sequence: TableSequence) -> list[target_pb2.Event]:
        command = sequence.running
        assert command is not None
        token = self._next(sequence)
        sequence.tokens.append(token)
        sequence.run_tokens.append(token)
        sequence.run_left -= 1
        done = bool(self._reason(sequence)) or sequence.run_left == 0 or sequence.hold
        event = self._verdict(request_id, sequence, [token], done)
        if not done:
            return [event]
        sequence.running = None
        whole = self._verdict(request_id, sequence, sequence.run_tokens, True)
        extra = []
        if command.run.want_features and not sequence.finished:
            extra = [self._features(command, sequence)]
        sequence.stored = [whole, *extra]
        return [event, *extra]

    def _next(self, sequence: TableSequence) -> int:
        return self.decide(sequence.tokens[sequence.num_prompt :])

    def _reason(self, sequence: TableSequence) -> int:
        generated = sequence.tokens[sequence.num_prompt :]
        params = sequence.params
        if not generated:
            return 0
        if generated[-1] in params.stop_token_ids or (generated[-1] == EOS and not params.ignore_eos):
            return FINISH_REASON_STOP
        return FINISH_REASON_LENGTH if len(generated) >= params.max_tokens else 0

    def _verdict(
        self, request_id: str, sequence: TableSequence, tokens: Sequence[int], done: bool
    ) -> target_pb2.Event:
        reason = self._reason(sequence)
        sequence.finished = bool(reason)
        verdict = target_pb2.Verdict(
            request_id=request_id,
            epoch=sequence.epoch,
            round=sequence.round,
            committed_length=len(sequence.tokens),
            tokens=tokens,
            done=done,
            finish_reason=reason,
        )
        return target_pb2.Event(verdict=verdict)

    def _features(self, command: target_pb2.Command, sequence: TableSequence) -> target_pb2.Event:
        """Values that name the committed length: a drafter can check that they are fresh."""
        data = bytes([len(sequence.tokens) % 251]) * (M * D * 4)
        features = target_pb2.Features(
            request_id=command.request_id,
            epoch=sequence.epoch,
            round=sequence.round,
            parts=1,
            tensor=common_pb2.Tensor(dtype="f32", shape=[M, D], data=data),
        )
        return target_pb2.Event(features=features)

    def _close(self, command: target_pb2.Command, sequence: TableSequence | None) -> list[target_pb2.Event]:
        if sequence is not None and command.epoch < sequence.epoch:
            return [self._refused(command, target_pb2.REFUSAL_CODE_STALE_EPOCH, sequence)]
        self.closes.append((command.request_id, command.epoch, command.close.keep_length))
        self.sequences.pop(command.request_id, None)
        self.closed_epochs[command.request_id] = command.epoch
        closed = target_pb2.Closed(request_id=command.request_id, epoch=command.epoch)
        return [target_pb2.Event(closed=closed)]

    def _refused(
        self, command: target_pb2.Command, code: int, sequence: TableSequence | None
    ) -> target_pb2.Event:
        refused = target_pb2.Refused(
            request_id=command.request_id, epoch=command.epoch, round=command.round, code=code
        )
        if sequence is not None:
            refused.held_epoch, refused.held_round = sequence.epoch, sequence.round
            refused.held_committed_length = len(sequence.tokens)
        return target_pb2.Event(refused=refused)
