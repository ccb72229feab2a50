"""Foreign names of tensors to the canonical ones of ``strata.plan.shape``: tables, no bytes.

A canonical tensor lies in a stored one, or is a part of it: newer Hugging Face checkpoints and GGUF files stack the
matrices of all experts of a layer, and fuse those of gate and up; hybrid models fuse the projections of attention, in
turns by head.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from strata.config import ModelConfig
from strata.errors import CheckpointError
from strata.quant.base import QuantizedTensor, Tensor
from strata.store.sources.base import WHOLE, Read

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies: the stored tensor ``name``, or what the other fields cut out of it, in their order."""

    name: str
    expert: int | None = None  # along the first axis of a tensor that is stacked over experts
    transposed: bool = False  # stored as [cols, rows]
    rows: tuple[range, ...] = ()  # one behind the other; empty: all
    as_row: bool = False  # a matrix of one row that is stored as a vector

    def shape(self, stored: Shape) -> Shape:
        """Of the tensor, from that of the stored one."""
        shape = stored if self.expert is None else stored[1:]
        if self.transposed:
            shape = shape[::-1]
        if self.rows:
            shape = (sum(map(len, self.rows)), *shape[1:])
        return (1, *shape) if self.as_row else shape

    def read(self, read: Read, rows: slice) -> Tensor | QuantizedTensor:
        """``rows`` of the tensor; nothing else of the stored one is read, unless it is transposed or a single row."""
        if self.as_row or self.transposed:
            tensor = read(self.expert, WHOLE)
            assert not isinstance(tensor, QuantizedTensor), f"{self.name}: the groups of a bit format lie along rows"
            tensor = tensor[None] if self.as_row else tensor.T
            return _joined([tensor[part].contiguous() for part in self._parts(rows)])
        return _joined([read(self.expert, part) for part in self._parts(rows)])

    def _parts(self, rows: slice) -> list[slice]:
        """Of the stored tensor, which together are ``rows`` of this one."""
        if not self.rows:
            return [rows]
        start, stop, _ = rows.indices(sum(map(len, self.rows)))
        begins = accumulate((len(part) for part in self.rows), initial=0)
        cut = [part[max(start - at, 0) : max(stop - at, 0)] for at, part in zip(begins, self.rows, strict=False)]
        return [slice(part.start, part.stop, part.step) for part in cut if part]


def _joined(pieces: list[Tensor | QuantizedTensor]) -> Tensor | QuantizedTensor:
    """One behind the other, along the rows."""
    import torch

    first = pieces[0]
    if len(pieces) == 1:
        return first
    if not isinstance(first, QuantizedTensor):
        return torch.cat(pieces)
    parts = {name: torch.cat([piece.parts[name] for piece in pieces]) for name in first.parts}
    return replace(first, shape=(sum(piece.shape[0] for piece in pieces), first.shape[1]), parts=parts)


def huggingface(model: ModelConfig, shapes: Mapping[str, Shape], *, origin: str) -> dict[str, Place]:
    """Canonical names of a Hugging Face checkpoint's tensors. One that has no rule keeps its own name, and is reported
    as unknown later if it is not needed. Raises CheckpointError naming two tensors that are the same one."""

    def places() -> Iterator[tuple[str, Place]]:
        stacks = _GPT_OSS_STACKS if model.architecture == "GptOssForCausalLM" else _STACKS
        fused = _fused(model)
        for stored, shape in shapes.items():
            name = stored
            for theirs, canonical in _RENAMES.get(model.architecture, ()):
                name = name.replace(theirs, canonical)
            layer, found, rest = name.rpartition(".experts.")
            stack = stacks.get(rest) if found else None
            if stack is not None and stack.fits(shape):
                yield from stack.places(f"{layer}.experts", stored, shape)
                continue
            module, _, kind = name.rpartition(".")
            parts = next((parts for suffix, parts in fused.items() if module.endswith(suffix)), {})
            if parts and shape[:1] == (sum(len(rows) for part in parts.values() for rows in part),):
                for part, rows in parts.items():
                    yield f"{module.rpartition('.')[0]}.{part}.{kind}", Place(stored, rows=rows)
            else:
                yield name, Place(stored)

    return _table(places(), origin)


def _fused(model: ModelConfig) -> dict[str, dict[str, tuple[range, ...]]]:
    """Of each module that is stored fused, by the end of its name: the canonical ones in it, and their rows."""
    found = {}
    if model.gated_attention:
        queries, gates = _in_turns(model.num_heads, model.head_dim, model.head_dim)
        found[".self_attn.q_proj"] = {"q_proj": queries, "gate_proj": gates}
    linear = model.linear_attention
    if linear is not None:
        sharing = linear.num_value_heads // linear.num_key_heads
        keys, values = linear.key_head_dim, sharing * linear.value_head_dim
        query, key, value, gate = _in_turns(linear.num_key_heads, keys, keys, values, values)
        beta, decay = _in_turns(linear.num_key_heads, sharing, sharing)
        found[".linear_attn.in_proj_qkvz"] = {"in_proj_qkv": query + key + value, "in_proj_z": gate}
        found[".linear_attn.in_proj_ba"] = {"in_proj_b": beta, "in_proj_a": decay}
    return found


