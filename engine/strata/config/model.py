"""The shape of a model: what its mathematics and its bytes follow from."""

from __future__ import annotations

from dataclasses import dataclass

from strata.config.ngram import NGramConfig
from strata.config.rope import RopeConfig


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """The routed experts of a Mixture-of-Experts model."""

    num_experts: int  # in each layer that has any
    num_experts_per_tok: int  # top-k
    intermediate_size: int  # of one expert
    shared_intermediate_size: int  # of the expert that every token passes; 0: there is none
    norm_topk_prob: bool  # the weights of a token's experts are divided by their sum
    router_bias: bool
    bias: bool  # the experts' own products have biases


@dataclass(frozen=True, slots=True)
class LinearAttentionConfig:
    """Gated DeltaNet (https://arxiv.org/abs/2412.06464): a state of fixed size in the place of keys and values."""

    num_key_heads: int
    num_value_heads: int  # several share a key head
    key_head_dim: int
    value_head_dim: int
    conv_kernel_size: int  # tokens that the convolution before the delta rule sees, its own included
    sigmoid_gate: bool = False  # what opens the output's gate; else silu

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values."""
        return 2 * self.num_key_heads * self.key_head_dim + self.num_value_heads * self.value_head_dim

    def ring_rows(self, max_draft: int) -> int:
        """Last tokens whose inputs a layer's state has: as many as the convolution sees, and, where steps run drafts of
        ``max_draft`` tokens, those that were right in one step and are taken in by the next, which writes its own."""
        return self.conv_kernel_size + 2 * max_draft

    def ring_bytes(self, max_draft: int, element_bytes: int) -> int:
        """Of these inputs: the convolution's, and with drafts the gates in float32."""
        gates = 2 * self.num_value_heads * 4 if max_draft else 0
        return self.ring_rows(max_draft) * (self.channels * element_bytes + gates)

    @property
    def recurrent_elements(self) -> int:
        """Of a layer's state, in float32: a matrix for each value head."""
        return self.num_value_heads * self.key_head_dim * self.value_head_dim


@dataclass(frozen=True, slots=True)
class HyperConnectionsConfig:
    """Several residual streams (https://arxiv.org/abs/2409.19606): what a block takes is mixed of all, and all take
    their share of what it gives."""

    num_streams: int
    rank: int  # of the gates that mix them


@dataclass(frozen=True, slots=True)
class IndexerConfig:
    """Which tokens attention reads: whole groups of neighbours, those whose mean key scores highest."""

    num_heads: int  # of queries; they share one key
    head_dim: int
    budget: int  # tokens of whole groups that a token attends to, at most
    group_size: int  # neighbouring tokens

    @property
    def num_groups(self) -> int:
        """Groups that a token attends to, at most."""
        return self.budget // self.group_size


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder-only transformer, in the field's own terms (Hugging Face ``config.json`` names)."""

    architecture: str  # first entry of "architectures", e.g. "LlamaForCausalLM"
    vocab_size: int
    hidden_size: int
    intermediate_size: int  # of layers without experts
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int  # positions that the checkpoint declares
    rope: RopeConfig
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool  # an RMS norm over each head of q and k, before RoPE
    attention_sinks: bool  # a learned logit for each head that takes part in the softmax and stands for no token
    gated_attention: bool  # sigmoid of a gate for each query head scales what it attends to
    zero_centred_norms: bool  # norms, but for those within linear attention, multiply by 1 + their weight
    windows: tuple[int | None, ...]  # of each layer: a token sees itself and the window - 1 tokens before; None: all
    experts: ExpertsConfig | None
    expert_layers: tuple[bool, ...]  # whether each layer has routed experts in the place of one MLP
    linear_attention: LinearAttentionConfig | None  # None: every layer has keys and values
    linear_layers: tuple[bool, ...]  # whether each layer has linear attention in the place of attention
    hyper_connections: HyperConnectionsConfig | None  # None: one residual stream
    indexer: IndexerConfig | None  # None: attention reads all tokens, or those of its window
    ngrams: NGramConfig | None  # layers, of those with linear attention, that take embeddings of n-grams
    ngram_conv_kernel_size: int  # tokens that the convolution behind these sees, each ``ngram_size`` before the next
    swiglu_limit: float | None  # gpt-oss' activation, clamped to it; None: silu(gate) * up
    eos_token_ids: tuple[int, ...]

    @property
    def num_kv_layers(self) -> int:
        """Layers that have keys and values."""
        return self.num_layers - sum(self.linear_layers)

    @property
    def kv_windows(self) -> tuple[int | None, ...]:
        """``windows`` of the layers that have keys and values."""
        return tuple(window for window, linear in zip(self.windows, self.linear_layers, strict=True) if not linear)

    @property
    def stream_width(self) -> int:
        """Elements of a token between two layers: of one residual stream, or of all of them."""
        streams = self.hyper_connections.num_streams if self.hyper_connections else 1
        return streams * self.hidden_size

    @property
    def ngram_conv_reach(self) -> int:
        """Tokens before a token whose inputs the convolution behind n-grams sees."""
        return 0 if self.ngrams is None else (self.ngram_conv_kernel_size - 1) * self.ngrams.ngram_size

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that RoPE turns, its first."""
        return int(self.head_dim * self.rope.part)

    @property
    def max_positions(self) -> int:
        """Positions that a sequence may have at most: the declared ones, or what RoPE's scaling makes of them."""
        return self.rope.reach(self.max_position_embeddings)
