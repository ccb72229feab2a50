"""The measurement of experts that VRAM has not: with the CPU's real threads, and on a GPU where there is one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest
import torch

from strata.bench import gpu_misses
from strata.bench.experts import Experts, random_blobs
from strata.bench.gpu_misses import HEADER, Measurement, Rates, line, measure, run
from strata.errors import HardwareError, OptionError
from tests.experts.blob_kernels import CachedKernels, bytes_at

CASE = Experts.parse("int4:64x32:2/5")
TILES = 4 * (320 + 2 * 256) + 4 * (320 + 256)  # bytes of an expert: see test_bench
CODES = 32 * 64 // 2  # of gate, which a blob begins with


def clocked(calls: Sequence[Callable[[], None]]) -> float:
    began = time.perf_counter()
    for call in calls:
        call()
    return (time.perf_counter() - began) / len(calls)


def measured(case: Experts) -> list[Measurement]:
    return list(measure(case, 2, CachedKernels(), torch.device("cpu"), Rates(4e9, 8e9), clocked))


def test_each_number_fetched_and_computed() -> None:
    found = measured(CASE)
    ways = [(one.fetched, one.computed) for one in found]
    assert ways == [(1, 0), (2, 0), (4, 0), (5, 0), (0, 1), (1, 1), (0, 2)], "a token takes two"
    for one in found:
        assert one.rate * one.seconds == pytest.approx((one.fetched + one.computed) * TILES)
        assert one.share == one.rate / (8e9 if one.computed else 4e9)
        assert one.prefetch_bytes >= 0
        if one.computed:
            assert one.cpu_seconds is not None
            assert one.cpu_seconds > 0
        else:
            assert one.cpu_seconds is None


def test_all_that_is_fetched_is_another_expert() -> None:
    """So that it comes from host memory every time."""
    samples = random_blobs(CASE.layout())
    tier = gpu_misses._tier(CASE, 2, 2, samples, CachedKernels(), torch.device("cpu"))
    try:
        assert [len(tier.buffers.fetching(count)) for count in (1, 2, 5)] == [10, 4, 2]
        found = []
        for fetch in tier.buffers.fetching(1):
            fetch()
            found.append(bytes_at(int(tier.buffers.places[0, 0]), CODES).clone())
        for blob, number in zip(found, 2 * list(range(5)), strict=True):
            assert torch.equal(blob, samples[number % len(samples)][:CODES])
    finally:
        tier.close()


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(OptionError, match="twice as many experts"):
        measured(Experts.parse("int4:64x32:2/3"))


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        pytest.param((100, 20), (500, 320), 0.75, id="of what came"),
        pytest.param(None, None, None, id="the kernel does not tell"),
        pytest.param((500, 0), (500, 0), None, id="nothing came"),
    ],
)
def test_the_share_in_huge_pages(
    before: tuple[int, int] | None, after: tuple[int, int] | None, share: float | None
) -> None:
    assert gpu_misses._huge_share(before, after) == share


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(HardwareError, match="no NVIDIA GPU"):
        next(run(CASE))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_gpu_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_misses, "MEMORY_BYTES", 64 << 20)
    found = list(run(Experts.parse("int4:2048x768:4/16")))
    assert {one.fetched for one in found if not one.computed} == {1, 2, 4, 8, 16}
    for one in found:
        if one.computed:
            assert one.cpu_seconds is not None
            assert one.cpu_seconds > 0
        else:
            # It cannot be fetched twice as fast as PCIe copies: it would come from the GPU's cache.
            assert 0 < one.share < 2


@pytest.mark.parametrize(
    ("found", "end"),
    [
        (Measurement("int4:2048x768:8/128", 128, 0, 6.6e-3, None, 51.3e9, 54.9e9, 4736, 0.97), "4736    97%"),
        (Measurement("int4:2048x768:8/128", 2, 6, 151.04e-6, 101e-6, 140e9, 160e9, 0, None), "0.88         0      -"),
    ],
)
def test_lines_stand_under_their_heading(found: Measurement, end: str) -> None:
    assert len(line(found)) == len(HEADER)
    assert line(found).endswith(end)