def _in_turns(count: int, *lengths: int) -> list[tuple[range, ...]]:
    """The rows of each of several matrices, of which ``lengths`` rows follow one another, and all of that ``count``
    times."""
    turns = range(0, count * sum(lengths), sum(lengths))
    begins = accumulate(lengths, initial=0)
    return [
        tuple(range(turn + begin, turn + begin + length) for turn in turns)
        for begin, length in zip(begins, lengths, strict=False)
    ]


def gguf(shapes: Mapping[str, Shape], *, origin: str) -> dict[str, Place]:
    """Canonical names of a GGUF file's tensors; as ``huggingface``."""

    def places() -> Iterator[tuple[str, Place]]:
        for stored, shape in shapes.items():
            layer = re.fullmatch(r"blk\.(\d+)\.(\w+)(?:\.(\d+))?\.(weight|bias)", stored)
            top = re.fullmatch(r"(\w+)\.(weight|bias)", stored)
            if top and top[1] in _GGUF_TOP:
                yield f"{_GGUF_TOP[top[1]]}.{top[2]}", Place(stored)
                continue
            if not layer:
                yield stored, Place(stored)
                continue
            prefix, kind, expert, part = f"model.layers.{layer[1]}", layer[2], layer[3], layer[4]
            stack = _GGUF_STACKS.get(f"{kind}.{part}")
            if expert is None and stack is not None and stack.fits(shape):
                yield from stack.places(f"{prefix}.mlp.experts", stored, shape)
            elif expert is not None and kind in _GGUF_EXPERT:  # each expert by itself: Mixtral's first files
                yield f"{prefix}.mlp.experts.{int(expert)}.{_GGUF_EXPERT[kind]}.{part}", Place(stored)
            elif expert is None and kind in _GGUF_LAYER:
                name = _GGUF_LAYER[kind] if kind == "attn_sinks" else f"{_GGUF_LAYER[kind]}.{part}"
                yield f"{prefix}.{name}", Place(stored, as_row=kind == "ffn_gate_inp_shexp" and len(shape) == 1)
            else:
                yield stored, Place(stored)

    return _table(places(), origin)


def _table(places: Iterator[tuple[str, Place]], origin: str) -> dict[str, Place]:
    table: dict[str, Place] = {}
    for name, place in places:
        if name in table:
            raise CheckpointError(f"{origin}: tensors {table[name].name!r} and {place.name!r} are both {name!r}")
        table[name] = place
    return table


@dataclass(frozen=True, slots=True)
class _Stack:
    """A tensor that is stacked over experts: [experts, rows, cols], or [experts, rows] of biases."""

    projections: tuple[str, ...]
    part: str = "weight"
    transposed: bool = False
    interleaved: bool = False  # rows of two projections alternate; otherwise one follows the other

    def fits(self, shape: Shape) -> bool:
        return len(shape) == (3 if self.part == "weight" else 2) and min(shape) > 0

    def places(self, prefix: str, stored: str, shape: Shape) -> Iterator[tuple[str, Place]]:
        count = len(self.projections)
        rows = range(shape[-1] if self.transposed else shape[1])
        for index, projection in enumerate(self.projections):
            part = rows[index::count] if self.interleaved else rows[len(rows) // count * index :][: len(rows) // count]
            for expert in range(shape[0]):
                place = Place(stored, expert, self.transposed, () if count == 1 else (part,))
                yield f"{prefix}.{expert}.{projection}.{self.part}", place


_GATE_UP = ("gate_proj", "up_proj")

_QWEN3_5 = (("model.language_model.", "model."),)
_RENAMES = {
    "MixtralForCausalLM": (
        (".block_sparse_moe.", ".mlp."),
        (".w1.", ".gate_proj."),
        (".w2.", ".down_proj."),
        (".w3.", ".up_proj."),
    ),
    "Qwen3_5MoeForCausalLM": _QWEN3_5,
    "Qwen3_5MoeForConditionalGeneration": _QWEN3_5,
    "Qwen4ExpForCausalLM": _QWEN3_5,
    "Qwen4ExpForConditionalGeneration": _QWEN3_5,
    "GptOssForCausalLM": ((".mlp.router.", ".mlp.gate."),),
}
_STACKS = {"gate_up_proj": _Stack(_GATE_UP), "down_proj": _Stack(("down_proj",))}
_GPT_OSS_STACKS = {
    "gate_up_proj": _Stack(_GATE_UP, transposed=True, interleaved=True),
    "gate_up_proj_blocks": _Stack(_GATE_UP, interleaved=True),
    "gate_up_proj_bias": _Stack(_GATE_UP, "bias", interleaved=True),
    "down_proj": _Stack(("down_proj",), transposed=True),
    "down_proj_blocks": _Stack(("down_proj",)),
    "down_proj_bias": _Stack(("down_proj",), "bias"),
}

_GGUF_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_GGUF_EXPERT = {"ffn_gate": "gate_proj", "ffn_up": "up_proj", "ffn_down": "down_proj"}
_GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_sinks": "self_attn.sinks",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "post_attention_norm": "post_attention_layernorm",  # gpt-oss
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    **{kind: f"mlp.{projection}" for kind, projection in _GGUF_EXPERT.items()},
    **{f"{kind}_shexp": f"mlp.shared_expert.{projection}" for kind, projection in _GGUF_EXPERT.items()},
}
_GGUF_STACKS = {
    f"{kind}_exps.{part}": _Stack((projection,), part)
    for kind, projection in _GGUF_EXPERT.items()
    for part in ("weight", "bias")
}
