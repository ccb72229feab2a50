"""What a conversion writes where: pure arithmetic over names, shapes and types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from strata.plan.shape import Role, TensorSpec, expert_name, stored_format
from strata.store.layout import ExpertLayout, Weight
from strata.store.manifest import Contents
from strata.store.shard import header_bound
from strata.store.tables import table_layouts


def plan(
    specs: Sequence[TensorSpec],
    types: Mapping[str, str],
    dtype: str,
    shard_size: int,
    *,
    origin: str,
    hollow_tables: bool = False,
) -> Contents:
    """Format and file of every weight, in the order of ``specs``, in files of at most ``shard_size`` bytes.

    types: of each tensor in its source, in the source's words ("BF16", "MXFP4"). hollow_tables: see ``TableLayout``.
    """
    shared: list[dict[str, Weight]] = [{}]
    size = 0
    for spec in specs:
        if spec.expert is not None or spec.role is Role.NGRAMS:
            continue
        weight = Weight(_format(spec, types[spec.name], dtype), spec.shape)
        added = weight.num_bytes + header_bound(weight.tensors(spec.name))
        if size and size + added > shard_size:
            shared.append({})
            size = 0
        size += added + (0 if size else 128)  # length field, braces and padding of the header
        shared[-1][spec.name] = weight
    formats = _expert_formats(specs, types, dtype)
    one = ExpertLayout.of(specs, formats, 1, origin=origin)
    tables = table_layouts(specs, shard_size, is_hollow=hollow_tables)
    if one is None:
        return Contents(tuple(shared), None, tables)
    layout = ExpertLayout.of(specs, formats, max(1, shard_size // one.blob_bytes), origin=origin)
    return Contents(tuple(shared), layout, tables)


def _format(spec: TensorSpec, source_dtype: str, dtype: str) -> str:
    """The format in which a store of ``dtype`` keeps a weight that its source has as ``source_dtype``."""
    if source_dtype == "MXFP4" and spec.role in (Role.MATRIX, Role.EXPERT):
        return "mxfp4"  # trained to it: any other format would take more bits or lose some
    return stored_format(spec, dtype) or ("bf16" if source_dtype == "BF16" else "fp32")


def _expert_formats(specs: Iterable[TensorSpec], types: Mapping[str, str], dtype: str) -> dict[str, str]:
    """The format of each weight of an expert, by its name there: one for all experts, since their blobs are alike."""
    found: dict[str, set[str]] = {}
    common: dict[str, str] = {}
    for spec in specs:
        if spec.expert is not None:
            name = spec.name.removeprefix(f"{expert_name(*spec.expert)}.")
            found.setdefault(name, set()).add(_format(spec, types[spec.name], dtype))
            common[name] = stored_format(spec, dtype) or "fp32"
    return {name: formats.pop() if len(formats) == 1 else common[name] for name, formats in found.items()}
