"""`dlite probe`: what a supervisor, a container's health check or a kubelet asks."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.node_files import services_here
from protos import flags

if TYPE_CHECKING:
    from protos.security import ClientSecurity

PROBE_SECONDS = 5.0


class Question(StrEnum):
    """What is asked; see `protos.liveness`."""

    live = "live"
    ready = "ready"


def probe(
    question: Annotated[Question, typer.Argument(help="live: it gets on with its work; ready: it can serve")],
    address: Annotated[
        list[str] | None, typer.Argument(help="services; without any: those that Ray has put on this machine")
    ] = None,
    tls_ca: flags.CallerCa = None,
    tls_cert: flags.CallerCert = None,
    tls_key: flags.CallerKey = None,
) -> None:
    """Exit code 0 if every service is so, else 1.

    A service of this machine that refuses a connection is alive: its actor starts it again. One that is
    silent, or says that it hangs, is not.
    """
    import asyncio

    from protos.security import SecurityFiles

    security = SecurityFiles(tls_cert, tls_key, tls_ca).client()
    asked = {each: each for each in address} if address else services_here()
    answers = asyncio.run(_ask_all(asked, question, security))
    may_refuse = question is Question.live and not address
    bad = [
        name for name, said in answers.items() if said != "serving" and not (may_refuse and said == "refused")
    ]
    for name in bad:
        print(f"{name}: {answers[name]}", file=sys.stderr)
    raise typer.Exit(1 if bad else 0)


async def _ask_all(asked: dict[str, str], question: Question, security: ClientSecurity) -> dict[str, str]:
    import asyncio

    answers = await asyncio.gather(*(_ask(address, question, security) for address in asked.values()))
    return dict(zip(asked, answers, strict=True))


async def _ask(address: str, question: Question, security: ClientSecurity) -> str:
    """serving, "not serving", silent or refused."""
    import grpc
    from grpc_health.v1 import health_pb2

    from protos import rpc
    from protos.security import Endpoint

    if not address:
        return "refused"  # it starts
    service = rpc.LIVENESS if question is Question.live else ""
    request = health_pb2.HealthCheckRequest(service=service).SerializeToString()
    async with rpc.open_channel(Endpoint(address, security)) as channel:
        check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        try:
            answer = health_pb2.HealthCheckResponse.FromString(await check(request, timeout=PROBE_SECONDS))
        except grpc.aio.AioRpcError as error:
            return "silent" if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED else "refused"
    return "serving" if answer.status == health_pb2.HealthCheckResponse.SERVING else "not serving"
