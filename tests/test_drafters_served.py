"""Several drafters behind real gRPC: one dies in mid-round; a swap by the command, and its way back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from coordinator.coordinator import SOURCES
from coordinator.hedging import HedgeBudget
from coordinator.replicas_remote import RemoteOperator, list_replicas
from deploy.cli import run as dlite
from protos import coordinator_pb2 as pb
from protos import draft_pb2
from tests.coordinator_fakes import TableEngine, counting
from tests.coordinator_harness import DraftServer, describe_drafter, request, serve_drafter, until
from tests.test_coordinator_server import stack, wrong_from

FIXED: dict[str, Any] = {"source": SOURCES["drafter"], "k": 4, "v": 5}


def server(engine: TableEngine, name: str, num_right: int) -> DraftServer:
    found = DraftServer(wrong_from(engine, num_right))
    found.describe = describe_drafter(fingerprint=name * 64)
    return found


async def test_a_drafter_that_dies_in_mid_round_costs_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing is asked twice for being slow: what the drafter held when it died has to move.
    monkeypatch.setattr(HedgeBudget, "take", lambda _self: False)
    engine = TableEngine(counting)
    held: list[draft_pb2.ProposeItem] = []
    dying, other = server(engine, "d", 3), server(engine, "o", 3)
    answer_of = dying._propose

    def propose(item: draft_pb2.ProposeItem) -> draft_pb2.Proposal | None:
        """Answers a few questions, then holds one for ever."""
        if item.round < 5:
            return answer_of(item)
        held.append(item)
        return None

    dying._propose = propose
    async with (
        serve_drafter(other) as there,
        serve_drafter(dying) as here,
        stack(engine, draft_address=f"{here},{there}") as (client, running, _),
    ):
        drafters = running.replicas.drafters
        await until(lambda: all(replica.is_connected for replica in drafters.links.values()))
        texts = [asyncio.create_task(client.complete(request(max_tokens=150, **FIXED))) for _ in range(2)]
        # Two texts at once: some question comes to each of the two.
        await until(lambda: bool(held))
        dying.outbox.close()
        for text in texts:
            assert (await text).token_ids == list(range(150))
        listed = await list_replicas(running.address)
        sums = {each.fingerprint[:1]: each.num_rounds for each in listed.drafts}
        assert sums["o"] > 20
        assert drafters.num_moved >= 1


@asynccontextmanager
async def loaded(engine: TableEngine, old: str) -> AsyncIterator[str]:
    """A coordinator whose texts never end, each of which must be the target's; its address."""
    is_over = False

    async with stack(engine, draft_address=old) as (client, running, _):

        async def traffic() -> None:
            while not is_over:
                answer = await client.complete(request(max_tokens=150, **FIXED))
                assert answer.token_ids == list(range(150))

        load = [asyncio.create_task(traffic()) for _ in range(2)]
        try:
            yield running.address
        finally:
            is_over = True
            await asyncio.gather(*load)


async def drafters_of(address: str) -> list[str]:
    """Those that are to stay."""
    listed = await RemoteOperator(address).list_replicas()
    there = [each for each in listed.replicas if each.kind == pb.REPLICA_KIND_DRAFTER]
    return [each.address for each in there if each.state != pb.REPLICA_STATE_DRAINING]


def exit_code_of(argv: list[str]) -> int | str | None:
    """Of the command line."""
    with pytest.raises(SystemExit) as ended:
        dlite(argv)
    return ended.value.code


@pytest.mark.parametrize(("num_right", "code"), [(3, 0), (0, 1)], ids=["as good", "useless"])
async def test_swap_drafter_under_load(num_right: int, code: int, capfd: pytest.CaptureFixture[str]) -> None:
    engine = TableEngine(counting)
    async with (
        serve_drafter(server(engine, "o", 3)) as old,
        serve_drafter(server(engine, "n", num_right)) as new,
        loaded(engine, old) as address,
    ):
        argv = ["swap-drafter", "--address", address, "--draft-address", new, "--rounds", "40", "--json"]
        assert await asyncio.to_thread(exit_code_of, argv) == code
        document = json.loads(capfd.readouterr().out)
        assert document["is_kept"] is (code == 0), document
        # Of a useless drafter nobody ever sees what comes behind the first position.
        assert document["num_positions"] == (4 if num_right else 1)
        assert document["accept_length_before"] == pytest.approx(4.0 if num_right else 2.0, abs=0.2)
        assert document["accept_length_after"] == pytest.approx(1.0 + num_right, abs=0.2)
        assert await drafters_of(address) == [new if code == 0 else old]
