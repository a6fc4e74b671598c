"""The coordinator itself, without a network in front: admission, running requests, what it serves."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable
from pathlib import PurePath

from coordinator.admission import Admissions, body_digest
from coordinator.bounds import limits_of
from coordinator.choice import Choice
from coordinator.cohorts import Cohorts
from coordinator.config import CoordinatorConfig
from coordinator.generation import Generation, Prepared, prepare
from coordinator.metrics import Metrics
from coordinator.offload import beside_the_loop
from coordinator.pair import Epochs, services_of
from coordinator.planning import PlanDefaults, PlanWishes, plan_defaults, read_plan, require_mode
from coordinator.prompt import num_prompt_chars, read_prompt
from coordinator.request import Request, RequestContext, parse_request
from coordinator.server_info import server_info
from coordinator.services import Backends, RoundLimits, Setting
from coordinator.session_memory import SessionMemory
from coordinator.sizes import refuse_oversized
from coordinator.slots import Demand, Slots
from coordinator.spans import Spans, choice_name
from coordinator.target_pool import TargetPool
from coordinator.tenants import NOBODY, Quotas, scoped
from coordinator.tools import read_tools
from coordinator.trace.feed import RoundFeed
from coordinator.tuner_gauges import TunerGauges
from coordinator.turns import Turn
from protos import coordinator_pb2
from protos.coordinator_pb2 import ProposalSource
from protos.errors import DliteError, Unavailable

_RETRY_SECONDS = 1.0
# What an answer is taken to cost when tenants take turns: most end long before their limit.
_LIKELY_TOKENS = 512

# Sources as they are written in flags and files.
SOURCES: dict[str, ProposalSource] = {
    "auto": coordinator_pb2.PROPOSAL_SOURCE_AUTO,
    "drafter": coordinator_pb2.PROPOSAL_SOURCE_DRAFTER,
    "lookup": coordinator_pb2.PROPOSAL_SOURCE_LOOKUP,
    "lookup_then_drafter": coordinator_pb2.PROPOSAL_SOURCE_LOOKUP_THEN_DRAFTER,
}


class Coordinator:
    """Admits requests and knows those that run."""

    def __init__(
        self,
        config: CoordinatorConfig,
        coordinator_id: str,
        backends: Backends,
        epoch_start: int,
        random_bytes: Callable[[int], bytes] = os.urandom,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._coordinator_id = coordinator_id
        self._backends = backends
        self.feed, epochs = RoundFeed(), Epochs(epoch_start)
        backends.targets.bind(
            lambda target: services_of(
                target, backends.drafter, epochs, self.feed, now, max_cohorts=config.max_cohorts
            )
        )
        targets, limits = TargetPool(backends.targets, now), RoundLimits.of(config)
        self._setting = Setting(targets, limits, backends.tokenizer, config.max_queued_deltas, now)
        self._random_bytes = random_bytes
        self._slots = Slots(config.max_running, config.max_waiting, backends.tenants.limits_of)
        backends.targets.watch(self._fit_slots)
        self._quotas = Quotas(backends.tenants)
        self._admissions = Admissions()
        self._memory = SessionMemory(config.session_memory_bytes)
        self._draining = False
        # Whoever writes spans of texts that end; set before the first request.
        self.spans: Spans | None = None
        describe = backends.targets.describe
        self.metrics = Metrics(PurePath(describe.model).name, limits_of(describe).max_verify_block_size - 1)
        self.metrics.registry.register(TunerGauges(self.metrics.model, backends.targets.decisions))

    @property
    def cohorts(self) -> Cohorts:
        """Of the target with the most texts."""
        return self._backends.targets.busiest().services.cohorts

    @property
    def num_running(self) -> int:
        return len(self._admissions.running)

    @property
    def load(self) -> Slots:
        """Texts that run, requests that wait."""
        return self._slots

    @property
    def is_ready(self) -> bool:
        """Whether a request would be taken."""
        return self._backends.targets.is_connected and not self._draining

    async def admit(self, message: coordinator_pb2.GenerateRequest, tenant: str = NOBODY) -> Generation:
        """Validates a request and starts it, or finds the one that runs under the same id.

        The caller attaches to it before anything else.

        Raises:
            InvalidRequest, TooLarge: naming the field.
            AlreadyExists: a request of this id runs with another body.
            Busy, Unavailable: try again later.
        """
        request_id = message.request_id or uuid.uuid4().hex
        try:
            if self._draining:
                raise Unavailable("the coordinator is shutting down: ask another one")
            refuse_oversized(message)
            return await self._admissions.join(
                scoped(tenant, request_id),
                body_digest(message),
                lambda: self._admit(message, request_id, tenant),
            )
        except DliteError as error:
            self.metrics.note_refused(error.reason)
            raise

    def abort(self, request_id: str, tenant: str = NOBODY) -> bool:
        """Aborts a request, also one that still waits; False when the tenant has none of this id."""
        return self._admissions.abort(scoped(tenant, request_id))

    def set_speculation(self, message: coordinator_pb2.SetSpeculationRequest, tenant: str = NOBODY) -> bool:
        """Changes how a running request speculates, from its next round on; its text stays the same
        (in rejection mode its law). False when there is none of this id.

        Raises:
            InvalidRequest: naming the field; the mode belongs to another law.
        """
        generation = self._admissions.find(scoped(tenant, message.request_id))
        if generation is None:
            return False
        mode = generation.request.params.mode
        require_mode(message.speculation, mode)
        most_rows = limits_of(self._backends.targets.describe).max_verify_block_size
        generation.set_plan(read_plan(message.speculation, mode, self._plan_defaults(), most_rows))
        return True

    # What generations tell.

    def on_finished(self, generation: Generation, choice: Choice) -> None:
        """See `Listener`."""
        assert choice.finished is not None
        self.metrics.observe(choice.finished, generation.seconds)
        self.feed.note_text(choice.finished)
        if self.spans is not None:
            name = choice_name(generation.request.request_id, choice.index)
            self.spans.end_text(name, choice.finished, generation.seconds)
        request, tokens = generation.request, choice.session.tokens
        usage = choice.finished.usage
        self._quotas.note_tokens(request.tenant, usage.prompt_tokens + usage.completion_tokens)
        if request.session.is_kept and len(tokens) > request.num_prompt_tokens:
            turn = Turn.of(request.session.chat_text, tokens, request.num_prompt_tokens)
            self._memory.remember(request.session.session_id, turn)

    def on_end(self, generation: Generation) -> None:
        """See `Listener`."""
        self._admissions.forget(generation)

    async def tokenize(self, message: coordinator_pb2.TokenizeRequest) -> tuple[int, ...]:
        refuse_oversized(message)

        def work() -> tuple[int, ...]:
            tools = read_tools(message.tools_json, "")
            return read_prompt(message, self._backends.tokenizer, (), tools).token_ids

        return await beside_the_loop(num_prompt_chars(message), work)

    def models(self) -> coordinator_pb2.ListModelsResponse:
        describe, limits = self._backends.targets.describe, limits_of(self._backends.targets.describe)
        model = coordinator_pb2.ModelInfo(
            id=describe.model, fingerprint=describe.fingerprint, max_context=limits.max_length
        )
        return coordinator_pb2.ListModelsResponse(models=[model])

    def info(self) -> coordinator_pb2.GetServerInfoResponse:
        return server_info(self._coordinator_id, self._backends, self._plan_defaults(), self._slots)

    async def drain(self, grace_seconds: float) -> None:
        """Refuses new requests, lets those that are there end, aborts what is left."""
        self._draining = True
        generations = self._admissions.running
        running = [asyncio.ensure_future(item.wait_ended()) for item in generations]
        if running:
            await asyncio.wait(running, timeout=grace_seconds)
        for generation in self._admissions.running:
            generation.abort(Unavailable("the coordinator is shutting down: resume at another one"))
        if running:
            await asyncio.wait(running)

    def _fit_slots(self) -> None:
        """So many texts as the targets that serve may have together, or one of them while there is none."""
        self._slots.scale(max(self._backends.targets.num_serving, 1))

    async def _admit(
        self, message: coordinator_pb2.GenerateRequest, request_id: str, tenant: str
    ) -> Generation:
        arrived = time.monotonic()
        if not self._backends.targets.is_connected:
            raise Unavailable("no target is connected", retry_after_seconds=_RETRY_SECONDS)
        num_texts = max(message.n, 1)
        self._quotas.admit(tenant)
        self._slots.require_room(num_texts, tenant)
        prepared = await self._prepare(message, request_id, arrived, tenant)
        place = self._slots.enter(num_texts, self._demand(prepared.request, num_texts))
        return Generation(prepared, self._setting, place, self)

    def _demand(self, request: Request, num_texts: int) -> Demand:
        num_tokens = request.num_prompt_tokens + request.params.max_tokens
        num_pages = -(-num_tokens // max(self._backends.targets.describe.page_size, 1))
        cost = request.num_prompt_tokens + min(request.params.max_tokens, _LIKELY_TOKENS)
        return Demand(request.tenant, num_texts * num_pages, num_texts * cost)

    async def _prepare(
        self, message: coordinator_pb2.GenerateRequest, request_id: str, arrived: float, tenant: str
    ) -> Prepared:
        """Validates and indexes a request; a long one off the event loop."""
        context = RequestContext(
            limits_of(self._backends.targets.describe),
            self._backends.tokenizer,
            self._plan_defaults(),
            self._random_bytes,
            self._memory.turns(scoped(tenant, message.session_id)),
            tenant,
        )

        def work() -> Prepared:
            return prepare(parse_request(message, request_id, context), arrived)

        return await beside_the_loop(num_prompt_chars(message) + len(message.token_ids), work)

    def _plan_defaults(self) -> PlanDefaults:
        config, drafter = self._config, self._backends.drafter
        block = drafter.describe.block_size if drafter is not None and drafter.describe else 0
        wanted = PlanWishes(config.num_draft_tokens, config.verify_block_size, SOURCES[config.source])
        return plan_defaults(wanted, block, limits_of(self._backends.targets.describe).max_verify_block_size)
