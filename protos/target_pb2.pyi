from protos import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RefusalCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REFUSAL_CODE_UNSPECIFIED: _ClassVar[RefusalCode]
    REFUSAL_CODE_STALE_EPOCH: _ClassVar[RefusalCode]
    REFUSAL_CODE_OUT_OF_STEP: _ClassVar[RefusalCode]
    REFUSAL_CODE_INVALID_ARGUMENT: _ClassVar[RefusalCode]
    REFUSAL_CODE_RESOURCE_EXHAUSTED: _ClassVar[RefusalCode]
    REFUSAL_CODE_INTERNAL: _ClassVar[RefusalCode]
REFUSAL_CODE_UNSPECIFIED: RefusalCode
REFUSAL_CODE_STALE_EPOCH: RefusalCode
REFUSAL_CODE_OUT_OF_STEP: RefusalCode
REFUSAL_CODE_INVALID_ARGUMENT: RefusalCode
REFUSAL_CODE_RESOURCE_EXHAUSTED: RefusalCode
REFUSAL_CODE_INTERNAL: RefusalCode

class GetTokenizerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TokenizerChunk(_message.Message):
    __slots__ = ("name", "data", "last")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    name: str
    data: bytes
    last: bool
    def __init__(self, name: _Optional[str] = ..., data: _Optional[bytes] = ..., last: _Optional[bool] = ...) -> None: ...

class TargetCommand(_message.Message):
    __slots__ = ("stamp", "hello", "commands", "end")
    STAMP_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    stamp: _common_pb2.Stamp
    hello: _common_pb2.Hello
    commands: CommandList
    end: _common_pb2.End
    def __init__(self, stamp: _Optional[_Union[_common_pb2.Stamp, _Mapping]] = ..., hello: _Optional[_Union[_common_pb2.Hello, _Mapping]] = ..., commands: _Optional[_Union[CommandList, _Mapping]] = ..., end: _Optional[_Union[_common_pb2.End, _Mapping]] = ...) -> None: ...

