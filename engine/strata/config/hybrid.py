"""Models with linear attention in most layers: which layers these are, and its shape."""

from __future__ import annotations

from strata.config.keys import Keys
from strata.config.model import LinearAttentionConfig
from strata.errors import CheckpointError, UnsupportedModelError

MAX_HEADS = 4096  # several times what the largest models have: each is a part of what checkpoints store fused

LINEAR, FULL, INDEXED = "linear_attention", "full_attention", "indexed_attention"  # in ``layer_types``


def linear_layers(keys: Keys, num_layers: int, full: tuple[str, ...] = (FULL,)) -> tuple[bool, ...]:
    """Whether each layer has linear attention: ``layer_types`` says so, or else all have but every
    ``full_attention_interval``-th. ``full``: what it may call the others. Raises CheckpointError naming the key,
    UnsupportedModelError where no layer is left that has keys and values."""
    kinds = keys.get("layer_types")
    if kinds is None:
        interval = keys.whole("full_attention_interval", 4)
        layers = tuple((layer + 1) % interval != 0 for layer in range(num_layers))
    elif isinstance(kinds, list) and len(kinds) == num_layers and all(kind in (LINEAR, *full) for kind in kinds):
        layers = tuple(kind == LINEAR for kind in kinds)
    else:
        raise CheckpointError(
            f"{keys.origin}: 'layer_types' is {kinds!r}; a list of {num_layers} entries is needed, each one of "
            f"{', '.join((LINEAR, *full))}"
        )
    if all(layers):
        raise UnsupportedModelError(
            f"{keys.origin}: all {num_layers} layers have linear attention; models in which one at least has full "
            "attention are supported"
        )
    return layers


def linear_attention(keys: Keys, *, gate_key: bool = False) -> LinearAttentionConfig:
    """The shape of a layer of linear attention. ``gate_key``: a key says what opens the output's gate. Raises
    CheckpointError naming the keys that do not fit together, UnsupportedModelError for another gate."""
    key_heads = keys.whole("linear_num_key_heads", 16, most=MAX_HEADS)
    value_heads = keys.whole("linear_num_value_heads", 32, most=MAX_HEADS)
    if value_heads % key_heads:
        raise CheckpointError(
            f"{keys.origin}: 'linear_num_value_heads' is {value_heads}; a multiple of 'linear_num_key_heads', "
            f"{key_heads}, is needed"
        )
    kernel = keys.whole("linear_conv_kernel_dim", 4)
    if kernel < 2:
        raise CheckpointError(f"{keys.origin}: 'linear_conv_kernel_dim' is {kernel}; 2 or more is needed")
    return LinearAttentionConfig(
        num_key_heads=key_heads,
        num_value_heads=value_heads,
        key_head_dim=keys.whole("linear_key_head_dim", 128),
        value_head_dim=keys.whole("linear_value_head_dim", 128),
        conv_kernel_size=kernel,
        sigmoid_gate=gate_key and _sigmoid_gate(keys),
    )


def _sigmoid_gate(keys: Keys) -> bool:
    found = keys.get("output_gate_type", "silu")
    if found not in ("sigmoid", "silu", "swish"):
        raise UnsupportedModelError(f"{keys.origin}: 'output_gate_type' is {found!r}; sigmoid and silu are supported")
    return bool(found == "sigmoid")
