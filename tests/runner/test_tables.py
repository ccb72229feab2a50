"""A model whose embeddings of n-grams lie in its store's tables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strata.errors import CheckpointError
from strata.store.convert import convert
from strata.store.reader import Store
from tests.models.test_stores import loaded, run, saved


@pytest.fixture
def store(tmp_path: Path) -> Store:
    saved("qwen4", tmp_path / "source")
    return Store.open(convert(str(tmp_path / "source"), tmp_path / "store", "bf16"))


def test_rows_are_counted_and_the_start_says_what_is_left_for_them(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    runner = loaded(store)
    assert "tables of n-grams: " in caplog.text
    assert "which has room for all" in caplog.text
    before = runner.table_counts()
    assert before is not None
    run(runner)
    ngrams = store.model_config.ngrams
    after = runner.table_counts()
    assert ngrams is not None
    assert after is not None
    assert (after.rows - before.rows) % (len(ngrams.layers) * ngrams.num_heads) == 0
    assert after.rows - before.rows >= 100 * len(ngrams.layers) * ngrams.num_heads


def test_a_step_that_reads_what_is_damaged_ends_in_an_error(store: Store) -> None:
    runner = loaded(store)
    for file in (store.path / "tables").iterdir():
        os.truncate(file, 0)
    with pytest.raises(CheckpointError, match="ends inside page"):
        run(runner)