class CommandList(_message.Message):
    __slots__ = ("commands",)
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    commands: _containers.RepeatedCompositeFieldContainer[Command]
    def __init__(self, commands: _Optional[_Iterable[_Union[Command, _Mapping]]] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("request_id", "epoch", "round", "open", "verify", "run", "hold", "close", "fetch")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    epoch: int
    round: int
    open: Open
    verify: Verify
    run: Run
    hold: Hold
    close: Close
    fetch: Fetch
    def __init__(self, request_id: _Optional[str] = ..., epoch: _Optional[int] = ..., round: _Optional[int] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., verify: _Optional[_Union[Verify, _Mapping]] = ..., run: _Optional[_Union[Run, _Mapping]] = ..., hold: _Optional[_Union[Hold, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., fetch: _Optional[_Union[Fetch, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("token_ids", "num_prompt_tokens", "sampling_key", "params", "grammar", "want_features", "part", "parts", "fork_of", "prefix_salt")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_KEY_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    WANT_FEATURES_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    FORK_OF_FIELD_NUMBER: _ClassVar[int]
    PREFIX_SALT_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_prompt_tokens: int
    sampling_key: bytes
    params: _common_pb2.SamplingParams
    grammar: _common_pb2.ResponseFormat
    want_features: bool
    part: int
    parts: int
    fork_of: str
    prefix_salt: bytes
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., num_prompt_tokens: _Optional[int] = ..., sampling_key: _Optional[bytes] = ..., params: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., grammar: _Optional[_Union[_common_pb2.ResponseFormat, _Mapping]] = ..., want_features: _Optional[bool] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ..., fork_of: _Optional[str] = ..., prefix_salt: _Optional[bytes] = ...) -> None: ...

class Verify(_message.Message):
    __slots__ = ("committed_length", "proposals", "law", "cohort", "want_features")
    COMMITTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    LAW_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    WANT_FEATURES_FIELD_NUMBER: _ClassVar[int]
    committed_length: int
    proposals: _containers.RepeatedScalarFieldContainer[int]
    law: _containers.RepeatedCompositeFieldContainer[_common_pb2.TruncatedLaw]
    cohort: int
    want_features: bool
    def __init__(self, committed_length: _Optional[int] = ..., proposals: _Optional[_Iterable[int]] = ..., law: _Optional[_Iterable[_Union[_common_pb2.TruncatedLaw, _Mapping]]] = ..., cohort: _Optional[int] = ..., want_features: _Optional[bool] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("max_tokens", "committed_length", "want_features")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    WANT_FEATURES_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    committed_length: int
    want_features: bool
    def __init__(self, max_tokens: _Optional[int] = ..., committed_length: _Optional[int] = ..., want_features: _Optional[bool] = ...) -> None: ...

class Hold(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Close(_message.Message):
    __slots__ = ("keep_length",)
    KEEP_LENGTH_FIELD_NUMBER: _ClassVar[int]
    keep_length: int
    def __init__(self, keep_length: _Optional[int] = ...) -> None: ...

class Fetch(_message.Message):
    __slots__ = ("committed_length",)
    COMMITTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    committed_length: int
    def __init__(self, committed_length: _Optional[int] = ...) -> None: ...

class TargetEvent(_message.Message):
    __slots__ = ("stamp", "welcome", "events", "end")
    STAMP_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    stamp: _common_pb2.Stamp
    welcome: _common_pb2.Welcome
    events: EventList
    end: _common_pb2.End
    def __init__(self, stamp: _Optional[_Union[_common_pb2.Stamp, _Mapping]] = ..., welcome: _Optional[_Union[_common_pb2.Welcome, _Mapping]] = ..., events: _Optional[_Union[EventList, _Mapping]] = ..., end: _Optional[_Union[_common_pb2.End, _Mapping]] = ...) -> None: ...

class EventList(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    def __init__(self, events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("verdict", "features", "progress", "preempted", "closed", "refused")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    verdict: Verdict
    features: Features
    progress: Progress
    preempted: Preempted
    closed: Closed
    refused: Refused
    def __init__(self, verdict: _Optional[_Union[Verdict, _Mapping]] = ..., features: _Optional[_Union[Features, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., preempted: _Optional[_Union[Preempted, _Mapping]] = ..., closed: _Optional[_Union[Closed, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("request_id", "epoch", "round", "committed_length", "tokens", "num_accepted", "done", "finish_reason", "logprobs", "forced_tokens", "timing", "cached_tokens", "recomputed_tokens", "prompt_logprobs", "num_verified")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FORCED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    NUM_VERIFIED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    epoch: int
    round: int
    committed_length: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    num_accepted: int
    done: bool
    finish_reason: _common_pb2.FinishReason
    logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.PositionLogprobs]
    forced_tokens: _containers.RepeatedScalarFieldContainer[int]
    timing: _common_pb2.Timing
    cached_tokens: int
    recomputed_tokens: int
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.PositionLogprobs]
    num_verified: int
    def __init__(self, request_id: _Optional[str] = ..., epoch: _Optional[int] = ..., round: _Optional[int] = ..., committed_length: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., num_accepted: _Optional[int] = ..., done: _Optional[bool] = ..., finish_reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., logprobs: _Optional[_Iterable[_Union[_common_pb2.PositionLogprobs, _Mapping]]] = ..., forced_tokens: _Optional[_Iterable[int]] = ..., timing: _Optional[_Union[_common_pb2.Timing, _Mapping]] = ..., cached_tokens: _Optional[int] = ..., recomputed_tokens: _Optional[int] = ..., prompt_logprobs: _Optional[_Iterable[_Union[_common_pb2.PositionLogprobs, _Mapping]]] = ..., num_verified: _Optional[int] = ...) -> None: ...

class Features(_message.Message):
    __slots__ = ("request_id", "epoch", "round", "part", "parts", "tensor")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    epoch: int
    round: int
    part: int
    parts: int
    tensor: _common_pb2.Tensor
    def __init__(self, request_id: _Optional[str] = ..., epoch: _Optional[int] = ..., round: _Optional[int] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ..., tensor: _Optional[_Union[_common_pb2.Tensor, _Mapping]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("step", "queued_rows", "pages_held", "pages_cached")
    STEP_FIELD_NUMBER: _ClassVar[int]
    QUEUED_ROWS_FIELD_NUMBER: _ClassVar[int]
    PAGES_HELD_FIELD_NUMBER: _ClassVar[int]
    PAGES_CACHED_FIELD_NUMBER: _ClassVar[int]
    step: int
    queued_rows: int
    pages_held: int
    pages_cached: int
    def __init__(self, step: _Optional[int] = ..., queued_rows: _Optional[int] = ..., pages_held: _Optional[int] = ..., pages_cached: _Optional[int] = ...) -> None: ...

class Preempted(_message.Message):
    __slots__ = ("request_id", "epoch")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    epoch: int
    def __init__(self, request_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class Closed(_message.Message):
    __slots__ = ("request_id", "epoch")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    epoch: int
    def __init__(self, request_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("request_id", "epoch", "round", "code", "field", "message", "held_epoch", "held_round", "held_committed_length")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HELD_EPOCH_FIELD_NUMBER: _ClassVar[int]
    HELD_ROUND_FIELD_NUMBER: _ClassVar[int]
    HELD_COMMITTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    epoch: int
    round: int
    code: RefusalCode
    field: str
    message: str
    held_epoch: int
    held_round: int
    held_committed_length: int
    def __init__(self, request_id: _Optional[str] = ..., epoch: _Optional[int] = ..., round: _Optional[int] = ..., code: _Optional[_Union[RefusalCode, str]] = ..., field: _Optional[str] = ..., message: _Optional[str] = ..., held_epoch: _Optional[int] = ..., held_round: _Optional[int] = ..., held_committed_length: _Optional[int] = ...) -> None: ...
