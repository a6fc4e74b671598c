"""Errors to gRPC statuses and back: the one place that knows both."""

from __future__ import annotations

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from protos import errors

ERROR_DOMAIN = "dlite"

_STATUS_CODES: dict[type[errors.DliteError], int] = {
    errors.InvalidRequest: code_pb2.INVALID_ARGUMENT,
    errors.TooLarge: code_pb2.RESOURCE_EXHAUSTED,
    errors.ContractMismatch: code_pb2.FAILED_PRECONDITION,
    errors.StaleRound: code_pb2.ABORTED,
    errors.OutOfPages: code_pb2.RESOURCE_EXHAUSTED,
    errors.Busy: code_pb2.RESOURCE_EXHAUSTED,
    errors.Unavailable: code_pb2.UNAVAILABLE,
    errors.Unauthenticated: code_pb2.UNAUTHENTICATED,
    errors.Forbidden: code_pb2.PERMISSION_DENIED,
    errors.TimedOut: code_pb2.DEADLINE_EXCEEDED,
    errors.NotFound: code_pb2.NOT_FOUND,
    errors.AlreadyExists: code_pb2.ALREADY_EXISTS,
}
_BY_REASON = {kind.reason: kind for kind in _STATUS_CODES}
# What a code means when no reason of ours comes with it; gRPC itself says RESOURCE_EXHAUSTED of sizes.
_BY_CODE = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidRequest,
    grpc.StatusCode.FAILED_PRECONDITION: errors.ContractMismatch,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.TooLarge,
    grpc.StatusCode.UNAVAILABLE: errors.Unavailable,
    grpc.StatusCode.UNAUTHENTICATED: errors.Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: errors.Forbidden,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.TimedOut,
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.ALREADY_EXISTS: errors.AlreadyExists,
    grpc.StatusCode.ABORTED: errors.StaleRound,
}


def to_status(error: errors.DliteError) -> status_pb2.Status:
    """The rich gRPC status of an error: code, ErrorInfo, the field at fault, when to retry."""
    details: list[Message] = [
        error_details_pb2.ErrorInfo(reason=error.reason, domain=ERROR_DOMAIN, metadata={"field": error.field})
    ]
    if error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_seconds is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(int(error.retry_after_seconds * 1000))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(code=_STATUS_CODES.get(type(error), code_pb2.INTERNAL), message=str(error))
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


def error_from(call_error: grpc.RpcError) -> errors.DliteError:
    """The error of a failed call as seen by a client: the inverse of `to_status`, as far as the
    status tells."""
    code = getattr(call_error, "code", lambda: None)()
    text = getattr(call_error, "details", lambda: None)() or ""
    kind = _BY_CODE.get(code, errors.DliteError) if code is not None else errors.DliteError
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    retry_after: float | None = None
    for detail in _details(call_error):
        if detail.Unpack(info):
            kind = _BY_REASON.get(info.reason, kind)
        elif detail.Unpack(retry):
            retry_after = retry.retry_delay.ToMilliseconds() / 1000
    message = f"{text} ({code.name if code is not None else 'no status'})"
    return kind(message, field=info.metadata.get("field", ""), retry_after_seconds=retry_after)


def _details(call_error: grpc.RpcError) -> list[any_pb2.Any]:
    """The details of a rich status; none when the status has none, or is not one of ours."""
    try:
        status = rpc_status.from_call(call_error)  # type: ignore[no-untyped-call]
    except (ValueError, AttributeError):
        return []
    return list(status.details) if status is not None else []
