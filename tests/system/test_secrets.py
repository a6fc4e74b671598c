"""Three real processes behind mutual TLS and tokens: who may call, and what their logs tell (CLUSTER)."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from coordinator.client import AsyncClient
from deploy.certs import make_certificates
from deploy.local import LocalStack, StackOptions, local_stack
from protos import common_pb2
from protos import coordinator_pb2 as pb
from protos.errors import InvalidRequest, Unauthenticated, Unavailable
from protos.security import ClientSecurity, Endpoint, SecurityFiles
from protos.tokens import draw_token, token_hash
from tests.coordinator_fakes import tokenizer_files
from tests.fakes import GOLDEN

SECRET = "my secret is xyzzy-4711"
DRAFT = GOLDEN / "draft_trained_g1"


def make_model(folder: Path) -> Path:
    """The golden target with a tokenizer of bytes."""
    shutil.copytree(GOLDEN / "target_qwen3", folder)
    for name, data in tokenizer_files().items():
        (folder / name).write_bytes(data)
    return folder


def make_options(folder: Path, tokens: dict[str, str]) -> StackOptions:
    make_certificates(folder, ["target", "draft", "coordinator", "client"], [])
    for service, token in tokens.items():
        entries = [{"sha256": token_hash(token), "tenant": "team-a"}]
        (folder / f"{service}-tokens.yaml").write_text(yaml.safe_dump({"tokens": entries}))
        (folder / f"{service}-token").write_text(token)

    def flags(service: str, table: str) -> tuple[str, ...]:
        return (
            *("--tls-cert", str(folder / f"{service}.pem"), "--tls-key", str(folder / f"{service}-key.pem")),
            *("--tls-ca", str(folder / "ca.pem"), "--auth-tokens", str(folder / f"{table}-tokens.yaml")),
            *("--log-format", "json"),
        )

    return StackOptions(
        target=make_model(folder / "model"),
        drafter=DRAFT,
        target_flags=("--tapped-layers", "0,1,4,5", *flags("target", "inner")),
        draft_flags=flags("draft", "inner"),
        coordinator_flags=(
            *flags("coordinator", "outer"),
            *("--token-file", str(folder / "inner-token"), "--source", "drafter"),
        ),
    )


def request(**fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(prompt=SECRET, max_tokens=40, temperature=0.0, ignore_eos=True, **fields)


async def use(stack: LocalStack, security: ClientSecurity) -> None:
    """Good requests, and some that fail in every way that comes to mind."""
    async with AsyncClient(Endpoint(stack.coordinator.address, security)) as client:
        answer = await client.complete(request())
        assert len(answer.token_ids) == 40
        assert answer.finished.ledger.num_draft_rounds > 0
        bad = [
            request(model=SECRET),
            request(stop=[SECRET] * 500),
            request(response_format=common_pb2.ResponseFormat(regex=f"({SECRET}")),
            request(tools_json=f'[{{"{SECRET}"'),
        ]
        for message in bad:
            with pytest.raises(InvalidRequest):
                await client.complete(message)
        stream = client.generate(request(request_id="r1"))
        await anext(stream)
        assert stack.draft is not None
        os.kill(stack.draft.pid, signal.SIGKILL)
        async for _ in stream:
            pass
        left = client.generate(request(request_id="r2"))
        await anext(left)
        await left.aclose()


async def test_nobody_without_certificate_and_token_and_no_secret_in_any_log(tmp_path: Path) -> None:
    tokens = {"inner": draw_token(), "outer": draw_token()}
    options = make_options(tmp_path, tokens)
    lines: list[str] = []
    async with local_stack(options, lines.append, verbose=True) as stack:
        files = SecurityFiles(tmp_path / "client.pem", tmp_path / "client-key.pem", tmp_path / "ca.pem")
        good = ClientSecurity(files.client().ca, files.client().identity, tokens["outer"])
        refused = [
            (ClientSecurity(), Unavailable),
            (ClientSecurity(good.ca, None, good.token), Unavailable),
            (ClientSecurity(good.ca, good.identity), Unauthenticated),
            (ClientSecurity(good.ca, good.identity, tokens["inner"]), Unauthenticated),
        ]
        for security, kind in refused:
            async with AsyncClient(Endpoint(stack.coordinator.address, security)) as client:
                with pytest.raises(kind):
                    await client.server_info()
        async with asyncio.timeout(120):
            await use(stack, good)
    logged = [line.split(": ", 1)[1] for line in lines if line.split(": ", 1)[1].startswith("{")]
    assert {json.loads(line)["service"] for line in logged} >= {"coordinator"}
    whole = "\n".join(lines)
    for secret in (SECRET, "xyzzy", *tokens.values(), "PRIVATE KEY"):
        assert secret not in whole
