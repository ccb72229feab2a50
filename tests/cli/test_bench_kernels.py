"""What `strata bench kernels --device cuda` has measured, and how it shows it, wherever there is no GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pytest

from strata.bench import gpu_attention, gpu_experts, gpu_kernels, gpu_misses, gpu_time
from strata.bench.experts import Experts
from strata.cli.main import main

QWEN3 = "int4:2048x768:8/128"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Numbers of tokens that experts were measured with; each measurement finds one thing for each of its cases."""
    seen: list[tuple[int, ...]] = []

    def found(case: object) -> gpu_time.Measurement:
        return gpu_time.Measurement(str(case), 1, 1e-6, 1e9, 1e9, 1e12)

    def experts(cases: Sequence[Experts], tokens: Sequence[int]) -> Iterator[gpu_time.Measurement]:
        seen.append(tuple(tokens))
        yield from map(found, cases)

    def misses(case: Experts) -> Iterator[gpu_misses.Measurement]:
        yield gpu_misses.Measurement(str(case), 1, 0, 1e-6, None, 1e9, 2e9, 0, 0.5)

    monkeypatch.setattr(gpu_kernels, "run", lambda products, tokens: map(found, products))
    monkeypatch.setattr(gpu_attention, "run", lambda cases: map(found, cases))
    monkeypatch.setattr(gpu_experts, "run", experts)
    monkeypatch.setattr(gpu_misses, "run", misses)
    return seen


ALL = [*map(str, gpu_kernels.QWEN3_8B), *map(str, gpu_attention.QWEN3_30B), QWEN3]


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        pytest.param([], [gpu_time.HEADER, *ALL], id="nothing asked for: all but what fills host memory"),
        pytest.param(["--experts", "int4:64x32:2/4"], [gpu_time.HEADER, "int4:64x32:2/4"], id="experts alone"),
        pytest.param(["--misses"], [gpu_misses.HEADER, QWEN3], id="the usual experts' misses alone"),
        pytest.param(
            ["--experts", "bf16:64x32:2/4", "--misses", "mxfp4:64x32:2/4"],
            [gpu_time.HEADER, "bf16:64x32:2/4", gpu_misses.HEADER, "mxfp4:64x32:2/4"],
            id="two tables",
        ),
    ],
)
def test_what_is_asked_for_is_shown(
    asked: list[tuple[int, ...]], capsys: pytest.CaptureFixture[str], options: list[str], shown: list[str]
) -> None:
    headers = {gpu_time.HEADER, gpu_misses.HEADER}
    assert main(["bench", "kernels", "--device", "cuda", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line if line in headers else line.split()[0] for line in lines] == shown
    assert main(["bench", "kernels", "--device", "cuda", *options, "--json"]) == 0
    assert [one["what"] for one in json.loads(capsys.readouterr().out)] == [
        line for line in shown if line not in headers
    ]


def test_numbers_of_tokens(asked: list[tuple[int, ...]]) -> None:
    options = ["bench", "kernels", "--device", "cuda", "--experts", QWEN3]
    assert main(options) == 0
    assert main([*options, "--tokens", "1,64"]) == 0
    assert asked == [gpu_experts.TOKENS, (1, 64)]
