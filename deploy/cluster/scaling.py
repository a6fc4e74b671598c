"""Watches the drafters' load and keeps as many of them as it needs."""

from __future__ import annotations

import asyncio
import logging

from deploy.cluster.autoscale import Sample, wanted_drafters
from deploy.cluster.controller import Controller
from protos.errors import DliteError

log = logging.getLogger("dlite.cluster")
IDLE_SECONDS = 5.0


class Autoscaler:
    """Looks again and again while the description asks for it.

    Args:
        start_seconds: how long new drafters may take until they serve.
    """

    def __init__(self, controller: Controller, start_seconds: float = 600.0) -> None:
        self._controller = controller
        self._start_seconds = start_seconds
        self._samples: list[Sample] = []

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            draft = self._controller.spec.draft
            spec = draft.autoscale if draft is not None else None
            await asyncio.sleep(IDLE_SECONDS if spec is None else spec.interval_seconds)
            if spec is not None:
                await self.look()

    async def look(self) -> None:
        """Takes one sample, and changes the number of drafters if it is time to."""
        draft = self._controller.spec.draft
        if draft is None or draft.autoscale is None:
            return
        drafters = self._controller.of("draft")
        self._samples.append(await self._sample({member.status.address for member in drafters} - {""}))
        del self._samples[: -draft.autoscale.num_samples]
        wanted = wanted_drafters(self._samples, draft.autoscale, len(drafters))
        if wanted == len(drafters):
            return
        log.warning("drafters: %d become %d", len(drafters), wanted)
        try:
            changes = await self._controller.scale("draft", wanted)
            await self._controller.wait_serving(changes.created, self._start_seconds)
        except DliteError as error:
            log.warning("scaling drafters: %s", error.message)
        self._samples.clear()

    async def _sample(self, addresses: set[str]) -> Sample:
        """Outstanding rounds of each drafter, those of all coordinators together."""
        loads = dict.fromkeys(sorted(addresses), 0)
        for found in (await self._controller.seen()).values():
            for each in found.replicas:
                if each.address in loads:
                    loads[each.address] += each.num_running
        return Sample(tuple(loads.values()))
