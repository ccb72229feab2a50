"""What tables of n-grams take of disk and RAM."""

from __future__ import annotations

import math

import pytest

from strata.config import EngineConfig, SchedulerConfig, read_hf_config
from strata.config.keys import Keys
from strata.config.ngram import NGramConfig, read_ngrams
from strata.config.public import SHAPES
from strata.plan.fit import Machine, fit
from strata.plan.memory import PROCESS_BYTES
from strata.plan.ngrams import TableFit, page_bytes, rows_per_page, table_bytes
from strata.plan.parts import weight_parts
from strata.plan.shape import Role, TensorSpec
from strata.plan.speed import Rates
from strata.store.files import read_json
from strata.store.tables import table_layouts


def published() -> NGramConfig:
    """Sizes as the published model has them."""
    table = {"vocab_size": 248_320, "hidden_size": 2560, "ple_layer_ids": [2], "eos_token_id": 1}
    config = read_ngrams(Keys(table, "here"), 48)
    assert config is not None
    return config


@pytest.mark.parametrize(
    ("dim", "page", "rows"),
    [(160, 4096, 12), (256, 4096, 7), (2044, 4096, 1), (2045, 8192, 2), (4092, 8192, 1), (4093, 12_288, 1)],
)
def test_a_page_has_as_many_whole_rows_as_leave_room_for_its_checksum(dim: int, page: int, rows: int) -> None:
    assert (page_bytes(dim), rows_per_page(dim)) == (page, rows)


def test_bytes_are_those_of_the_stores_files() -> None:
    ngrams = published()
    (layout,) = table_layouts([TensorSpec("t", (ngrams.num_rows(1), ngrams.head_dim), Role.NGRAMS)], 1 << 27)
    assert table_bytes(ngrams) == layout.num_bytes
    assert 101 < layout.num_bytes / 2**30 < 102
    assert ngrams.num_rows(1) * 320 / 2**30 == pytest.approx(95.4, abs=0.1)


def test_with_enough_ram_no_read_goes_to_the_disk() -> None:
    for ram in (None, 200 << 30):
        found = TableFit.of(published(), ram)
        assert (found.disk_share, found.tokens_per_second) == (0, None)
        assert "disk if" not in str(found)


def test_with_little_ram_the_disk_bounds_the_rate() -> None:
    half = TableFit.of(published(), table_bytes(published()) // 2)
    assert half.disk_share == pytest.approx(0.5)
    assert half.tokens_per_second == pytest.approx(32 / 100e-6 / 8)
    assert "50% of reads go to the disk" in str(half)
    assert "40000 tok/s at most" in str(half)
    assert TableFit.of(published(), -1).disk_share == 1


def test_ram_that_experts_leave_is_for_the_page_cache() -> None:
    model = read_hf_config(read_json(SHAPES["qwen3.8-flash-next"]), origin="test")
    config = EngineConfig(model="m", scheduler=SchedulerConfig(max_model_len=4096, max_num_seqs=1))

    def tables(vram_gib: int | None, ram_gib: int | None) -> TableFit:
        rates = Rates(device=936e9, pcie=12e9, cpu=50e9, dram=60e9)
        vram, ram = (None if gib is None else gib << 30 for gib in (vram_gib, ram_gib))
        found = fit(model, config, Machine(vram, ram, rates), element_bytes=2)
        assert found.tables is not None
        assert found.tables.disk_bytes == table_bytes(published())
        assert found.store_bytes == found.tables.disk_bytes + weight_parts(model, "int4").total
        return found.tables

    experts = weight_parts(model, "int4").experts
    assert tables(24, None).ram_bytes is None
    assert tables(24, 128).ram_bytes == (128 << 30) - PROCESS_BYTES - math.ceil(experts)
    assert tables(24, 64).disk_share > 0.9, "what experts take is not left for pages"
    assert tables(None, 256).disk_share == 0
    assert (tables(None, 256).ram_bytes or 0) < (256 << 30) - experts
