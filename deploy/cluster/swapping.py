"""Other drafter weights in a cluster under load: new actors beside the old ones, compared, one set ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coordinator.swap_job import Swap, SwapOptions, describe_result
from deploy.cluster.controller import Controller
from deploy.cluster.members import Member
from deploy.cluster.plan import replica
from deploy.cluster.spec import ClusterSpec
from protos import coordinator_pb2 as pb
from protos.errors import InvalidRequest, Unavailable


class AllCoordinators:
    """The coordinators of a cluster as one, to a `Swap`.

    Drafters are known by their actors, so one that starts again at another port in the middle stays what it
    is.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._names: dict[str, str] = {}

    async def list_replicas(self) -> pb.ListReplicasResponse:
        """Of all that answer. Raises Unavailable when none does."""
        seen = list((await self._controller.seen()).values())
        if not seen:
            raise Unavailable("no coordinator answers")
        # A drafter serves when it serves everywhere.
        replicas: dict[str, pb.Replica] = {}
        for each in (each for found in seen for each in found.replicas):
            if each.address not in replicas or each.state != pb.REPLICA_STATE_SERVING:
                replicas[each.address] = each
        return pb.ListReplicasResponse(
            replicas=replicas.values(), drafts=[each for found in seen for each in found.drafts]
        )

    async def set_drafters(self, addresses: Sequence[str]) -> None:
        """Says which of the cluster's drafters are used, everywhere."""
        drafters = self._controller.of("draft")
        self._names.update({member.status.address: member.actor.name for member in drafters})
        used = {self._names[address] for address in addresses if address in self._names}
        for member in drafters:
            member.is_used = member.actor.name in used
        await self._controller.announce()


async def swap_drafters(
    controller: Controller,
    spec: ClusterSpec,
    options: SwapOptions,
    tell: Callable[[str], None],
    start_seconds: float = 600.0,
) -> dict[str, Any]:
    """Replaces the drafters by those of a description, or leaves them if those accept less.

    Args:
        spec: its `draft` part alone counts.
        start_seconds: how long the new ones may take until they serve.

    Returns:
        What `dlite swap-drafter --json` prints.

    Raises:
        InvalidRequest: the description has no drafter, or the one that runs.
        TimedOut: the new ones do not serve in time, or too few rounds came; nothing was changed.
    """
    async with controller.change("a swap of drafters"):
        old = controller.of("draft")
        if spec.draft is None:
            raise InvalidRequest("the file has no drafter", field="draft")
        if all(member.actor.does == replica(spec, "draft", 0).does for member in old):
            raise InvalidRequest("the drafters run what the file says already", field="draft")
        wanted = controller.spec.model_copy(update={"draft": spec.draft})
        actors = controller.new(wanted, "draft", len(old) or spec.draft.replicas)
        new = [actor.name for actor in actors]
        for actor in actors:
            await controller.add(actor, is_used=False)
        is_kept = False
        try:
            tell(f"starting {' '.join(new)}")
            await controller.wait_serving(new, start_seconds)
            addresses = [controller.members[name].status.address for name in new]
            result = await Swap(AllCoordinators(controller), options, tell).run(addresses)
            is_kept = result.is_kept
            return describe_result(result)
        finally:
            await _settle(controller, wanted, old, new, is_kept)


async def _settle(
    controller: Controller, wanted: ClusterSpec, old: Sequence[Member], new: Sequence[str], is_kept: bool
) -> None:
    """Ends the drafters that are not used any more."""
    made = [controller.members[name] for name in new if name in controller.members]
    for member in old:
        member.is_used = not is_kept
    for member in made:
        member.is_used = is_kept
    if is_kept:
        await controller.remember(wanted)
    await controller.leave(list(old) if is_kept else made)
