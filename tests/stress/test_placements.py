"""The check of placements itself: what is equal passes, a wrong expert does not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from strata.experts.cpu import CpuExperts
from strata.store.convert import convert
from strata.store.reader import Store
from strata.store.sources.gguf import GGUFSource
from tests.experts.test_resident import ARCHITECTURES
from tests.store.checkpoints import config, write_gguf
from tests.stress import placements
from tests.stress.equality import Compared, Difference
from tests.stress.upcycle import shorten, upcycle

TINY = [
    "--models",
    "tiny",
    "--device",
    "cpu",
    "--prompts",
    "2",
    "--tokens",
    "4",
    "--steps",
    "4",
    "--batch-sizes",
    "1,3",
]
FEW = ["--placements", "cpu,fetch", "--predictors", "gate", "--set", "pipeline_depth=1"]


@pytest.fixture(autouse=True)
def one_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "all of one kind"
    monkeypatch.setattr("tests.stress.placements.ARCHITECTURES", {name: ARCHITECTURES[name]})


def test_every_way_is_compared_with_all_in_vram(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert placements.main([*TINY, *FEW, "--directory", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert not said.err
    rows = [line.partition("%")[0].split() for line in said.out.splitlines() if line.startswith("Mixtral")]
    ways = [f"{way} gate {on} pipeline_depth=1" for way in ("cpu", "fetch") for on in ("gpu", "cpu")]
    assert [" ".join(row[:-1]) for row in rows] == [
        "Mixtral vram off gpu 3",
        *(f"Mixtral {way} {size}" for way in ways for size in (1, 3)),
    ]


def test_a_wrong_expert_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put = CpuExperts.put
    monkeypatch.setattr(CpuExperts, "put", lambda self, row, expert, blob: put(self, row, expert ^ (row == 1), blob))
    one = ["--placements", "cpu", "--predictors", "off", "--routing", "gpu"]
    assert placements.main([*TINY, *one, "--directory", str(tmp_path)]) == 1
    assert "not equal: Mixtral, cpu off gpu, batch 1: relative error" in capsys.readouterr().err


def compared(error: float = 0.0, behind: float = 0.0) -> Compared:
    return Compared(0.9, 1, 2, error, error, 2.0, (Difference(0, 3, 5, 6, behind, 0.1), Difference(1, 3, 5, 6, 0, 0)))


@pytest.mark.parametrize(
    ("found", "problems"),
    [
        pytest.param(compared(0.05, 0.5), 0, id="within both"),
        pytest.param(compared(0.051), 1, id="logits are off"),
        pytest.param(compared(math.nan), 1, id="not a number"),
        pytest.param(compared(0.01, 0.51), 1, id="another token, which rounding does not explain"),
        pytest.param(compared(0.06, math.nan), 2, id="all is wrong"),
    ],
)
def test_bounds(found: Compared, problems: int) -> None:
    assert len(found.problems(0.05, 0.5)) == problems


@pytest.mark.parametrize(
    ("itself", "behind", "equal"),
    [
        pytest.param(0.0, 0.5, True, id="what rounding explains"),
        pytest.param(0.0, 0.6, False, id="more"),
        pytest.param(0.8, 0.8, True, id="as far as all in VRAM is at another batch size"),
        pytest.param(0.8, 0.9, False, id="further"),
        pytest.param(1.1, 0.0, False, id="all in VRAM too far from itself"),
    ],
)
def test_a_way_may_be_as_far_off_as_all_in_vram_at_another_batch_size(
    itself: float, behind: float, equal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(name: str, *_: Any) -> Iterator[placements.Row]:
        yield placements.Row(name, str(placements.VRAM), 4, compared(behind=itself))
        yield placements.Row(name, "cpu off gpu", 1, compared(behind=behind))

    monkeypatch.setattr(placements, "rows_of", rows)
    assert placements.main([*TINY, *FEW, "--directory", str(tmp_path)]) == (0 if equal else 1)


@pytest.mark.parametrize(("text", "value"), [("pipeline_depth=1,4", [1, 4]), ("hugepages=off", ["off"])])
def test_more_settings(text: str, value: list[Any]) -> None:
    assert placements.setting(text) == (text.partition("=")[0], value)


@pytest.mark.parametrize("arguments", [["--set", "slots=1"], ["--placements", "disk"], ["--set", "prefetch"]])
def test_what_is_not_known_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        placements.main(arguments)
    assert "of: device" in capsys.readouterr().err or arguments[0] == "--placements"


@pytest.mark.parametrize(("kind", "form"), [("F16", "int4"), ("MXFP4", "mxfp4")])
def test_experts_are_their_layers_mlp_and_differ(tmp_path: Path, kind: str, form: str) -> None:
    dense = write_gguf(tmp_path / "dense.gguf", config(num_hidden_layers=3))
    made = upcycle(dense, tmp_path / "moe.gguf", layers=2, num_experts=4, noise=0.2, kind=kind)
    store = Store.open(convert(str(made), tmp_path / "store", "int4"))
    model, layout = store.model_config, store.manifest.contents.experts
    assert (model.architecture, model.num_layers) == ("MixtralForCausalLM", 2)
    assert layout is not None
    assert {weight.format for weight in layout.weights.values()} == {form}
    before, after = GGUFSource(dense), GGUFSource(made)
    name = "model.layers.1.mlp.{}up_proj.weight"
    mlp = before.read(name.format("")).float()  # type: ignore[union-attr]
    if kind == "F16":
        experts = [after.read(name.format(f"experts.{i}.")).float() for i in range(4)]  # type: ignore[union-attr]
        for expert in experts:
            assert 0.15 < float((expert - mlp).norm() / (mlp - mlp.mean()).norm()) < 0.25
        assert len({float(expert.sum()) for expert in experts}) == 4
    query = "model.layers.1.self_attn.q_proj.weight"
    assert torch.equal(before.read(query), after.read(query))


def test_a_shorter_model_has_the_first_layers(tmp_path: Path) -> None:
    dense = write_gguf(tmp_path / "dense.gguf", config(num_hidden_layers=3))
    short = GGUFSource(shorten(dense, tmp_path / "short.gguf", 2))
    assert short.model.num_layers == 2
    name = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(GGUFSource(dense).read(name), short.read(name))
    assert short.tensors["model.embed_tokens.weight"].dtype == "Q4_0"
