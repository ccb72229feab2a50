"""Embeddings of the n-grams that end with each token, into the residual streams."""

from __future__ import annotations

from torch import Tensor

from strata.config import ModelConfig
from strata.kernels.attention.batch import StepBatch
from strata.kernels.delta_rule.state import DeltaState
from strata.kernels.layer import LayerCache
from strata.kernels.ngram_gate.layer import NGramLayer, NGramState
from strata.kernels.ngram_gate.reference import history_
from strata.models.weights import Weights
from strata.ngram.ids import ngram_ids
from strata.ngram.table import Pending


class NGrams:
    """streams + convolution(gates(streams) * value(embeddings)): see ``kernels.ngram_gate``."""

    def __init__(self, config: ModelConfig, weights: Weights, name: str, layer: int) -> None:
        ngrams, streams, eps = config.ngrams, config.hyper_connections, config.rms_norm_eps
        assert ngrams is not None, "a layer of n-grams has its configuration"
        assert streams is not None, "n-grams are for several residual streams"
        self.hash = ngrams.hash(layer)
        self.table = weights.ngram_table(f"{name}.ple_embedding.ngram_embedding")
        key, query, conv = (
            weights.stream_norm(f"{name}.norm_{part}", eps, streams.num_streams) for part in ("key", "query", "conv")
        )
        self.gate = weights.kernels.ngram_gate(
            NGramLayer(
                weights.matrix(f"{name}.key_proj"),
                weights.matrix(f"{name}.value_proj"),
                key,
                query,
                conv,
                weights.vector(f"{name}.conv1d.weight").squeeze(1),
                ngrams.ngram_size,
            )
        )

    def begin(self, token_ids: Tensor, cache: LayerCache, batch: StepBatch) -> Pending:
        """Ask for the embeddings of the step's tokens int64 [tokens]; the last ones are left in the layer's state."""
        tokens = history_(token_ids, _state(cache).tokens, self.hash.num_context, self.hash.eos_token_id, batch)
        return self.table.begin(ngram_ids(tokens, self.hash))

    def __call__(self, streams: Tensor, embeddings: Tensor, cache: LayerCache, batch: StepBatch) -> Tensor:
        """streams [tokens, streams * hidden] -> the same; what the convolution was given is left in the state."""
        return self.gate(streams, embeddings, _state(cache), batch)


def _state(cache: LayerCache) -> NGramState:
    assert isinstance(cache, DeltaState), "layers with n-grams have linear attention"
    assert cache.ngrams is not None, "a layer with n-grams keeps the last tokens"
    return cache.ngrams
