"""Experts shared by several ranks: what they return adds up to what one alone would, and so do their bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from strata.experts import cpu, layers
from strata.experts.hybrid import Hybrid
from strata.experts.resident import Resident
from tests.experts.blob_kernels import CachedKernels
from tests.experts.rank_cases import open_ranks, run_beside_shared, run_calibration, run_layers
from tests.experts.test_resident import ARCHITECTURES, made_store
from tests.kernels.interpret import Interpreter
from tests.models import tiny

COUNTS = [2, 3]  # the latter share eight experts as three, three and two
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3}
PLACES = [
    "reference",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")),
]
# On a card activations are rounded to 8 bits or to bf16, for experts in its memory alone.
TOLERANCE = {"reference": 1e-3, "interpreted": 1e-3, "cuda": 3e-2}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Stores by the formats of their experts, made once."""
    made: dict[str, str] = {}

    def path(dtype: str) -> str:
        if dtype not in made:
            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(ARCHITECTURES, "ranks", ARCHITECTURES["a dense layer between"] | EXPERTS)
                made[dtype] = str(made_store(tmp_path_factory.mktemp("ranks"), dtype, "ranks").path)
        return made[dtype]

    return path


def here(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def check(where: str, call: Callable[..., Any], path: str, count: int, placement: str, *way: str) -> None:
    alone, alone_counted = call(run_layers, where, path, 1, placement, *way)
    found, counted = call(run_layers, where, path, count, placement, *way)
    for step, (each, expected) in enumerate(zip(found, alone, strict=True)):
        assert tiny.relative(each, expected) < TOLERANCE[where], f"layer {step % 2} of step {step // 2}"
    if placement == "resident":
        assert not counted
        return
    (one,) = alone_counted
    totals = [stats.total for stats in counted]
    assert sum(total.needed for total in totals) == one.total.needed, "each expert is one rank's"
    assert all(total.needed > total.in_vram and total.streamed > 0 for total in totals)
    assert (sum(total.fetched for total in totals) > 0) == (placement != "cpu")
    assert placement == "fetch" or sum(total.computed for total in totals) > 0
    assert [stats.num_host for stats in counted] == [2 * len(range(index, 8, count)) for index in range(count)]


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("dtype", ["int4", "bf16"])
@pytest.mark.parametrize("placement", ["resident", "fetch", "cpu", "hybrid"])
def test_ranks_add_up_to_one(paths: Callable[[str], str], where: str, count: int, dtype: str, placement: str) -> None:
    check(where, here, paths(dtype), count, placement)


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(
    ("placement", "predictor", "routed_on"),
    [
        pytest.param("cpu", "off", "cpu", id="the CPU chooses, and does not know whose the experts are"),
        pytest.param("fetch", "off", "cpu", id="the CPU chooses what is fetched"),
        pytest.param("fetch", "gate", "gpu", id="fetched ahead as the next router says"),
        pytest.param("cpu", "history", "gpu", id="fetched ahead as the last steps say"),
    ],
)
def test_ranks_add_up_whoever_chooses_or_guesses(
    paths: Callable[[str], str], where: str, placement: str, predictor: str, routed_on: str
) -> None:
    path = paths("int4")
    alone, (one,) = run_layers(where, path, 1, placement, predictor, routed_on)
    found, counted = run_layers(where, path, 3, placement, predictor, routed_on)
    assert tiny.relative(torch.cat(found), torch.cat(alone)) < TOLERANCE[where]
    assert sum(stats.total.needed for stats in counted) == one.total.needed
    assert (sum(stats.total.prefetch_used for stats in counted) > 0) == (predictor != "off")
    for stats in counted:
        assert stats.cpu is not None
        assert (stats.cpu.routed > 0) == (routed_on == "cpu")


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("num_disk", [0, 1], ids=["by the copy engine", "some from disk"])
def test_ranks_add_up_where_whole_layers_come(
    paths: Callable[[str], str], where: str, num_disk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "copies_whole_layers", lambda num_slots, num_experts: True)
    monkeypatch.setattr(layers, "PIECE", 2)
    monkeypatch.setattr(cpu, "_fitting", lambda layout, size, num_slots: (layout.num_experts - num_disk, 0))
    monkeypatch.setattr("strata.experts.spill._is_memory", lambda directory: False)  # whatever /tmp is
    (alone, _), (found, counted) = (run_layers(where, paths("int4"), count, "fetch") for count in (1, 3))
    assert tiny.relative(torch.cat(found), torch.cat(alone)) < TOLERANCE[where]
    assert [stats.num_disk for stats in counted] == [2 * num_disk] * 3
    assert all(stats.total.streamed > 0 for stats in counted)


@pytest.mark.parametrize("placement", ["resident", "hybrid"])
def test_one_rank_pays_nothing(paths: Callable[[str], str], placement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def launched(*arguments: Any) -> None:
        raise AssertionError("whose experts these are is known")

    monkeypatch.setattr(CachedKernels, "own", launched)
    run_layers("reference", paths("int4"), 1, placement)
    with pytest.raises(AssertionError, match="is known"):
        run_layers("reference", paths("int4"), 2, placement)
    with open_ranks("reference", paths("int4"), 1, placement) as ranks:
        (tier,) = ranks.tiers
        registry = tier.registry if isinstance(tier, Resident) else tier.slots.registry  # type: ignore[attr-defined]
        assert registry.rows.shape == (2, 8)
        assert registry.table.is_contiguous()


@pytest.mark.parametrize(("placement", "way"), [("hybrid", ()), ("fetch", ("gate", "gpu"))], ids=["both", "ahead"])
def test_it_is_so_where_triton_decides(
    paths: Callable[[str], str], interpreter: Interpreter, placement: str, way: tuple[str, ...]
) -> None:
    alone, (one,) = run_layers("reference", paths("int4"), 1, placement, *way)
    found, counted = interpreter.call(run_layers, "interpreted", paths("int4"), 3, placement, *way)
    assert tiny.relative(torch.cat(found), torch.cat(alone)) < TOLERANCE["interpreted"]
    assert sum(stats.total.needed for stats in counted) == one.total.needed


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("placement", ["resident", "cpu"])
def test_one_rank_adds_the_shared_expert(tmp_path: Path, where: str, placement: str) -> None:
    path = str(made_store(tmp_path, "int4", "beside a shared one").path)
    alone, found = (run_beside_shared(where, path, count, placement) for count in (1, 2))
    assert tiny.relative(found, alone) < TOLERANCE[where]


@pytest.mark.parametrize("where", PLACES)
def test_each_rank_tries_its_own_experts(paths: Callable[[str], str], where: str) -> None:
    """Of which the third has two, fewer than a token takes of all."""
    splits = run_calibration(where, paths("int4"), 3)
    assert [len(split) for split in splits] == [3 + 1, 3 + 1, 2 + 1]


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("count", [1, *COUNTS])
def test_memory_is_each_ranks_own(paths: Callable[[str], str], where: str, count: int) -> None:
    with open_ranks(where, paths("int4"), count, "resident") as ranks:
        layout = ranks.store.manifest.contents.experts
        assert layout is not None
        slabs = [tier._slab.nbytes for tier in ranks.tiers if isinstance(tier, Resident)]
        addresses = [tier.registry.table for tier in ranks.tiers if isinstance(tier, Resident)]
    assert sum(slabs) == layout.num_bytes
    own = [len(range(index, 8, count)) for index in range(count)]
    assert slabs == [len(layout.layers) * number * layout.blob_bytes for number in own]
    assert [table.shape[1] for table in addresses] == own
    with open_ranks(where, paths("int4"), count, "cpu") as ranks:
        tiers = [tier for tier in ranks.tiers if isinstance(tier, Hybrid)]
        pinned = [sum(slab.tensor.nbytes for slab in tier.cpu._slabs) for tier in tiers]
        slots = [tier.slots.num_changing for tier in tiers]
    assert pinned == [len(layout.layers) * number * tiers[0].cpu.stride for number in own]
    assert slots == [number // 2 for number in own]
