"""Quantised Hugging Face checkpoints: each scheme gives the numbers that its format stands for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from strata import quant
from strata.config import read_hf_config
from strata.errors import CheckpointError, UnsupportedModelError
from strata.plan.shape import check
from strata.quant import QuantizedTensor
from strata.store.convert import convert
from strata.store.reader import Store
from strata.store.sources.safetensors import SafetensorsSource
from tests.store import packing
from tests.store.checkpoints import config, weights, write_hf

Encoded = tuple[dict[str, torch.Tensor], torch.Tensor]  # a module's stored tensors, and the numbers that they stand for


@dataclass(frozen=True)
class Case:
    settings: dict[str, Any]
    encode: Callable[[str, torch.Tensor], Encoded]
    parts: tuple[str, ...]  # what a module stores; the first one is what its weight is found by
    optional: tuple[str, ...] = field(default=())  # without these it still stands for something


def integer_case(
    store: Callable[..., dict[str, torch.Tensor]],
    settings: dict[str, Any],
    parts: str,
    optional: str = "",
    **rounding: Any,
) -> Case:
    bits, symmetric = rounding.get("bits", 4), rounding.get("symmetric", False)
    order = rounding.pop("act_order", False)

    def encode(module: str, weight: torch.Tensor) -> Encoded:
        shuffled = np.random.default_rng(0).permutation(weight.shape[1]) if order else None
        groups = packing.rounded(weight, **{"group": 32, **rounding}, order=shuffled)
        return store(module, groups, bits=bits, symmetric=symmetric), groups.numbers()

    return Case(settings, encode, tuple(parts.split()), tuple(optional.split()))


def compressed(kind: str, bits: int = 4, **weights: Any) -> dict[str, Any]:
    scheme = {"num_bits": bits, "type": "float" if kind == "float-quantized" else "int", **weights}
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": scheme, "input_activations": None}},
        "ignore": ["lm_head", "model.layers.1.mlp.up_proj"],
        "kv_cache_scheme": None,
        "sparsity_config": {},
        "transform_config": {},
    }


def fp8(scale: str, block: tuple[int, int] | None, settings: dict[str, Any]) -> Case:
    def encode(module: str, weight: torch.Tensor) -> Encoded:
        rows, cols = weight.shape
        high, wide = block or (rows, cols)
        scales = torch.empty(-(-rows // high), -(-cols // wide))
        numbers, stored = torch.empty(rows, cols), torch.empty(rows, cols, dtype=torch.float8_e4m3fn)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                at = slice(i * high, (i + 1) * high), slice(j * wide, (j + 1) * wide)
                scales[i, j] = (weight[at].abs().max() / 448).bfloat16()
                stored[at] = (weight[at] / scales[i, j]).to(torch.float8_e4m3fn)
                numbers[at] = stored[at].float() * scales[i, j]
        return {f"{module}.weight": stored, f"{module}.{scale}": scales if block else scales.view(1)}, numbers

    return Case(settings, encode, ("weight", scale))


def fp8_powers(module: str, weight: torch.Tensor) -> Encoded:
    """Scales of blocks that are powers of two, stored as exponents (DeepSeek's "ue8m0")."""
    tensors, _ = fp8("weight_scale_inv", (24, 40), {}).encode(module, weight)
    powers = torch.exp2(torch.log2(tensors[f"{module}.weight_scale_inv"]).ceil())
    spread = powers.repeat_interleave(24, 0)[: len(weight)].repeat_interleave(40, 1)[:, : weight.shape[1]]
    stored = (weight / spread).to(torch.float8_e4m3fn)
    scales = powers.to(torch.float8_e8m0fnu)
    return {f"{module}.weight": stored, f"{module}.weight_scale_inv": scales}, stored.float() * spread


def fp8_rows(module: str, weight: torch.Tensor) -> Encoded:
    scales = weight.abs().amax(1, keepdim=True) / 448
    stored = (weight / scales).to(torch.float8_e4m3fn)
    return {f"{module}.weight": stored, f"{module}.weight_scale": scales}, stored.float() * scales


def store_awq(module: str, groups: packing.Groups, **_: Any) -> dict[str, torch.Tensor]:
    return packing.awq(module, groups)


def store_gptq(module: str, groups: packing.Groups, *, bits: int, **_: Any) -> dict[str, torch.Tensor]:
    return packing.gptq(module, groups, bits=bits)


def store_gptq_v2(module: str, groups: packing.Groups, *, bits: int, **_: Any) -> dict[str, torch.Tensor]:
    return packing.gptq(module, groups, bits=bits, version=2)


def store_packed(module: str, groups: packing.Groups, *, bits: int, symmetric: bool) -> dict[str, torch.Tensor]:
    return packing.packed(module, groups, bits=bits, symmetric=symmetric)


def store_packed_order(module: str, groups: packing.Groups, *, bits: int, symmetric: bool) -> dict[str, torch.Tensor]:
    return packing.packed(module, groups, bits=bits, symmetric=symmetric, order=True)


def store_integers(module: str, groups: packing.Groups, *, bits: int, symmetric: bool) -> dict[str, torch.Tensor]:
    return packing.integers(module, groups, symmetric=symmetric)


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
GPTQ_PARTS, PACKED_PARTS = "qweight qzeros scales g_idx", "weight_packed weight_scale weight_shape"

CASES = {
    "awq": integer_case(store_awq, AWQ, "qweight qzeros scales"),
    "awq, a group a row": integer_case(store_awq, AWQ | {"group_size": -1}, "qweight qzeros scales", group=96),
    "gptq": integer_case(store_gptq, GPTQ, GPTQ_PARTS, "g_idx"),
    "gptq, act-order": integer_case(store_gptq, GPTQ | {"desc_act": True}, GPTQ_PARTS, act_order=True),
    "gptq, symmetric": integer_case(store_gptq, GPTQ | {"sym": True}, GPTQ_PARTS, "g_idx", symmetric=True),
    "gptq, 8 bits": integer_case(store_gptq, GPTQ | {"bits": 8}, GPTQ_PARTS, "g_idx", bits=8),
    "gptq, version 2": integer_case(store_gptq_v2, GPTQ | {"checkpoint_format": "gptq_v2"}, GPTQ_PARTS, "g_idx"),
    "gptq, version 2 by its newer key": integer_case(store_gptq_v2, GPTQ | {"format": "gptq_v2"}, GPTQ_PARTS, "g_idx"),
    "packed, symmetric": integer_case(store_packed, compressed("pack-quantized"), PACKED_PARTS, symmetric=True),
    "packed, asymmetric": integer_case(
        store_packed, compressed("pack-quantized"), f"{PACKED_PARTS} weight_zero_point", "weight_zero_point"
    ),
    "packed, a group a row": integer_case(
        store_packed, compressed("pack-quantized", strategy="channel"), PACKED_PARTS, symmetric=True, group=96
    ),
    "packed, act-order": integer_case(
        store_packed_order,
        compressed("pack-quantized", actorder="group"),
        f"{PACKED_PARTS} weight_g_idx",
        "weight_g_idx",
        symmetric=True,
        act_order=True,
    ),
    "packed, 8 bits": integer_case(store_packed, compressed("pack-quantized", 8), PACKED_PARTS, symmetric=True, bits=8),
    "int8": integer_case(
        store_integers, compressed("int-quantized", 8), "weight weight_scale", symmetric=True, bits=8, group=96
    ),
    "int8, asymmetric": integer_case(
        store_integers,
        compressed("int-quantized", 8),
        "weight weight_scale weight_zero_point",
        "weight_zero_point",
        bits=8,
    ),
    "fp8, blocks": fp8("weight_scale_inv", (24, 40), {"quant_method": "fp8", "weight_block_size": [24, 40]}),
    # As many blocks along a row of k and v as these have rows.
    "fp8, narrow blocks": fp8("weight_scale_inv", (32, 2), {"quant_method": "fp8", "weight_block_size": [32, 2]}),
    "fp8, blocks of powers of two": Case(
        {"quant_method": "fp8", "weight_block_size": [24, 40], "scale_fmt": "ue8m0"},
        fp8_powers,
        ("weight", "weight_scale_inv"),
    ),
    "fp8, one scale": fp8("weight_scale", None, {"quant_method": "fp8", "activation_scheme": "static"}),
    "fp8, rows": Case({"quant_method": "fbgemm_fp8"}, fp8_rows, ("weight", "weight_scale")),
    "fp8, compressed-tensors": Case(
        compressed("float-quantized", 8, strategy="channel"), fp8_rows, ("weight", "weight_scale")
    ),
    "fp8, compressed-tensors, blocks": fp8(
        "weight_scale", (24, 40), compressed("float-quantized", 8, strategy="block", block_structure=[24, 40])
    ),
}


def without_accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    """``transformers`` asks for the package before it reads FP8 and MXFP4, and does not use it on a CPU."""
    for method in ("finegrained_fp8", "mxfp4"):
        monkeypatch.setattr(f"transformers.quantizers.quantizer_{method}.is_accelerate_available", lambda: True)


PLAIN = "model.layers.1.mlp.up_proj"  # the module that each checkpoint leaves as it is


def write(directory: Path, case: Case, **changes: Any) -> tuple[Path, dict[str, torch.Tensor]]:
    """A checkpoint whose modules are quantised, all but one, and the numbers of all its weights."""
    table = config(quantization_config=case.settings | {"modules_to_not_convert": [PLAIN]}, **changes)
    expected = weights(table)
    stored: dict[str, torch.Tensor] = {}
    for name, weight in list(expected.items()):
        module = name.removesuffix(".weight")
        if not module.endswith("_proj") or module == PLAIN:
            stored[name] = weight.bfloat16()
            continue
        tensors, expected[name] = case.encode(module, weight)
        stored |= tensors
    return write_hf(directory, table, tensors=stored, dtype=None, shards=2), expected


@pytest.mark.parametrize("name", CASES)
def test_gives_the_numbers_that_the_format_stands_for(tmp_path: Path, name: str) -> None:
    path, expected = write(tmp_path / "m", CASES[name])
    source = SafetensorsSource(path)
    specs = check(
        read_hf_config(source.config, origin="m"), {k: t.shape for k, t in source.tensors.items()}, origin="m"
    )
    assert {spec.name for spec in specs} == set(source.tensors) == set(expected)
    for weight, numbers in expected.items():
        found = source.read(weight)
        assert isinstance(found, torch.Tensor)
        assert torch.equal(found.float(), numbers), weight
        assert torch.equal(source.read(weight, slice(5, 19)), found[5:19])
    assert source.tensors[f"{PLAIN}.weight"].dtype == "BF16"
    assert "quantization_config" not in source.config


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("awq", 0.008),
        ("gptq", 0.008),
        ("gptq, version 2", 0.008),
        ("packed, symmetric", 0.008),
        ("packed, asymmetric", 0.008),
        ("fp8, blocks", 0.09),  # these are no 4-bit weights
        ("int8", 0.09),
    ],
)
def test_a_store_holds_the_numbers_of_its_source(tmp_path: Path, name: str, bound: float) -> None:
    path, expected = write(tmp_path / "m", CASES[name])
    store = Store.open(convert(str(path), tmp_path / "store", "int4"))
    for key, weight in store.load():
        if isinstance(weight, QuantizedTensor) and weight.format == "int4":
            error = quant.get("int4").unpack(weight) - expected[key]
            assert float(error.norm() / expected[key].norm()) < (0.09 if PLAIN in key else bound), key


