"""The faults, a few lines each; `fault_frame` does the rest."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from coordinator.client import AsyncClient
from deploy.bench.fault_frame import Fault, Scene
from deploy.bench.fault_watch import COMMON, DELAY, DROP, DUPLICATE, Meddling
from deploy.bench.fuzzing import Addresses, Fuzz
from protos import coordinator_pb2, rpc
from protos.common_pb2 import FINISH_REASON_ABORT, FINISH_REASON_UNSPECIFIED
from protos.errors import DliteError

KILL, STOP, TERM = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM
# Of all messages; each lost one costs its text the resend time.
SHARE = 0.05
TIMES = 2
GARBAGE_BYTES = 24 * 1024 * 1024
CANCELLING_CLIENTS = 8
NEVER = "never-read"
GENERATE = "/dlite.v1.Coordinator/Generate"
Strike = Callable[[Scene], Awaitable[int]]


def struck(number: signal.Signals, *names: str) -> Strike:
    """A signal to each of these processes, which the supervisor starts again."""

    async def strike(scene: Scene) -> int:
        return await scene.strike(number, *names)

    return strike


def meddled(action: str) -> Strike:
    """A share of all messages is dropped, delayed or sent twice, each kind of them some times."""

    async def strike(scene: Scene) -> int:
        return await scene.meddle(Meddling(action, SHARE), COMMON, TIMES)

    return strike


def coordinator_ends(number: signal.Signals) -> Strike:
    """The coordinator of every text ends; the clients know a second address."""

    async def strike(scene: Scene) -> int:
        landed = await scene.until_open("target-1")
        await scene.strike(number, "coordinator-1")
        return landed

    return strike


async def links_cut(scene: Scene) -> int:
    """Every stream breaks; the processes live on."""
    landed = await scene.until_open()
    for member in scene.fleet.members.values():
        if member.proxy is not None:
            member.proxy.cut()
    await scene.until_served()
    return landed


async def cancels(scene: Scene) -> int:
    """Other texts are left, or aborted, after a random while."""
    rng = random.Random(5)
    numbers = iter(range(scene.settings.num_cancels))
    await scene.until_open()
    before = sum(watch.num_closed_in_round for watch in scene.fleet.watches())
    prompt = scene.texts[0].prompt

    async def worker(client: AsyncClient) -> None:
        for number in numbers:
            request = coordinator_pb2.GenerateRequest(
                request_id=f"cancel-{number}", token_ids=prompt, max_tokens=200, ignore_eos=True
            )
            work = asyncio.create_task(client.complete(request))
            await asyncio.wait({work}, timeout=rng.uniform(0.0, 0.15))
            if rng.random() < 0.5:
                await client.abort(request.request_id)
            work.cancel()
            await asyncio.wait({work})

    async with AsyncClient(scene.fleet.coordinators[-1]) as client:
        await asyncio.gather(*(worker(client) for _ in range(CANCELLING_CLIENTS)))
    scene.details["cancels"] = scene.settings.num_cancels
    return sum(watch.num_closed_in_round for watch in scene.fleet.watches()) - before


async def garbage(scene: Scene) -> int:
    """Bytes beyond every limit, at each service itself."""
    landed = await scene.until_open()
    methods = {
        "coordinator": GENERATE,
        "target": "/dlite.v1.Target/Decode",
        "draft": "/dlite.v1.Draft/Propose",
    }
    data = bytes(range(256)) * (GARBAGE_BYTES // 256)
    for kind, method in methods.items():
        for member in scene.fleet.named(kind):
            options = [("grpc.max_send_message_length", -1)]
            async with grpc.aio.insecure_channel(member.ready.address, options=options) as channel:
                stream: Any = channel.stream_stream(method)
                _, code = await _rest(stream(iter([data])))
            if code is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise DliteError(f"{member.name} answers garbage with {code}")
    return landed


async def _rest(call: Any) -> tuple[list[bytes], grpc.StatusCode]:
    """What is still to be read of a call, and how it ends."""
    found = []
    try:
        while isinstance(data := await call.read(), bytes):
            found.append(data)
    except grpc.aio.AioRpcError:
        pass
    return found, await call.code()


async def never_reads(scene: Scene) -> int:
    """A client asks for much and reads nothing: it is cut off, and its pages are free."""
    options = [*rpc.CHANNEL_OPTIONS, ("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
    request = coordinator_pb2.GenerateRequest(
        request_id=NEVER,
        token_ids=scene.texts[0].prompt,
        max_tokens=400,
        n=8,
        ignore_eos=True,
        logprobs=True,
        top_logprobs=20,
    )
    watches = [watch for watch in scene.fleet.watches() if watch.is_target]
    async with grpc.aio.insecure_channel(scene.fleet.coordinators[0], options=options) as channel:
        method: Any = channel.unary_stream(GENERATE)
        call = method(request.SerializeToString())
        await scene.when(lambda: any(watch.knows(NEVER) for watch in watches))
        landed = await scene.until_open("target-1")
        await scene.when(lambda: not any(watch.knows(NEVER) for watch in watches))
        data, code = await _rest(call)
    finished = [coordinator_pb2.GenerateResponse.FromString(each).finished for each in data]
    if any(each.finish_reason not in (FINISH_REASON_UNSPECIFIED, FINISH_REASON_ABORT) for each in finished):
        raise DliteError("a client that never reads was served")
    scene.details["cut_off"] = code.name
    return landed


async def malformed(scene: Scene) -> int:
    """Hostile messages of every type at each service itself; only clean statuses come back."""
    members = [scene.fleet.named(kind)[0].ready.address for kind in ("coordinator", "target", "draft")]
    landed = await scene.until_open()
    fuzz = Fuzz(Addresses(*members))
    await fuzz.everything(scene.settings.num_malformed // 3)
    scene.details["statuses"] = {code.name: count for code, count in fuzz.codes.items()}
    if fuzz.faults:
        raise DliteError(f"{len(fuzz.faults)} messages were answered otherwise: {fuzz.faults[0]}")
    return landed


async def too_few_pages(scene: Scene) -> int:
    """Texts that together need ten times the pages there are: some are pre-empted and computed again."""
    watches = [watch for watch in scene.fleet.watches() if watch.is_target]
    # Not all texts are ever under way at once: there is no room for them.
    scene.struck_at = asyncio.get_running_loop().time()
    await scene.when(lambda: sum(watch.num_preempted_in_round for watch in watches) >= TIMES)
    return sum(watch.num_preempted_in_round for watch in watches)


def one_of_two(number: signal.Signals, kind: str) -> Strike:
    """One of two replicas; texts go on at the other before the first is back."""
    struck_one, other = f"{kind}-1", f"{kind}-2"

    async def strike(scene: Scene) -> int:
        landed = await scene.until_open(struck_one, other)
        restarts = scene.fleet.members[struck_one].num_restarts
        scene.fleet.signal((struck_one,), number)
        await scene.until_served(other)
        others_seconds = scene.seconds
        await scene.when(lambda: scene.fleet.members[struck_one].num_restarts > restarts)
        scene.details.update(other_seconds=others_seconds, restart_seconds=scene.seconds)
        return landed

    return strike


PAIR = (
    Fault("kill-drafter", "SIGKILL of the drafter", struck(KILL, "draft-1")),
    Fault("kill-target", "SIGKILL of the target", struck(KILL, "target-1")),
    Fault("kill-both", "SIGKILL of target and drafter", struck(KILL, "target-1", "draft-1")),
    Fault("stop-drafter", "SIGSTOP of the drafter", struck(STOP, "draft-1")),
    Fault("stop-target", "SIGSTOP of the target", struck(STOP, "target-1")),
    Fault("stop-both", "SIGSTOP of target and drafter", struck(STOP, "target-1", "draft-1")),
    Fault(
        "kill-coordinator", "SIGKILL of the coordinator, clients with two addresses", coordinator_ends(KILL)
    ),
    Fault("drain-coordinator", "SIGTERM of the coordinator under load", coordinator_ends(TERM)),
    Fault("drain-target", "SIGTERM of the target under load", struck(TERM, "target-1")),
    Fault("cut-links", "every stream breaks", links_cut),
    Fault("drop", "messages of every kind are lost", meddled(DROP)),
    Fault("delay", "messages of every kind come late, behind later ones", meddled(DELAY)),
    Fault("duplicate", "messages of every kind come twice", meddled(DUPLICATE)),
    Fault("cancels", "random cancels beside the texts", cancels),
    Fault("garbage", "24 MiB of garbage at each service", garbage),
    Fault("malformed", "hostile messages of every type", malformed),
    Fault("never-reads", "a client that never reads", never_reads),
)
FEW_PAGES = (Fault("few-pages", "a page pool of a tenth of the need", too_few_pages),)
REPLICAS = tuple(
    Fault(f"{verb}-one-{word}", f"{number.name} of one of two {word}s", one_of_two(number, kind))
    for word, kind in (("target", "target"), ("drafter", "draft"))
    for verb, number in (("kill", KILL), ("stop", STOP))
)
