"""Other models made of a dense GGUF model: a mixture of experts whose experts differ, or the same with fewer layers.

An expert is its layer's MLP plus noise of its own, so that a wrong one shows in the numbers while a text stays a text.
Routers are random.
"""

from __future__ import annotations

import argparse
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from strata.config.model_name import BuiltinName
from strata.store.sources.builtin import builtin_path
from strata.store.sources.gguf_parts import GGUFParts

SMOLLM2 = "smollm2-135m"
_MLP = ("ffn_gate", "ffn_up", "ffn_down")
Array = np.ndarray[Any, Any]


def upcycle(
    source: Path,
    target: Path,
    *,
    layers: int | None = None,
    num_experts: int = 8,
    top_k: int = 2,
    noise: float = 0.3,
    kind: str = "F16",
) -> Path:
    """A Mixtral with the first ``layers`` of a dense Llama (None: all). ``noise``: standard deviation of what an expert
    adds to a matrix, of that of the matrix. ``kind``: ggml's type of the experts."""

    def tensors(file: GGUFParts, name: str) -> Iterator[tuple[str, Array, str]]:
        layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
        if layer is None or layer[2] not in _MLP:
            yield name, *_stored(file, name)
            return
        dense = _numbers(file, name)
        experts = [dense + noise * dense.std() * _random(name, e, dense.shape) for e in range(num_experts)]
        yield f"blk.{layer[1]}.{layer[2]}_exps.weight", _packed(np.stack(experts), kind), kind
        if layer[2] == "ffn_gate":
            hidden = dense.shape[1]
            router = _random(name, num_experts, (num_experts, hidden)) / np.float32(hidden) ** 0.5
            yield f"blk.{layer[1]}.ffn_gate_inp.weight", router, "F32"

    return _write(source, target, layers, tensors, {"expert_count": num_experts, "expert_used_count": top_k})


def shorten(source: Path, target: Path, layers: int) -> Path:
    """The same model with its first ``layers`` alone, the embedding in Q4_0, so that the file is small."""

    def tensors(file: GGUFParts, name: str) -> Iterator[tuple[str, Array, str]]:
        if name == "token_embd.weight":
            yield name, _packed(_numbers(file, name), "Q4_0"), "Q4_0"
        else:
            yield name, *_stored(file, name)

    return _write(source, target, layers, tensors, {})


Tensors = Callable[[GGUFParts, str], Iterator[tuple[str, Array, str]]]  # what becomes of one: names, bytes, types


def _write(source: Path, target: Path, layers: int | None, tensors: Tensors, more: dict[str, int]) -> Path:
    file = GGUFParts(source)
    architecture = file.metadata["general.architecture"]
    assert architecture == "llama", f"{source} is a {architecture!r}; a dense Llama is needed"
    most = file.metadata["llama.block_count"]
    layers = most if layers is None else layers
    assert 1 <= layers <= most, f"{source} has {most} layers; {layers} were asked for"
    writer = gguf.GGUFWriter(target, "llama")
    changed = {"llama.block_count": layers} | {f"llama.{key}": value for key, value in more.items()}
    for key, value in (dict(file.metadata) | changed).items():
        if key != "general.architecture":  # the writer's own
            writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    for stored in file.tensors:
        layer = re.match(r"blk\.(\d+)\.", stored)
        if layer is None or int(layer[1]) < layers:
            for name, data, kind in tensors(file, stored):
                writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[kind])
    target.parent.mkdir(parents=True, exist_ok=True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _stored(file: GGUFParts, name: str) -> tuple[Array, str]:
    """As it is in the file: bytes [..., bytes of a row]."""
    data, info = file.read(name)
    return np.frombuffer(data, np.uint8).reshape(*info.shape[:-1], -1), info.type


def _numbers(file: GGUFParts, name: str) -> Array:
    raw, kind = _stored(file, name)
    numbers: Array = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    return numbers.astype(np.float32)


def _packed(numbers: Array, kind: str) -> Array:
    packed: Array = gguf.quants.quantize(numbers.astype(np.float32), gguf.GGMLQuantizationType[kind])
    return packed


def _random(name: str, number: int, shape: tuple[int, ...]) -> Array:
    generator = np.random.default_rng([zlib.crc32(name.encode()), number])
    return generator.standard_normal(shape, np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.upcycle", description=shorten.__doc__)
    parser.add_argument("target", type=Path, help="GGUF file to be written")
    parser.add_argument("--source", type=Path, help=f"GGUF file of a dense Llama (default: builtin://{SMOLLM2})")
    parser.add_argument("--layers", type=int, default=12, metavar="N", help="default: %(default)s")
    given = parser.parse_args()
    path = shorten(given.source or builtin_path(BuiltinName(SMOLLM2)), given.target, given.layers)
    print(f"{path}: {given.layers} layers, {path.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
