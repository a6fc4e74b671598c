from protos import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ProposeBatch(_message.Message):
    __slots__ = ("stamp", "hello", "items", "end")
    STAMP_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    stamp: _common_pb2.Stamp
    hello: _common_pb2.Hello
    items: ProposeList
    end: _common_pb2.End
    def __init__(self, stamp: _Optional[_Union[_common_pb2.Stamp, _Mapping]] = ..., hello: _Optional[_Union[_common_pb2.Hello, _Mapping]] = ..., items: _Optional[_Union[ProposeList, _Mapping]] = ..., end: _Optional[_Union[_common_pb2.End, _Mapping]] = ...) -> None: ...

class ProposeList(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[ProposeItem]
    def __init__(self, items: _Optional[_Iterable[_Union[ProposeItem, _Mapping]]] = ...) -> None: ...

class ProposeItem(_message.Message):
    __slots__ = ("request_id", "epoch", "round", "recent_tokens", "features", "position", "k", "sampling_key", "mode", "temperature", "time_left_ms", "max_law_entries")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    RECENT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_KEY_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TIME_LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_LAW_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    epoch: int
    round: int
    recent_tokens: _containers.RepeatedScalarFieldContainer[int]
    features: _common_pb2.Tensor
    position: int
    k: int
    sampling_key: bytes
    mode: _common_pb2.Mode
    temperature: float
    time_left_ms: int
    max_law_entries: int
    def __init__(self, request_id: _Optional[str] = ..., epoch: _Optional[int] = ..., round: _Optional[int] = ..., recent_tokens: _Optional[_Iterable[int]] = ..., features: _Optional[_Union[_common_pb2.Tensor, _Mapping]] = ..., position: _Optional[int] = ..., k: _Optional[int] = ..., sampling_key: _Optional[bytes] = ..., mode: _Optional[_Union[_common_pb2.Mode, str]] = ..., temperature: _Optional[float] = ..., time_left_ms: _Optional[int] = ..., max_law_entries: _Optional[int] = ...) -> None: ...

class ProposalBatch(_message.Message):
    __slots__ = ("stamp", "welcome", "proposals", "end")
    STAMP_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    stamp: _common_pb2.Stamp
    welcome: _common_pb2.Welcome
    proposals: ProposalList
    end: _common_pb2.End
    def __init__(self, stamp: _Optional[_Union[_common_pb2.Stamp, _Mapping]] = ..., welcome: _Optional[_Union[_common_pb2.Welcome, _Mapping]] = ..., proposals: _Optional[_Union[ProposalList, _Mapping]] = ..., end: _Optional[_Union[_common_pb2.End, _Mapping]] = ...) -> None: ...

class ProposalList(_message.Message):
    __slots__ = ("proposals",)
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    proposals: _containers.RepeatedCompositeFieldContainer[Proposal]
    def __init__(self, proposals: _Optional[_Iterable[_Union[Proposal, _Mapping]]] = ...) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("request_id", "epoch", "round", "tokens", "probabilities", "law", "timing", "refusal")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    LAW_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    epoch: int
    round: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    probabilities: _containers.RepeatedScalarFieldContainer[float]
    law: _containers.RepeatedCompositeFieldContainer[_common_pb2.TruncatedLaw]
    timing: _common_pb2.Timing
    refusal: DraftRefusal
    def __init__(self, request_id: _Optional[str] = ..., epoch: _Optional[int] = ..., round: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., probabilities: _Optional[_Iterable[float]] = ..., law: _Optional[_Iterable[_Union[_common_pb2.TruncatedLaw, _Mapping]]] = ..., timing: _Optional[_Union[_common_pb2.Timing, _Mapping]] = ..., refusal: _Optional[_Union[DraftRefusal, _Mapping]] = ...) -> None: ...

class DraftRefusal(_message.Message):
    __slots__ = ("field", "message")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    field: str
    message: str
    def __init__(self, field: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...
