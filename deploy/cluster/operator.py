"""Speaks to coordinators over gRPC as their operator."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.replicas_remote import list_replicas, set_replicas
from deploy.cluster.spec import OperatorFiles
from protos import coordinator_pb2 as pb
from protos.security import Endpoint, SecurityFiles


class GrpcOperator:
    """The `Operator` of a controller.

    Raises:
        InvalidRequest: a file cannot be used.
    """

    def __init__(self, files: OperatorFiles) -> None:
        pem = SecurityFiles(files.tls_cert, files.tls_key, files.tls_ca, token_file=files.token_file)
        self._security = pem.client()

    async def set_replicas(self, address: str, targets: Sequence[str], drafts: Sequence[str]) -> None:
        """The whole lists. Raises DliteError."""
        await set_replicas(Endpoint(address, self._security), targets, drafts)

    async def list_replicas(self, address: str) -> pb.ListReplicasResponse:
        """Raises DliteError."""
        return await list_replicas(Endpoint(address, self._security))
