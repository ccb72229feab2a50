"""What Qwen4's preview has beside linear attention: residual streams, an indexer before attention, n-grams."""

from __future__ import annotations

from strata.config.hybrid import MAX_HEADS
from strata.config.keys import Keys
from strata.config.model import HyperConnectionsConfig, IndexerConfig
from strata.config.ngram import NGramConfig, read_ngrams
from strata.errors import CheckpointError, UnsupportedModelError

# Several times what the published model has: a damaged number must not become a tensor that no machine holds.
MAX_STREAMS = 64
MAX_KERNEL = 64

_INDEXER = ("indexer_n_heads", "indexer_kv_heads", "indexer_head_dim", "indexer_budget", "indexer_compress_ratio")


def hyper_connections(keys: Keys) -> HyperConnectionsConfig:
    """Raises CheckpointError naming the key."""
    streams = keys.whole("hc_count", 4, most=MAX_STREAMS)
    if streams < 2:
        raise CheckpointError(f"{keys.origin}: 'hc_count' is {streams}; 2 or more is needed")
    return HyperConnectionsConfig(streams, keys.whole("hc_lowrank", 320))


def indexer(keys: Keys, rotary_dim: int) -> IndexerConfig:
    """``rotary_dim``: dimensions of an attention head that RoPE turns. Raises CheckpointError naming the keys that are
    missing or do not fit together, UnsupportedModelError where heads have keys of their own."""
    missing = [key for key in _INDEXER if keys.get(key) is None]
    if missing:
        raise CheckpointError(f"{keys.origin}: attention needs an indexer, but {', '.join(missing)} are missing")
    heads, kv_heads, head_dim, budget, group = (keys.whole(key) for key in _INDEXER)
    if kv_heads != 1:
        raise UnsupportedModelError(
            f"{keys.origin}: 'indexer_kv_heads' is {kv_heads}; indexers whose heads share one key are supported"
        )
    if heads > MAX_HEADS:
        raise CheckpointError(f"{keys.origin}: 'indexer_n_heads' is more than {MAX_HEADS}, which no model has")
    if budget % group:
        raise CheckpointError(
            f"{keys.origin}: 'indexer_budget' is {budget}; a multiple of 'indexer_compress_ratio', {group}, is needed"
        )
    if rotary_dim > head_dim:
        raise CheckpointError(
            f"{keys.origin}: 'indexer_head_dim' is {head_dim}, but RoPE turns {rotary_dim} dimensions of a head"
        )
    return IndexerConfig(heads, head_dim, budget, group)


def ngrams(keys: Keys, linear_layers: tuple[bool, ...]) -> tuple[NGramConfig | None, int]:
    """Tables of n-grams, and what ``ModelConfig.ngram_conv_kernel_size`` says. Raises CheckpointError naming the keys
    that are wrong or do not fit together."""
    found = read_ngrams(keys, len(linear_layers))
    kernel = keys.whole("ple_conv_kernel_size", 4, most=MAX_KERNEL)
    if found is not None and not all(linear_layers[layer] for layer in found.layers):
        raise CheckpointError(
            f"{keys.origin}: 'ple_layer_ids' is {keys.get('ple_layer_ids')!r}; layers with linear attention are needed"
        )
    return found, kernel