def test_modules_of_one_checkpoint_may_be_compressed_in_several_ways(tmp_path: Path) -> None:
    settings = compressed("mixed-precision")
    kinds = {"q_proj": "packed, asymmetric", "up_proj": "int8", "down_proj": "fp8, compressed-tensors"}
    settings["config_groups"] = {
        part: CASES[name].settings["config_groups"]["group_0"]
        | {"format": CASES[name].settings["format"], "targets": [f"re:.*{part}"]}
        for part, name in kinds.items()
    }
    table = config(quantization_config=settings)
    expected = weights(table)
    stored = {name: weight.bfloat16() for name, weight in expected.items()}
    for name in list(expected):
        module = name.removesuffix(".weight")
        if (part := module.rpartition(".")[2]) in kinds:
            del stored[name]
            tensors, expected[name] = CASES[kinds[part]].encode(module, expected[name])
            stored |= tensors
    source = SafetensorsSource(write_hf(tmp_path / "m", table, tensors=stored, dtype=None))
    assert set(source.tensors) == set(expected)
    for name, numbers in expected.items():
        found = source.read(name)
        assert isinstance(found, torch.Tensor)
        assert torch.equal(found.float(), numbers), name


def test_the_library_reads_the_same_numbers_in_fp8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_accelerate(monkeypatch)
    case = fp8("weight_scale_inv", (32, 32), {"quant_method": "fp8", "weight_block_size": [32, 32]})
    path, expected = write(tmp_path / "m", case)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict()
    source = SafetensorsSource(path)
    assert set(source.tensors) == set(expected) == set(theirs) - {"lm_head.weight"}
    for name in expected:
        found = source.read(name)
        assert isinstance(found, torch.Tensor)
        assert torch.equal(found.float(), theirs[name]), name


