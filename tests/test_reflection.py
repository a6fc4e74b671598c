"""What a tool that knows nothing but the port can do: list, describe, call, check health."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from coordinator.startup import start_coordinator
from tests.coordinator_fakes import TableEngine, counting
from tests.coordinator_harness import make_config, serve_target

NAME = "dlite.v1.Coordinator"


def explore(address: str) -> dict[str, Any]:
    """Calls the service by what it tells of itself, with none of our stubs."""
    with grpc.insecure_channel(address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool = DescriptorPool(database)
        service = pool.FindServiceByName(NAME)
        generate = service.methods_by_name["Generate"]
        request_type, response_type = (
            GetMessageClass(generate.input_type),
            GetMessageClass(generate.output_type),
        )
        call = channel.unary_stream(f"/{NAME}/Generate", response_deserializer=response_type.FromString)
        request: Any = request_type(token_ids=[1, 2, 3], max_tokens=5, temperature=0.0)
        tokens = [token for part in call(request.SerializeToString()) for token in part.delta.token_ids]
        health = health_pb2_grpc.HealthStub(channel)
        return {
            "services": list(database.get_services()),
            "methods": sorted(service.methods_by_name),
            "tokens": tokens,
            "statuses": [
                health.Check(health_pb2.HealthCheckRequest(service=name)).status for name in ("", NAME)
            ],
        }


async def test_the_port_tells_of_itself() -> None:
    async with serve_target(TableEngine(counting)) as (target, _):
        running = await start_coordinator(make_config(target_address=target))
        found = await asyncio.to_thread(explore, running.address)
        await running.stop()
    assert set(found["services"]) == {
        NAME,
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    assert found["methods"] == [
        *("Abort", "ExplainTuner", "Generate", "GetServerInfo", "GetStats", "ListModels"),
        *("ListReplicas", "SetReplicas", "SetSpeculation", "Tokenize", "WatchRounds"),
    ]
    assert found["tokens"] == list(range(5))
    assert found["statuses"] == [health_pb2.HealthCheckResponse.SERVING] * 2
