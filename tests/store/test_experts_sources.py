"""Experts under every name and in every stack: what a source gives is what `transformers` computes with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from strata import quant
from strata.config import read_hf_config
from strata.errors import CheckpointError
from strata.plan.shape import check
from strata.quant import QuantizedTensor
from strata.store.sources.safetensors import SafetensorsSource
from strata.store.sources.safetensors_files import SafetensorsFiles
from tests.store import packing
from tests.store.checkpoints import write_hf
from tests.store.test_schemes import without_accelerate

HIDDEN, INNER, EXPERTS = 64, 32, 4

COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "num_experts_per_tok": 2,
    "initializer_range": 0.2,
}
CONFIGS: dict[str, Any] = {
    "mixtral": transformers.MixtralConfig(num_local_experts=EXPERTS, **COMMON),
    "qwen2_moe": transformers.Qwen2MoeConfig(
        num_experts=EXPERTS, moe_intermediate_size=INNER, shared_expert_intermediate_size=96, **COMMON
    ),
    "qwen3_moe": transformers.Qwen3MoeConfig(
        num_experts=EXPERTS, moe_intermediate_size=INNER, mlp_only_layers=[1], **COMMON
    ),
    "gpt_oss": transformers.GptOssConfig(num_local_experts=EXPERTS, **COMMON),
}


def model_of(kind: str) -> Any:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[kind], attn_implementation="eager").float().eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1 or name.endswith("_bias"):
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.1)
    return model


def write_fused(directory: Path, model: Any) -> Path:
    """The parameters as the model has them in memory: experts stacked, gate and up fused."""
    directory.mkdir()
    write_config(directory, model)
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, directory / "model.safetensors")
    return directory


def write_saved(directory: Path, model: Any) -> Path:
    """As the library saves the model: each expert by itself, under the names of the first checkpoints."""
    model.save_pretrained(directory)
    write_config(directory, model)
    return directory


def write_config(directory: Path, model: Any) -> None:
    table = model.config.to_dict() | {"architectures": [type(model).__name__]}
    (directory / "config.json").write_text(json.dumps(table))


def read_all(path: Path) -> dict[str, torch.Tensor]:
    """Every needed tensor, after the check that there are no others."""
    source = SafetensorsSource(path)
    shapes = {name: tensor.shape for name, tensor in source.tensors.items()}
    found = {}
    for spec in check(read_hf_config(source.config, origin="m"), shapes, origin=str(path)):
        tensor = source.read(spec.name)
        assert isinstance(tensor, torch.Tensor)
        assert tuple(tensor.shape) == spec.shape == source.tensors[spec.name].shape
        assert tensor.is_contiguous()
        if tensor.dim() == 2:
            assert torch.equal(source.read(spec.name, slice(1, 3)), tensor[1:3])
        found[spec.name] = tensor
    return found


@pytest.mark.parametrize("kind", CONFIGS)
def test_experts_are_those_that_the_library_computes_with(tmp_path: Path, kind: str) -> None:
    model = model_of(kind)
    tensors = read_all(write_fused(tmp_path / "fused", model))
    experts = model.model.layers[0].mlp.experts
    x = torch.randn(5, HIDDEN)
    for expert in range(EXPERTS):
        chosen, whole = torch.full((5, 1), expert), torch.ones(5, 1)
        with torch.no_grad():
            expected = experts(x, chosen, whole)
        prefix = f"model.layers.0.mlp.experts.{expert}"
        torch.testing.assert_close(forward(tensors, prefix, x, kind), expected, rtol=1e-4, atol=1e-4)


def forward(tensors: dict[str, torch.Tensor], prefix: str, x: torch.Tensor, kind: str) -> torch.Tensor:
    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        bias = tensors.get(f"{prefix}.{name}.bias")
        return torch.nn.functional.linear(x, tensors[f"{prefix}.{name}.weight"], bias)

    gate, up = linear("gate_proj", x), linear("up_proj", x)
    if kind == "gpt_oss":
        gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        return linear("down_proj", (up + 1) * gate * torch.sigmoid(1.702 * gate))
    return linear("down_proj", torch.nn.functional.silu(gate) * up)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_saved_checkpoint_and_the_stacked_parameters_give_the_same_tensors(tmp_path: Path, kind: str) -> None:
    model = model_of(kind)
    saved = read_all(write_saved(tmp_path / "saved", model))
    fused = read_all(write_fused(tmp_path / "fused", model))
    assert set(saved) == set(fused)
    assert all(torch.equal(saved[name], fused[name]) for name in saved)
    stored = set(SafetensorsFiles(tmp_path / "saved").tensors)
    if kind == "mixtral":
        assert "model.layers.1.block_sparse_moe.experts.3.w2.weight" in stored


def test_reading_one_expert_reads_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = SafetensorsSource(write_fused(tmp_path / "fused", model_of("mixtral")))
    read: list[tuple[str, int]] = []
    original = SafetensorsFiles.read

    def counted(files: SafetensorsFiles, name: str, *arguments: Any) -> torch.Tensor:
        tensor: torch.Tensor = original(files, name, *arguments)
        read.append((name, tensor.numel()))
        return tensor

    monkeypatch.setattr(SafetensorsFiles, "read", counted)
    source.read("model.layers.1.mlp.experts.2.up_proj.weight")
    source.read("model.layers.1.mlp.experts.2.down_proj.weight", slice(3, 5))
    prefix = "model.layers.1.mlp.experts"
    assert read == [(f"{prefix}.gate_up_proj", INNER * HIDDEN), (f"{prefix}.down_proj", 2 * INNER)]


def gpt_oss_mxfp4(directory: Path, edit: Callable[[dict[str, torch.Tensor]], None] = lambda _: None) -> Path:
    """A gpt-oss whose experts are in MXFP4, as it is published."""
    model = model_of("gpt_oss")
    random = np.random.default_rng(0)
    tensors = {name: value.bfloat16() for name, value in model.state_dict().items()}
    for layer in range(2):
        for name, rows, cols in (("gate_up_proj", 2 * INNER, HIDDEN), ("down_proj", HIDDEN, INNER)):
            prefix = f"model.layers.{layer}.mlp.experts.{name}"
            del tensors[prefix]
            codes = random.integers(0, 16, (EXPERTS, rows, cols))
            stored = packing.mxfp4(codes, random.integers(118, 124, (EXPERTS, rows, cols // 32)))
            tensors |= {f"{prefix}_{part}": tensor for part, tensor in stored.items()}
    edit(tensors)
    table = model.config.to_dict() | {
        "architectures": ["GptOssForCausalLM"],
        "quantization_config": {
            "quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
        },
    }
    return write_hf(directory, table, tensors=tensors, dtype=None, shards=2)


def test_mxfp4_experts_are_kept_and_are_those_of_the_library(tmp_path: Path) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors  # takes seconds

    path = gpt_oss_mxfp4(tmp_path / "m")
    source, files = SafetensorsSource(path), SafetensorsFiles(path)
    shapes = {name: tensor.shape for name, tensor in source.tensors.items()}
    check(read_hf_config(source.config, origin="m"), shapes, origin=str(path))
    for name, rows in (("gate_up_proj", 2 * INNER), ("down_proj", HIDDEN)):
        stem = f"model.layers.1.mlp.experts.{name}"
        theirs = convert_moe_packed_tensors(
            files.read(f"{stem}_blocks"), files.read(f"{stem}_scales"), dtype=torch.float32
        ).transpose(1, 2)  # theirs are [experts, cols, rows]
        assert theirs.shape[1] == rows
        for expert in range(EXPERTS):
            if name == "down_proj":
                wanted = {"down_proj": theirs[expert]}
            else:
                wanted = {"gate_proj": theirs[expert, ::2], "up_proj": theirs[expert, 1::2]}
            for projection, numbers in wanted.items():
                key = f"model.layers.1.mlp.experts.{expert}.{projection}.weight"
                found = source.read(key)
                assert isinstance(found, QuantizedTensor)
                assert (found.format, source.tensors[key].dtype) == ("mxfp4", "MXFP4")
                assert torch.equal(quant.get("mxfp4").unpack(found), numbers)
                some = source.read(key, slice(2, 9))
                assert isinstance(some, QuantizedTensor)
                assert some.shape == (7, numbers.shape[1])
                assert torch.equal(quant.get("mxfp4").unpack(some), numbers[2:9])
    bias = source.read("model.layers.0.mlp.experts.3.up_proj.bias")
    assert torch.equal(bias, files.read("model.layers.0.mlp.experts.gate_up_proj_bias")[3, 1::2])


def test_the_library_loads_the_same_gpt_oss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_accelerate(monkeypatch)
    path = gpt_oss_mxfp4(tmp_path / "m")
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    theirs = read_all(write_fused(tmp_path / "fused", model))
    source = SafetensorsSource(path)
    assert set(source.tensors) == set(theirs)
    for name, tensor in theirs.items():
        found = source.read(name)
        numbers = quant.get("mxfp4").unpack(found) if isinstance(found, QuantizedTensor) else found
        assert torch.equal(numbers.float(), tensor.float()), name


def test_stacked_experts_in_fp8(tmp_path: Path) -> None:
    model = model_of("qwen3_moe")
    tensors = dict(model.state_dict())
    for name in [name for name in tensors if ".experts." in name]:
        blocks = tensors[name].view(EXPERTS, -1, 16, tensors[name].shape[2] // 16, 16)
        scales = blocks.abs().amax((2, 4), keepdim=True) / 448
        rounded = (blocks / scales).to(torch.float8_e4m3fn)
        model.get_parameter(name).data.copy_((rounded.float() * scales).view(tensors[name].shape))
        tensors[name] = rounded.view(tensors[name].shape)
        tensors[f"{name}_scale_inv"] = scales[:, :, 0, :, 0].contiguous()
    expected = read_all(write_fused(tmp_path / "plain", model))
    path = write_fused(tmp_path / "fp8", model)
    save_file(tensors, path / "model.safetensors")
    table = json.loads((path / "config.json").read_text())
    table["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    (path / "config.json").write_text(json.dumps(table))
    found = read_all(path)
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


STEM = "model.layers.0.mlp.experts.down_proj"


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda tensors: tensors.pop(f"{STEM}_scales"), rf"{STEM}_blocks' needs '{STEM}_scales' beside it"),
        (
            lambda tensors: tensors.update({f"{STEM}_scales": torch.zeros(4, 64, 2, dtype=torch.uint8)}),
            f"{STEM}_scales",
        ),
        (lambda tensors: tensors.update({f"{STEM}_blocks": torch.zeros(4, 64, 1, 8, dtype=torch.uint8)}), STEM),
        (lambda tensors: tensors.update({f"{STEM}_blocks": torch.zeros(4, 64, 1, 16)}), STEM),
        (lambda tensors: tensors[f"{STEM}_scales"].fill_(255), rf"{STEM}_scales' holds NaN"),
        (lambda tensors: tensors[f"{STEM}_scales"].fill_(253), rf"{STEM}_scales' holds NaN or infinite"),
    ],
)
def test_damaged_mxfp4_is_named(tmp_path: Path, edit: Callable[[dict[str, torch.Tensor]], object], named: str) -> None:
    path = gpt_oss_mxfp4(tmp_path / "m", lambda tensors: [edit(tensors)].clear())
    with pytest.raises(CheckpointError, match=rf"model-\d-of-2\.safetensors.*{named}"):
        SafetensorsSource(path).read("model.layers.0.mlp.experts.1.down_proj.weight")


def test_two_names_of_one_tensor_are_refused(tmp_path: Path) -> None:
    files = SafetensorsFiles(write_saved(tmp_path / "m", model_of("mixtral")))
    tensors = {name: files.read(name) for name in files.tensors}
    tensors["model.layers.0.mlp.gate.weight"] = tensors["model.layers.0.block_sparse_moe.gate.weight"].clone()
    save_file(tensors, tmp_path / "m" / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"are both 'model\.layers\.0\.mlp\.gate\.weight'"):
        SafetensorsSource(tmp_path / "m")


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe"])
def test_a_stack_of_the_wrong_shape_is_named(tmp_path: Path, kind: str) -> None:
    path = write_fused(tmp_path / "m", model_of(kind))
    files = SafetensorsFiles(path)
    tensors = {name: files.read(name) for name in files.tensors}
    name = "model.layers.0.mlp.experts.down_proj"
    for odd in (tensors[name][0], tensors[name][:3], tensors[name][:, :, :7]):
        save_file({**tensors, name: odd.contiguous()}, path / "model.safetensors")
        with pytest.raises(CheckpointError, match=r"does not fit a .*model\.layers\.0\.mlp\.experts"):
            read_all(path)