@pytest.mark.parametrize("name", CASES)
def test_what_the_rounding_did_is_seen(tmp_path: Path, name: str) -> None:
    # The numbers differ from the plain weights, and each scheme's from those with a neighbour's zero or scale.
    _, expected = write(tmp_path / "m", CASES[name])
    plain = weights(config())
    for weight, numbers in expected.items():
        error = float((numbers - plain[weight]).norm() / plain[weight].norm())
        assert error == 0 if not weight.endswith("_proj.weight") or PLAIN in weight else 1e-3 < error < 0.15


MODULE = "model.layers.0.mlp.down_proj"


@pytest.mark.parametrize(
    ("name", "part", "fault"),
    [
        pytest.param(name, part, fault, id=f"{name}: {part} {fault}")
        for name, case in CASES.items()
        for part in case.parts
        for fault in ("is missing", "is too long", "is of another type")
        if not (fault == "is missing" and part in (*case.optional, case.parts[0]))
    ],
)
def test_a_part_that_does_not_fit_is_named(tmp_path: Path, name: str, part: str, fault: str) -> None:
    table = config(quantization_config=CASES[name].settings)
    tensors, _ = CASES[name].encode(MODULE, weights(table)[f"{MODULE}.weight"])
    tensor = tensors.pop(f"{MODULE}.{part}")
    if fault == "is too long":
        tensors[f"{MODULE}.{part}"] = torch.cat([tensor, tensor, tensor[:1]])
    elif fault == "is of another type":
        tensors[f"{MODULE}.{part}"] = tensor.to(torch.float64)
    plain = {key: tensor.bfloat16() for key, tensor in weights(table).items() if not key.startswith(MODULE)}
    path = write_hf(tmp_path / "m", table, tensors=tensors | plain, dtype=None)
    with pytest.raises(CheckpointError, match=rf"model\.safetensors.*{MODULE}"):
        check_all(SafetensorsSource(path))


