from protos import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SpeculationMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPECULATION_MODE_AUTO: _ClassVar[SpeculationMode]
    SPECULATION_MODE_OFF: _ClassVar[SpeculationMode]
    SPECULATION_MODE_COUPLED: _ClassVar[SpeculationMode]
    SPECULATION_MODE_REJECTION: _ClassVar[SpeculationMode]
    SPECULATION_MODE_MATCH: _ClassVar[SpeculationMode]

class ProposalSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROPOSAL_SOURCE_AUTO: _ClassVar[ProposalSource]
    PROPOSAL_SOURCE_DRAFTER: _ClassVar[ProposalSource]
    PROPOSAL_SOURCE_LOOKUP: _ClassVar[ProposalSource]
    PROPOSAL_SOURCE_LOOKUP_THEN_DRAFTER: _ClassVar[ProposalSource]

class ReplicaKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPLICA_KIND_UNSPECIFIED: _ClassVar[ReplicaKind]
    REPLICA_KIND_TARGET: _ClassVar[ReplicaKind]
    REPLICA_KIND_DRAFTER: _ClassVar[ReplicaKind]

class ReplicaState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPLICA_STATE_UNSPECIFIED: _ClassVar[ReplicaState]
    REPLICA_STATE_CONNECTING: _ClassVar[ReplicaState]
    REPLICA_STATE_SERVING: _ClassVar[ReplicaState]
    REPLICA_STATE_REFUSED: _ClassVar[ReplicaState]
    REPLICA_STATE_DRAINING: _ClassVar[ReplicaState]
    REPLICA_STATE_LOST: _ClassVar[ReplicaState]
SPECULATION_MODE_AUTO: SpeculationMode
SPECULATION_MODE_OFF: SpeculationMode
SPECULATION_MODE_COUPLED: SpeculationMode
SPECULATION_MODE_REJECTION: SpeculationMode
SPECULATION_MODE_MATCH: SpeculationMode
PROPOSAL_SOURCE_AUTO: ProposalSource
PROPOSAL_SOURCE_DRAFTER: ProposalSource
PROPOSAL_SOURCE_LOOKUP: ProposalSource
PROPOSAL_SOURCE_LOOKUP_THEN_DRAFTER: ProposalSource
REPLICA_KIND_UNSPECIFIED: ReplicaKind
REPLICA_KIND_TARGET: ReplicaKind
REPLICA_KIND_DRAFTER: ReplicaKind
REPLICA_STATE_UNSPECIFIED: ReplicaState
REPLICA_STATE_CONNECTING: ReplicaState
REPLICA_STATE_SERVING: ReplicaState
REPLICA_STATE_REFUSED: ReplicaState
REPLICA_STATE_DRAINING: ReplicaState
REPLICA_STATE_LOST: ReplicaState

class ChatMessage(_message.Message):
    __slots__ = ("role", "content", "tool_calls", "tool_call_id")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    tool_call_id: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., tool_call_id: _Optional[str] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("id", "name", "arguments_json", "index")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    arguments_json: str
    index: int
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., arguments_json: _Optional[str] = ..., index: _Optional[int] = ...) -> None: ...

