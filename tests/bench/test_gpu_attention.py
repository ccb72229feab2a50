"""The measurement of a GPU's attention: what it takes, and on a GPU what it finds."""

from __future__ import annotations

import pytest
import torch

from strata.bench import gpu_attention
from strata.bench.gpu_attention import QWEN3_30B, Attention, run
from strata.bench.gpu_time import HEADER, line
from strata.errors import HardwareError, OptionError


def test_attention_is_read_as_it_is_written() -> None:
    for case in QWEN3_30B:
        assert Attention.parse(str(case)) == case


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ("32/4/128:1x1023", "HEADS/KV_HEADS/HEAD_DIM:SEQSxCONTEXT"),
        ("32/5/128:1x1023+1", "shared out evenly"),
        ("32/4/128:1x1023+0", "only CONTEXT may be 0"),
        ("3/1/8:1x0+1", "groups of 32"),
    ],
)
def test_what_is_no_attention_is_refused(text: str, about: str) -> None:
    with pytest.raises(OptionError, match=about):
        Attention.parse(text)


def test_what_is_read_and_multiplied() -> None:
    case = Attention.parse("4/2/64:3x10+2")
    assert case.kv_bytes == 3 * 12 * 2 * (2 * 64) * 2  # positions, keys and values, their width, bf16
    assert case.operations == 3 * (11 + 12) * 4 * (64 + 64) * 2  # the first new token sees 11, each twice


def test_every_sequence_has_blocks_of_its_own() -> None:
    batch = gpu_attention._batch(Attention(4, 2, 64, seqs=3, context=30, new=5), torch.device("cpu"))
    assert sorted(batch.tables.flatten().tolist()) == list(range(9))
    assert batch.positions.tolist() == 3 * list(range(30, 35))
    assert (batch.starts.tolist(), batch.lengths.tolist(), batch.max_query) == ([0, 5, 10, 15], [35] * 3, 5)
    slots = batch.slots.view(3, 5)
    assert slots[:, 0].tolist() == (batch.tables[:, 1] * 16 + 14).tolist()
    assert slots[:, 2].tolist() == (batch.tables[:, 2] * 16).tolist()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(HardwareError, match="no NVIDIA GPU"):
        next(run(QWEN3_30B))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("text", ["8/2/128:2x4095+1", "8/2/128:1x0+512"])
def test_a_gpu_is_measured(text: str) -> None:
    (found,) = run([Attention.parse(text)])
    # It cannot have read the cache faster than twice what memory allows: copies would come from the GPU's cache.
    assert 0 < found.share < 2
    assert len(line(found)) == len(HEADER)
