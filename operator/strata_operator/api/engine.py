"""``spec.engine``: the engine's settings, by their flags' names in camelCase."""

from __future__ import annotations

from dataclasses import dataclass

from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.fields import Fields

BLOCK_SIZES = (16, 32)
TOOL_PARSERS = ("auto", "none", "harmony", "qwen-xml", "hermes", "mistral", "llama")
REASONING_PARSERS = ("auto", "none", "harmony", "think")
EXPERT_PLACEMENTS = ("auto", "vram", "fetch", "cpu", "hybrid")
PREDICTORS = ("auto", "off", "gate", "history")
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Engine:
    """None leaves the engine's own default. Each field is a flag of ``strata serve`` (``render.arguments``)."""

    max_model_len: int | None = None  # tokens, prompt and output of one request
    max_num_seqs: int | None = None  # sequences decoded together
    max_num_batched_tokens: int | None = None  # tokens of one engine step
    decode_latency_ms: int | None = None  # what a step may take while sequences decode; 0: prompts' chunks are whole
    prefix_cache: bool | None = None
    block_size: int | None = None  # tokens of one KV block
    num_kv_tokens: int | None = None  # tokens that the KV cache holds
    gpu_memory_utilization: str | None = None  # decimal share of the GPU's memory, as text: floats do not round-trip
    max_waiting: int | None = None  # requests that may queue
    expert_placement: str | None = None  # what serves the experts that VRAM has not
    expert_vram_gib: int | None = None  # of the card's memory for routed experts; the others are in host memory
    load_stall_seconds: int | None = None  # without progress of loading, before the engine ends as failed
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    log_level: str | None = None
    pipeline_depth: int | None = None  # requests of the card to the CPU that may be under way together
    cpu_routing_threads: int | None = None  # that may choose experts for a step, if a trial says so; 0: the card does
    prefetch: str | None = None  # who guesses which experts are fetched ahead
    prefetch_probability: str | None = None  # decimal, as text: from which on "history" fetches an expert ahead
    extra_args: tuple[str, ...] = ()

    @classmethod
    def parse(cls, fields: Fields) -> Engine:
        """Raises InvalidSpecError for a value that no engine takes."""
        prefetch = fields.table("prefetch")
        # Its one value is the engine's own choice, for which no flag is needed.
        fields.choice("cpuExperts", ("auto",), "auto")
        block_size = fields.get("blockSize", int)
        if block_size is not None and block_size not in BLOCK_SIZES:
            raise InvalidSpecError(f"spec.engine.blockSize is {block_size}; allowed are 16 and 32")
        return cls(
            max_model_len=fields.get("maxModelLen", int),
            max_num_seqs=fields.get("maxNumSeqs", int),
            max_num_batched_tokens=fields.get("maxNumBatchedTokens", int),
            decode_latency_ms=fields.get("decodeLatencyMs", int),
            prefix_cache=fields.flag("prefixCache"),
            block_size=block_size,
            num_kv_tokens=fields.get("numKvTokens", int),
            gpu_memory_utilization=fields.decimal("gpuMemoryUtilization", 0.1, 1.0),
            max_waiting=fields.get("maxWaiting", int),
            expert_placement=fields.choice_or_none("expertPlacement", EXPERT_PLACEMENTS),
            expert_vram_gib=fields.get("expertVramGiB", int),
            load_stall_seconds=fields.get("loadStallSeconds", int),
            tool_call_parser=fields.choice_or_none("toolCallParser", TOOL_PARSERS),
            reasoning_parser=fields.choice_or_none("reasoningParser", REASONING_PARSERS),
            log_level=fields.choice_or_none("logLevel", LOG_LEVELS),
            pipeline_depth=fields.get("pipelineDepth", int),
            cpu_routing_threads=fields.get("cpuRoutingThreads", int),
            prefetch=prefetch.choice_or_none("predictor", PREDICTORS),
            prefetch_probability=prefetch.decimal("probability", 0.0, 1.0),
            extra_args=fields.texts("extraArgs"),
        )