class Speculation(_message.Message):
    __slots__ = ("mode", "source", "num_draft_tokens", "verify_block_size")
    MODE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    mode: SpeculationMode
    source: ProposalSource
    num_draft_tokens: int
    verify_block_size: int
    def __init__(self, mode: _Optional[_Union[SpeculationMode, str]] = ..., source: _Optional[_Union[ProposalSource, str]] = ..., num_draft_tokens: _Optional[int] = ..., verify_block_size: _Optional[int] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("token_ids", "sampling_key", "prompt_token_ids")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_KEY_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling_key: bytes
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., sampling_key: _Optional[bytes] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "model", "prompt", "token_ids", "messages", "tools_json", "tool_choice", "response_format", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "allowed_token_ids", "bad_words", "min_tokens", "max_tokens", "ignore_eos", "logprobs", "top_logprobs", "prompt_logprobs", "n", "seed", "stop", "stop_token_ids", "session_id", "speculation", "resume")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOOLS_JSON_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FORMAT_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    prompt: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    tools_json: str
    tool_choice: str
    response_format: _common_pb2.ResponseFormat
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bad_words: _containers.RepeatedScalarFieldContainer[str]
    min_tokens: int
    max_tokens: int
    ignore_eos: bool
    logprobs: bool
    top_logprobs: int
    prompt_logprobs: bool
    n: int
    seed: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    session_id: str
    speculation: Speculation
    resume: Resume
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., prompt: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., tools_json: _Optional[str] = ..., tool_choice: _Optional[str] = ..., response_format: _Optional[_Union[_common_pb2.ResponseFormat, _Mapping]] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., bad_words: _Optional[_Iterable[str]] = ..., min_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., ignore_eos: _Optional[bool] = ..., logprobs: _Optional[bool] = ..., top_logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[bool] = ..., n: _Optional[int] = ..., seed: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., session_id: _Optional[str] = ..., speculation: _Optional[_Union[Speculation, _Mapping]] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("started", "delta", "finished")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    started: Started
    delta: Delta
    finished: Finished
    def __init__(self, started: _Optional[_Union[Started, _Mapping]] = ..., delta: _Optional[_Union[Delta, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("request_id", "sampling_key", "num_prompt_tokens", "prompt_logprobs", "choice_sampling_keys", "prompt_token_ids")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_KEY_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CHOICE_SAMPLING_KEYS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    sampling_key: bytes
    num_prompt_tokens: int
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.PositionLogprobs]
    choice_sampling_keys: _containers.RepeatedScalarFieldContainer[bytes]
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_id: _Optional[str] = ..., sampling_key: _Optional[bytes] = ..., num_prompt_tokens: _Optional[int] = ..., prompt_logprobs: _Optional[_Iterable[_Union[_common_pb2.PositionLogprobs, _Mapping]]] = ..., choice_sampling_keys: _Optional[_Iterable[bytes]] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("index", "first_token_index", "token_ids", "text", "logprobs", "tool_calls")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    index: int
    first_token_index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.PositionLogprobs]
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    def __init__(self, index: _Optional[int] = ..., first_token_index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., logprobs: _Optional[_Iterable[_Union[_common_pb2.PositionLogprobs, _Mapping]]] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("index", "finish_reason", "usage", "ledger", "stop_string", "stop_token_id", "error")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    index: int
    finish_reason: _common_pb2.FinishReason
    usage: Usage
    ledger: Ledger
    stop_string: str
    stop_token_id: int
    error: str
    def __init__(self, index: _Optional[int] = ..., finish_reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., ledger: _Optional[_Union[Ledger, _Mapping]] = ..., stop_string: _Optional[str] = ..., stop_token_id: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "cached_tokens", "completion_tokens", "drafted_tokens", "verified_tokens", "accepted_tokens", "recomputed_tokens", "queue_ms", "prefill_ms", "decode_ms")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_MS_FIELD_NUMBER: _ClassVar[int]
    DECODE_MS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    drafted_tokens: int
    verified_tokens: int
    accepted_tokens: int
    recomputed_tokens: int
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    def __init__(self, prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., drafted_tokens: _Optional[int] = ..., verified_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ..., recomputed_tokens: _Optional[int] = ..., queue_ms: _Optional[float] = ..., prefill_ms: _Optional[float] = ..., decode_ms: _Optional[float] = ...) -> None: ...

class Ledger(_message.Message):
    __slots__ = ("num_rounds", "num_draft_rounds", "num_lookup_rounds", "num_run_tokens", "draft_ms", "verify_ms", "network_ms", "scheduling_ms", "draft_bytes", "target_bytes", "feature_bytes", "accept_length", "acceptance_rate", "accepted_histogram", "verified_per_position", "accepted_per_position", "accept_lengths", "num_reopens", "num_undrafted_rounds", "near_tie_possible", "num_forced_rounds")
    NUM_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOOKUP_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    NUM_RUN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_MS_FIELD_NUMBER: _ClassVar[int]
    NETWORK_MS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULING_MS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_BYTES_FIELD_NUMBER: _ClassVar[int]
    TARGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    FEATURE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_RATE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_HISTOGRAM_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_PER_POSITION_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_PER_POSITION_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    NUM_REOPENS_FIELD_NUMBER: _ClassVar[int]
    NUM_UNDRAFTED_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    NEAR_TIE_POSSIBLE_FIELD_NUMBER: _ClassVar[int]
    NUM_FORCED_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    num_rounds: int
    num_draft_rounds: int
    num_lookup_rounds: int
    num_run_tokens: int
    draft_ms: float
    verify_ms: float
    network_ms: float
    scheduling_ms: float
    draft_bytes: int
    target_bytes: int
    feature_bytes: int
    accept_length: float
    acceptance_rate: float
    accepted_histogram: _containers.RepeatedScalarFieldContainer[int]
    verified_per_position: _containers.RepeatedScalarFieldContainer[int]
    accepted_per_position: _containers.RepeatedScalarFieldContainer[int]
    accept_lengths: _containers.RepeatedScalarFieldContainer[int]
    num_reopens: int
    num_undrafted_rounds: int
    near_tie_possible: bool
    num_forced_rounds: int
    def __init__(self, num_rounds: _Optional[int] = ..., num_draft_rounds: _Optional[int] = ..., num_lookup_rounds: _Optional[int] = ..., num_run_tokens: _Optional[int] = ..., draft_ms: _Optional[float] = ..., verify_ms: _Optional[float] = ..., network_ms: _Optional[float] = ..., scheduling_ms: _Optional[float] = ..., draft_bytes: _Optional[int] = ..., target_bytes: _Optional[int] = ..., feature_bytes: _Optional[int] = ..., accept_length: _Optional[float] = ..., acceptance_rate: _Optional[float] = ..., accepted_histogram: _Optional[_Iterable[int]] = ..., verified_per_position: _Optional[_Iterable[int]] = ..., accepted_per_position: _Optional[_Iterable[int]] = ..., accept_lengths: _Optional[_Iterable[int]] = ..., num_reopens: _Optional[int] = ..., num_undrafted_rounds: _Optional[int] = ..., near_tie_possible: _Optional[bool] = ..., num_forced_rounds: _Optional[int] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ("found",)
    FOUND_FIELD_NUMBER: _ClassVar[int]
    found: bool
    def __init__(self, found: _Optional[bool] = ...) -> None: ...

class SetSpeculationRequest(_message.Message):
    __slots__ = ("request_id", "speculation")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    speculation: Speculation
    def __init__(self, request_id: _Optional[str] = ..., speculation: _Optional[_Union[Speculation, _Mapping]] = ...) -> None: ...

class SetSpeculationResponse(_message.Message):
    __slots__ = ("found",)
    FOUND_FIELD_NUMBER: _ClassVar[int]
    found: bool
    def __init__(self, found: _Optional[bool] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelInfo]
    def __init__(self, models: _Optional[_Iterable[_Union[ModelInfo, _Mapping]]] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("id", "fingerprint", "max_context")
    ID_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    id: str
    fingerprint: str
    max_context: int
    def __init__(self, id: _Optional[str] = ..., fingerprint: _Optional[str] = ..., max_context: _Optional[int] = ...) -> None: ...

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerInfoResponse(_message.Message):
    __slots__ = ("version", "coordinator_id", "protocol", "target", "drafter", "drafter_connected", "num_running", "default_num_draft_tokens", "default_verify_block_size", "warnings", "num_waiting")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_CONNECTED_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_VERIFY_BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    version: str
    coordinator_id: str
    protocol: _common_pb2.Protocol
    target: _common_pb2.Describe
    drafter: _common_pb2.Describe
    drafter_connected: bool
    num_running: int
    default_num_draft_tokens: int
    default_verify_block_size: int
    warnings: _containers.RepeatedScalarFieldContainer[str]
    num_waiting: int
    def __init__(self, version: _Optional[str] = ..., coordinator_id: _Optional[str] = ..., protocol: _Optional[_Union[_common_pb2.Protocol, _Mapping]] = ..., target: _Optional[_Union[_common_pb2.Describe, _Mapping]] = ..., drafter: _Optional[_Union[_common_pb2.Describe, _Mapping]] = ..., drafter_connected: _Optional[bool] = ..., num_running: _Optional[int] = ..., default_num_draft_tokens: _Optional[int] = ..., default_verify_block_size: _Optional[int] = ..., warnings: _Optional[_Iterable[str]] = ..., num_waiting: _Optional[int] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("prompt", "messages", "tools_json")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOOLS_JSON_FIELD_NUMBER: _ClassVar[int]
    prompt: str
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    tools_json: str
    def __init__(self, prompt: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., tools_json: _Optional[str] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("model", "seconds", "num_running", "num_waiting", "num_texts", "num_failed", "prompt_tokens", "cached_tokens", "rounds", "links", "kv", "num_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_TEXTS_FIELD_NUMBER: _ClassVar[int]
    NUM_FAILED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    KV_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    seconds: float
    num_running: int
    num_waiting: int
    num_texts: int
    num_failed: int
    prompt_tokens: int
    cached_tokens: int
    rounds: _containers.RepeatedCompositeFieldContainer[RoundSums]
    links: _containers.RepeatedCompositeFieldContainer[LinkStats]
    kv: KvStats
    num_tokens: int
    def __init__(self, model: _Optional[str] = ..., seconds: _Optional[float] = ..., num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., num_texts: _Optional[int] = ..., num_failed: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., rounds: _Optional[_Iterable[_Union[RoundSums, _Mapping]]] = ..., links: _Optional[_Iterable[_Union[LinkStats, _Mapping]]] = ..., kv: _Optional[_Union[KvStats, _Mapping]] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class RoundSums(_message.Message):
    __slots__ = ("source", "num_rounds", "num_tokens", "num_drafted", "num_verified", "num_accepted", "draft_seconds", "verify_seconds", "target_network_seconds", "draft_network_seconds", "queue_seconds", "scheduling_seconds", "num_rounds_by_cohorts")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    NUM_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTED_FIELD_NUMBER: _ClassVar[int]
    NUM_VERIFIED_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DRAFT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TARGET_NETWORK_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_NETWORK_SECONDS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_ROUNDS_BY_COHORTS_FIELD_NUMBER: _ClassVar[int]
    source: str
    num_rounds: int
    num_tokens: int
    num_drafted: int
    num_verified: int
    num_accepted: int
    draft_seconds: float
    verify_seconds: float
    target_network_seconds: float
    draft_network_seconds: float
    queue_seconds: float
    scheduling_seconds: float
    num_rounds_by_cohorts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, source: _Optional[str] = ..., num_rounds: _Optional[int] = ..., num_tokens: _Optional[int] = ..., num_drafted: _Optional[int] = ..., num_verified: _Optional[int] = ..., num_accepted: _Optional[int] = ..., draft_seconds: _Optional[float] = ..., verify_seconds: _Optional[float] = ..., target_network_seconds: _Optional[float] = ..., draft_network_seconds: _Optional[float] = ..., queue_seconds: _Optional[float] = ..., scheduling_seconds: _Optional[float] = ..., num_rounds_by_cohorts: _Optional[_Iterable[int]] = ...) -> None: ...

class LinkStats(_message.Message):
    __slots__ = ("name", "is_connected", "rtt_seconds", "num_lost", "num_stale", "rtt_p99_seconds", "jitter_seconds", "bytes_per_second", "address")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IS_CONNECTED_FIELD_NUMBER: _ClassVar[int]
    RTT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOST_FIELD_NUMBER: _ClassVar[int]
    NUM_STALE_FIELD_NUMBER: _ClassVar[int]
    RTT_P99_SECONDS_FIELD_NUMBER: _ClassVar[int]
    JITTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    is_connected: bool
    rtt_seconds: float
    num_lost: int
    num_stale: int
    rtt_p99_seconds: float
    jitter_seconds: float
    bytes_per_second: float
    address: str
    def __init__(self, name: _Optional[str] = ..., is_connected: _Optional[bool] = ..., rtt_seconds: _Optional[float] = ..., num_lost: _Optional[int] = ..., num_stale: _Optional[int] = ..., rtt_p99_seconds: _Optional[float] = ..., jitter_seconds: _Optional[float] = ..., bytes_per_second: _Optional[float] = ..., address: _Optional[str] = ...) -> None: ...

class KvStats(_message.Message):
    __slots__ = ("pages_held", "pages_cached", "num_pages")
    PAGES_HELD_FIELD_NUMBER: _ClassVar[int]
    PAGES_CACHED_FIELD_NUMBER: _ClassVar[int]
    NUM_PAGES_FIELD_NUMBER: _ClassVar[int]
    pages_held: int
    pages_cached: int
    num_pages: int
    def __init__(self, pages_held: _Optional[int] = ..., pages_cached: _Optional[int] = ..., num_pages: _Optional[int] = ...) -> None: ...

class WatchRoundsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchRoundsResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class ExplainTunerRequest(_message.Message):
    __slots__ = ("target_address",)
    TARGET_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    target_address: str
    def __init__(self, target_address: _Optional[str] = ...) -> None: ...

class ExplainTunerResponse(_message.Message):
    __slots__ = ("has_plan", "num_requests", "acceptance", "sizes", "chosen_sizes", "num_cohorts", "tokens_per_second", "is_kept", "target_address")
    HAS_PLAN_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_SIZES_FIELD_NUMBER: _ClassVar[int]
    NUM_COHORTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    IS_KEPT_FIELD_NUMBER: _ClassVar[int]
    TARGET_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    has_plan: bool
    num_requests: int
    acceptance: _containers.RepeatedScalarFieldContainer[float]
    sizes: _containers.RepeatedCompositeFieldContainer[TunedSize]
    chosen_sizes: _containers.RepeatedScalarFieldContainer[int]
    num_cohorts: int
    tokens_per_second: float
    is_kept: bool
    target_address: str
    def __init__(self, has_plan: _Optional[bool] = ..., num_requests: _Optional[int] = ..., acceptance: _Optional[_Iterable[float]] = ..., sizes: _Optional[_Iterable[_Union[TunedSize, _Mapping]]] = ..., chosen_sizes: _Optional[_Iterable[int]] = ..., num_cohorts: _Optional[int] = ..., tokens_per_second: _Optional[float] = ..., is_kept: _Optional[bool] = ..., target_address: _Optional[str] = ...) -> None: ...

class TunedSize(_message.Message):
    __slots__ = ("block_size", "num_cohorts", "predicted", "measured")
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_COHORTS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    block_size: int
    num_cohorts: int
    predicted: float
    measured: float
    def __init__(self, block_size: _Optional[int] = ..., num_cohorts: _Optional[int] = ..., predicted: _Optional[float] = ..., measured: _Optional[float] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("kind", "address", "state", "num_running", "fingerprint", "num_served", "num_lost", "last_error")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    NUM_SERVED_FIELD_NUMBER: _ClassVar[int]
    NUM_LOST_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    kind: ReplicaKind
    address: str
    state: ReplicaState
    num_running: int
    fingerprint: str
    num_served: int
    num_lost: int
    last_error: str
    def __init__(self, kind: _Optional[_Union[ReplicaKind, str]] = ..., address: _Optional[str] = ..., state: _Optional[_Union[ReplicaState, str]] = ..., num_running: _Optional[int] = ..., fingerprint: _Optional[str] = ..., num_served: _Optional[int] = ..., num_lost: _Optional[int] = ..., last_error: _Optional[str] = ...) -> None: ...

class DraftSums(_message.Message):
    __slots__ = ("fingerprint", "num_rounds", "num_proposed", "num_verified", "num_accepted", "num_tokens", "reached_per_position", "accepted_per_position")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    NUM_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROPOSED_FIELD_NUMBER: _ClassVar[int]
    NUM_VERIFIED_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REACHED_PER_POSITION_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_PER_POSITION_FIELD_NUMBER: _ClassVar[int]
    fingerprint: str
    num_rounds: int
    num_proposed: int
    num_verified: int
    num_accepted: int
    num_tokens: int
    reached_per_position: _containers.RepeatedScalarFieldContainer[int]
    accepted_per_position: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, fingerprint: _Optional[str] = ..., num_rounds: _Optional[int] = ..., num_proposed: _Optional[int] = ..., num_verified: _Optional[int] = ..., num_accepted: _Optional[int] = ..., num_tokens: _Optional[int] = ..., reached_per_position: _Optional[_Iterable[int]] = ..., accepted_per_position: _Optional[_Iterable[int]] = ...) -> None: ...

class ListReplicasRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListReplicasResponse(_message.Message):
    __slots__ = ("replicas", "drafts")
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    drafts: _containers.RepeatedCompositeFieldContainer[DraftSums]
    def __init__(self, replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., drafts: _Optional[_Iterable[_Union[DraftSums, _Mapping]]] = ...) -> None: ...

class SetReplicasRequest(_message.Message):
    __slots__ = ("target_addresses", "draft_addresses", "keep_drafters")
    TARGET_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    DRAFT_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    KEEP_DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    target_addresses: _containers.RepeatedScalarFieldContainer[str]
    draft_addresses: _containers.RepeatedScalarFieldContainer[str]
    keep_drafters: bool
    def __init__(self, target_addresses: _Optional[_Iterable[str]] = ..., draft_addresses: _Optional[_Iterable[str]] = ..., keep_drafters: _Optional[bool] = ...) -> None: ...

class SetReplicasResponse(_message.Message):
    __slots__ = ("replicas",)
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    def __init__(self, replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ...) -> None: ...
