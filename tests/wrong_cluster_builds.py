"""Wrong builds of what keeps tenants and strangers apart. See `wrong_builds`."""

from __future__ import annotations

import pytest

from coordinator import slots
from deploy.child import Child, Ready
from deploy.cluster import autoscale
from deploy.cluster.controller import Controller
from deploy.cluster.host import HostStatus, ServiceHost
from deploy.cluster.plan import Actor
from protos import logs, tokens
from target_service.engine_thread import EngineThread
from target_service.prefix_cache import PrefixCache
from tests.wrong_builds import WrongBuild


def _pages_of_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrefixCache, "_start", lambda _self, _salt: None)


def _turns_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "QUANTUM_TOKENS", 1e9)


def _any_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def tenant_of(self: tokens.TokenTable, token: str) -> str | None:
        return next(iter(self.tenants.values())) if token else None

    monkeypatch.setattr(tokens.TokenTable, "tenant_of", tenant_of)


def _tracebacks_with_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    right = logs.format_exception
    monkeypatch.setattr(logs, "format_exception", lambda info, _record_text: right(info, True))


def _told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def register(self: Controller, actor: Actor, status: HostStatus) -> None:
        self.members[actor.name].status = status

    monkeypatch.setattr(Controller, "register", register)


def _ended_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    async def until_unused(_self: Controller, _addresses: set[str]) -> None:
        return

    monkeypatch.setattr(Controller, "_until_unused", until_unused)


def _forgetful_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    async def recover(_self: Controller) -> None:
        return

    monkeypatch.setattr(Controller, "recover", recover)


def _to_and_fro(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoscale, "SLACK", 2.0)


def _one_coordinator_swaps(monkeypatch: pytest.MonkeyPatch) -> None:
    async def announce(self: Controller) -> None:
        wanted = self.endpoints()
        for member in self.of("coordinator")[:1]:
            if member.status.address and member.told != wanted:
                await self._tell(member, wanted)

    monkeypatch.setattr(Controller, "announce", announce)


def _alive_if_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineThread, "stuck_seconds", lambda _self: 0.0)


def _registers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ServiceHost._start

    async def start(self: ServiceHost, before: Ready | None) -> tuple[Child, Ready]:
        if before is not None:
            monkeypatch.setattr(self, "_on_ready", _tell_nobody)
        return await right(self, before)

    monkeypatch.setattr(ServiceHost, "_start", start)


async def _tell_nobody(_status: HostStatus) -> None:
    return


CLUSTER_BUILDS: dict[str, WrongBuild] = {
    "pages-of-everybody": WrongBuild(
        says="a tenant finds the pages of another, and learns by the time what that one has asked",
        apply=_pages_of_everybody,
        check="tests/test_prefix_cache.py::test_another_salt_finds_nothing_and_forks_nothing",
    ),
    "turns-without-end": WrongBuild(
        says="a tenant's turn ends only with its queue",
        apply=_turns_without_end,
        check="tests/test_tenants.py::test_a_flood_waits_behind_itself",
    ),
    "any-token-will-do": WrongBuild(
        says="a token is looked for, but not compared",
        apply=_any_token,
        check="tests/test_security.py::test_only_a_known_token_has_a_tenant",
    ),
    "tracebacks-with-messages": WrongBuild(
        says="a traceback in the log quotes what the exception says, and with it a prompt",
        apply=_tracebacks_with_messages,
        check="tests/test_logs.py::test_a_traceback_withholds_what_the_exception_says",
    ),
    "coordinators-told-once": WrongBuild(
        says="a coordinator that starts again keeps the replicas that its flags named, which may be gone",
        apply=_told_once,
        check="tests/test_cluster_controller.py::test_a_coordinator_that_starts_again_is_told_again",
    ),
    "ended-under-load": WrongBuild(
        says="a replica that leaves is ended while coordinators still use it",
        apply=_ended_under_load,
        check="tests/test_cluster_controller.py::test_a_replica_that_leaves_ends_when_nobody_uses_it",
    ),
    "forgetful-controller": WrongBuild(
        says="a controller that starts again knows none of its actors, and makes them all once more",
        apply=_forgetful_controller,
        check="tests/test_cluster_controller.py::test_a_controller_that_starts_again_takes_up_what_is_there",
    ),
    "to-and-fro": WrongBuild(
        says="drafters are taken away at a load that calls for them",
        apply=_to_and_fro,
        check="tests/test_autoscale.py::test_a_decision_is_not_taken_back_under_the_same_load",
    ),
    "one-coordinator-swaps": WrongBuild(
        says="of several coordinators one alone is told of other drafters",
        apply=_one_coordinator_swaps,
        check="tests/test_cluster_swap.py::test_better_drafters_stay",
    ),
    "alive-if-it-answers": WrongBuild(
        says="a target whose step hangs is alive for its supervisor, because its event loop answers",
        apply=_alive_if_it_answers,
        check="tests/test_liveness.py::test_an_engines_step_that_does_not_end_is_seen",
    ),
    "registers-once": WrongBuild(
        says="a service that is started again is not registered again",
        apply=_registers_once,
        check="tests/test_cluster_host.py::test_a_killed_service_registers_again_at_its_address",
    ),
}
