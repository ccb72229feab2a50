"""How weights of a Hugging Face checkpoint are encoded: plain, or by the method of its ``quantization_config``.

One file a method. Each finds the weights that it encodes among the stored tensors, by the tensors that it stores for
them; a module that was left out (``modules_to_not_convert``, ``ignore``) has none of these and stays a plain weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strata.errors import CheckpointError, UnsupportedModelError
from strata.store.sources.base import Read
from strata.store.sources.safetensors_files import SafetensorsFiles
from strata.store.sources.schemes import awq, compressed_tensors, fp8, gptq, mxfp4
from strata.store.sources.schemes.base import PLAIN_TYPES, Settings, StoredWeight
from strata.store.sources.schemes.split import joined

METHODS: dict[str, Callable[[SafetensorsFiles, Settings], dict[str, StoredWeight]]] = {
    "awq": awq.weights,
    "gptq": gptq.weights,
    "compressed-tensors": compressed_tensors.weights,
    "fp8": fp8.weights,
    "fbgemm_fp8": fp8.weights,
    "mxfp4": mxfp4.weights,
}

# What runtimes that quantise activations or the KV cache, too, keep beside the weights. Strata does neither.
_RUNTIME = (".input_scale", ".output_scale", ".activation_scale", ".q_scale", ".k_scale", ".v_scale")
# The numbers by which n-grams are hashed, which follow from the config.
_HASH = (".layer_multipliers", ".ngram_heads_vocab_sizes", ".ngram_heads_offsets")


def stored_weights(files: SafetensorsFiles, table: Any, *, origin: str) -> dict[str, StoredWeight]:
    """Every weight of the checkpoint by its stored name.

    table: ``quantization_config`` of the ``config.json`` at ``origin``; None or empty where there is none. Raises
    UnsupportedModelError naming the method, setting or type that is not supported and those that are, CheckpointError
    naming file and tensor where a weight's tensors do not fit together.
    """
    weights: dict[str, StoredWeight] = {}
    if table:
        if not isinstance(table, dict):
            raise CheckpointError(f"{origin}: 'quantization_config' is {table!r}; a table is needed")
        method = table.get("quant_method")
        if not isinstance(method, str) or method not in METHODS:
            raise UnsupportedModelError(
                f"{origin}: weights quantised with {method!r} are not supported; supported: {', '.join(METHODS)}, "
                f"plain {', '.join(PLAIN_TYPES)}, or a GGUF"
            )
        weights = METHODS[method](files, Settings(table, origin))
    encoded = {part for weight in weights.values() for part in weight.parts}
    for name, tensor in files.tensors.items():
        if name in encoded or name.endswith(_HASH) or (table and name.endswith(_RUNTIME)):
            continue
        if tensor.dtype not in PLAIN_TYPES:
            raise UnsupportedModelError(
                f"{files.path_of(name)}: tensor {name!r} has the type {tensor.dtype}; supported: "
                f"{', '.join(PLAIN_TYPES)}"
            )
        weights[name] = StoredWeight(tensor.shape, tensor.dtype, (name,), _plain(files, name))
    return joined(weights, origin=origin)


def _plain(files: SafetensorsFiles, name: str) -> Read:
    return lambda expert, rows: files.read(name, expert, rows)
