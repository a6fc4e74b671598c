"""The coordinator itself, without a network in front: admission, running requests, what it serves."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from coordinator.bounds import limits_of
from coordinator.config import CoordinatorConfig
from coordinator.exchange import Timers
from coordinator.generation import Generation, Prepared, prepare
from coordinator.pairing import pairing_warnings
from coordinator.ports import DraftPort, TargetPort
from coordinator.prompt import num_prompt_chars, prompt_tokens
from coordinator.request import PlanDefaults, RequestContext, parse_request
from coordinator.services import Epochs, RoundLimits, Services
from coordinator.tokenizer import Tokenizer
from protos import common_pb2, coordinator_pb2, rpc
from protos.coordinator_pb2 import ProposalSource
from protos.errors import AlreadyExists, Busy, Unavailable

# k without a drafter to ask for its block.
_DEFAULT_DRAFT_TOKENS = 7
# Longer prompts (characters, or tokens) are tokenised and indexed off the event loop.
_OFFLOAD_CHARS = 8 * 1024
_RETRY_SECONDS = 1.0


@dataclass(frozen=True)
class Backends:
    """What a coordinator works with; `drafter` is None when there is none."""

    target: TargetPort
    drafter: DraftPort | None
    tokenizer: Tokenizer


# Sources as they are written in flags and files.
SOURCES: dict[str, ProposalSource] = {
    "auto": coordinator_pb2.PROPOSAL_SOURCE_AUTO,
    "drafter": coordinator_pb2.PROPOSAL_SOURCE_DRAFTER,
    "lookup": coordinator_pb2.PROPOSAL_SOURCE_LOOKUP,
    "lookup_then_drafter": coordinator_pb2.PROPOSAL_SOURCE_LOOKUP_THEN_DRAFTER,
}


class Coordinator:
    """Admits requests and knows those that run.

    Invariant: `_running` and `_admitting` are disjoint and hold the id of every request that has not
    ended; an id is in at most one of them.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        coordinator_id: str,
        backends: Backends,
        epoch_start: int,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._config = config
        self._coordinator_id = coordinator_id
        self._backends = backends
        self._services = Services(backends.target, backends.drafter, Epochs(epoch_start))
        self._limits = RoundLimits(
            Timers(config.resend_seconds, config.hang_seconds),
            config.draft_timeout_seconds,
            config.client_stall_seconds,
            config.target_loss_seconds,
        )
        self._random_bytes = random_bytes
        self._running: dict[str, Generation] = {}
        self._admitting: set[str] = set()
        self._draining = False

    @property
    def num_running(self) -> int:
        return len(self._running)

    async def admit(self, message: coordinator_pb2.GenerateRequest) -> Generation:
        """Validates a request and starts it.

        Raises:
            InvalidRequest: naming the field.
            AlreadyExists: a request of this id runs.
            Busy, Unavailable: try again later.
        """
        request_id = message.request_id or uuid.uuid4().hex
        self._check_room(request_id)
        self._admitting.add(request_id)
        try:
            generation = Generation(
                await self._prepare(message, request_id),
                self._services,
                self._limits,
                self._backends.tokenizer,
                self._config.max_queued_deltas,
                self._on_end,
            )
            self._running[request_id] = generation
        finally:
            self._admitting.discard(request_id)
        generation.start()
        return generation

    def abort(self, request_id: str) -> bool:
        """Aborts a running request; False when there is none of this id."""
        generation = self._running.get(request_id)
        if generation is not None:
            generation.abort()
        return generation is not None

    async def tokenize(self, message: coordinator_pb2.TokenizeRequest) -> tuple[int, ...]:
        chars = num_prompt_chars(message.messages, message.prompt)
        if chars <= _OFFLOAD_CHARS:
            return prompt_tokens(message, self._backends.tokenizer)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, prompt_tokens, message, self._backends.tokenizer)

    def models(self) -> coordinator_pb2.ListModelsResponse:
        describe, limits = self._backends.target.describe, limits_of(self._backends.target.describe)
        model = coordinator_pb2.ModelInfo(
            id=describe.model, fingerprint=describe.fingerprint, max_context=limits.max_length
        )
        return coordinator_pb2.ListModelsResponse(models=[model])

    def info(self) -> coordinator_pb2.GetServerInfoResponse:
        target, drafter = self._backends.target, self._backends.drafter
        defaults = self._plan_defaults()
        response = coordinator_pb2.GetServerInfoResponse(
            version=metadata.version("dlite"),
            coordinator_id=self._coordinator_id,
            protocol=common_pb2.Protocol(major=rpc.PROTOCOL_MAJOR, minor=rpc.PROTOCOL_MINOR),
            target=target.describe,
            num_running=self.num_running,
            default_num_draft_tokens=defaults.num_draft_tokens,
            default_verify_block_size=defaults.verify_block_size,
        )
        if drafter is None:
            return response
        response.drafter_connected = drafter.is_available
        if drafter.describe is not None:
            response.drafter.CopyFrom(drafter.describe)
            response.warnings.extend(pairing_warnings(target.describe, drafter.describe))
        if drafter.refusal:
            response.warnings.append(drafter.refusal)
        return response

    async def drain(self, grace_seconds: float) -> None:
        """Refuses new requests, lets the running ones end, aborts what is left."""
        self._draining = True
        running = [asyncio.ensure_future(item.wait_ended()) for item in self._running.values()]
        if running:
            await asyncio.wait(running, timeout=grace_seconds)
        for generation in list(self._running.values()):
            generation.abort()
        if running:
            await asyncio.wait(running)

    async def _prepare(self, message: coordinator_pb2.GenerateRequest, request_id: str) -> Prepared:
        """Validates and indexes a request; a long one off the event loop."""
        context = RequestContext(
            limits_of(self._backends.target.describe),
            self._backends.tokenizer,
            self._plan_defaults(),
            self._random_bytes,
        )

        def work() -> Prepared:
            return prepare(parse_request(message, request_id, context))

        size = num_prompt_chars(message.messages, message.prompt) + len(message.token_ids)
        if size <= _OFFLOAD_CHARS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(None, work)

    def _check_room(self, request_id: str) -> None:
        if self._draining:
            raise Unavailable("the coordinator is shutting down: ask another one")
        if request_id in self._running or request_id in self._admitting:
            raise AlreadyExists(
                f"request {request_id!r} is running; attaching to it is not supported yet",
                field="request_id",
            )
        if not self._backends.target.is_connected:
            raise Unavailable("no target is connected", retry_after_seconds=_RETRY_SECONDS)
        num_held = len(self._running) + len(self._admitting)
        if num_held >= self._config.max_running:
            raise Busy(
                f"{num_held} requests are running, at most {self._config.max_running}",
                retry_after_seconds=_RETRY_SECONDS,
            )

    def _plan_defaults(self) -> PlanDefaults:
        """k and v: as configured, else the drafter's block; never more rows than the target takes."""
        k, v = self._config.num_draft_tokens, self._config.verify_block_size
        drafter = self._backends.drafter.describe if self._backends.drafter is not None else None
        if k is None:
            k = drafter.block_size - 1 if drafter is not None and drafter.block_size else 0
            k = max(k or _DEFAULT_DRAFT_TOKENS, (v or 1) - 1)
        most_rows = limits_of(self._backends.target.describe).max_verify_block_size
        k = min(k, most_rows - 1)
        return PlanDefaults(k, min(v or k + 1, k + 1), SOURCES[self._config.source])

    def _on_end(self, generation: Generation) -> None:
        self._running.pop(generation.request.request_id, None)