def check_all(source: SafetensorsSource) -> None:
    """What a conversion checks and reads."""
    model = read_hf_config(source.config, origin="config.json")
    shapes = {name: tensor.shape for name, tensor in source.tensors.items()}
    for spec in check(model, shapes, origin=f"{source.origin}/model.safetensors"):
        source.read(spec.name)


def test_groups_out_of_range_are_named(tmp_path: Path) -> None:
    for name, part in (("gptq, act-order", "g_idx"), ("packed, act-order", "weight_g_idx")):
        tensors, _ = CASES[name].encode(MODULE, weights(config())[f"{MODULE}.weight"])
        for group in (3, -1):
            tensors[f"{MODULE}.{part}"][7] = group
            table = config(quantization_config=CASES[name].settings)
            path = write_hf(tmp_path / f"{part}{group}", table, tensors=tensors, dtype=None)
            with pytest.raises(CheckpointError, match=rf"model\.safetensors: tensor '{MODULE}\.{part}' is damaged"):
                SafetensorsSource(path).read(f"{MODULE}.weight")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (AWQ | {"bits": 3}, r"'bits' = 3; supported: 4"),
        (AWQ | {"version": "gemv"}, r"'version' = 'gemv'; supported: 'gemm'"),
        (AWQ | {"zero_point": False}, r"'zero_point' = False; supported: True"),
        (GPTQ | {"bits": 3}, r"'bits' = 3; supported: 4, 8"),
        (GPTQ | {"bits": None}, r"'bits' = None; supported: 4, 8"),
        (GPTQ | {"checkpoint_format": "marlin"}, r"'checkpoint_format' = 'marlin'; supported: 'gptq', 'gptq_v2'"),
        (GPTQ | {"format": "marlin"}, r"'format' = 'marlin'; supported: 'gptq', 'gptq_v2'"),
        (GPTQ | {"is_marlin_format": True}, r"'is_marlin_format' = True"),
        (AWQ | {"version": None, "format": "gemv_fast"}, r"'format' = 'gemv_fast'; supported: 'gemm'"),
        (compressed("nvfp4-pack-quantized"), r"'format' = 'nvfp4-pack-quantized'; supported: 'pack-quantized', 'int-"),
        (compressed("pack-quantized", 2), r"'group_0'.*'num_bits' = 2; supported: 4, 8"),
        (compressed("float-quantized", 4), r"'num_bits' = 4; supported: 8"),
        (
            compressed("pack-quantized") | {"sparsity_config": {"format": "sparse-24-bitmask"}},
            r"sparsity_config.*'format' = 'sparse-24-bitmask'; supported: 'dense'",
        ),
        (
            {
                **compressed("float-quantized"),
                "config_groups": {
                    name: {"weights": {"num_bits": 8, "type": "float", "block_structure": [size, size]}}
                    for name, size in (("group_0", 128), ("group_1", 64))
                },
            },
            r"FP8 blocks of several sizes \(\[128, 128\], \[64, 64\]\)",
        ),
        (compressed("pack-quantized") | {"transform_config": {"config_groups": {"r1": {}}}}, r"'transform_config'"),
    ],
)
def test_settings_that_are_not_supported_are_refused_by_name(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    path = write_hf(tmp_path / "m", config(quantization_config=settings))
    with pytest.raises(UnsupportedModelError, match=rf"m/config\.json.*{message}"):
        SafetensorsSource(path)


@pytest.mark.parametrize(
    "settings",
    [
        "fp8",
        {"quant_method": "fp8", "weight_block_size": [128]},
        {"quant_method": "fp8", "weight_block_size": "128x128"},
        {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": []},
        {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": ["x"]},
        {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": 1}},
        {"quant_method": ["awq"]},
    ],
)
def test_settings_of_the_wrong_type_are_named(tmp_path: Path, settings: Any) -> None:
    path = write_hf(tmp_path / "m", config(quantization_config=settings))
    if settings == {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": []}:
        SafetensorsSource(path)  # none
        return
    with pytest.raises(CheckpointError, match=r"m/config\.json"):
        SafetensorsSource(path)


def test_biases_of_zeros_that_no_layer_has_are_left_out(tmp_path: Path) -> None:
    table = config(quantization_config=GPTQ)
    written = weights(table)
    extra = {f"{MODULE}.bias": torch.zeros(64)}
    path = write_hf(tmp_path / "m", table, tensors=written | extra)
    assert set(SafetensorsSource(path).tensors) == set(written)
    other = write_hf(tmp_path / "other", table, tensors=written | {f"{MODULE}.bias": torch.ones(64)})
    assert f"{MODULE}.bias" in SafetensorsSource(other).tensors  # reported as unknown later


def test_scales_of_activations_and_of_the_kv_cache_are_left_out(tmp_path: Path) -> None:
    path, expected = write(tmp_path / "m", CASES["fp8, one scale"])
    source = SafetensorsSource(path)
    extra = {
        f"{MODULE}.input_scale": torch.ones(1),
        "model.layers.0.self_attn.k_scale": torch.ones(1),
        "model.layers.0.self_attn.attn.v_scale": torch.ones(()),
    }
    tensors = {name: source.read(name) for name in expected} | extra
    table = config(quantization_config=CASES["fp8, one scale"].settings)
    again = write_hf(tmp_path / "again", table, tensors=tensors, dtype=None)
    assert set(SafetensorsSource(again).tensors) == set(expected)


def test_bits_of_a_module_that_has_others_are_told_from_its_tensors(tmp_path: Path) -> None:
    wide = CASES["gptq, 8 bits"]
    tensors, expected = wide.encode(MODULE, weights(config())[f"{MODULE}.weight"])
    settings = GPTQ | {"dynamic": {r"+:.*down_proj": {"bits": 8}}}
    path = write_hf(tmp_path / "m", config(quantization_config=settings), tensors=tensors, dtype=None)
    assert torch.equal(SafetensorsSource(path).read(f"{MODULE}.weight"), expected)


def test_without_act_order_an_unused_g_idx_is_not_looked_at(tmp_path: Path) -> None:
    tensors, expected = CASES["gptq"].encode(MODULE, weights(config())[f"{MODULE}.weight"])
    tensors[f"{MODULE}.g_idx"] = torch.zeros_like(tensors[f"{MODULE}.g_idx"])
    path = write_hf(tmp_path / "m", config(quantization_config=GPTQ), tensors=tensors, dtype=None)
    found = SafetensorsSource(path).read(f"{MODULE}.weight")
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found, expected)


def test_a_lone_file_of_any_name_is_the_checkpoint(tmp_path: Path) -> None:
    path = write_hf(tmp_path / "m")
    (path / "model.safetensors").rename(path / "gptq_model-4bit-128g.safetensors")
    assert set(SafetensorsSource(path).tensors) == set(weights(config()))
