"""The run of all cases and its page, with a stand-in for the command that prints what the real one does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from strata.cli.main import build_parser
from tests.benchmarks.cases import SUITE, WARM, Case, Served, Store
from tests.benchmarks.page import COLUMNS, page
from tests.benchmarks.rows import Row, first_token, measured, served
from tests.benchmarks.run import Bench

DECODE = {
    "batch_size": 32,
    "tokens_per_second": 2522.4,
    "ratio": 0.5,
    "bound_by": "device memory",
    "expected_tokens_per_second": 2400.0,
    "expected_ratio": 0.95,
    "moved_bytes": {"VRAM": 3 << 30, "PCIe": 1 << 29, "CPU": 0.0},
    "hit_ratio": 0.5,
    "rates": {"device": 4.35e12, "pcie": 55e9, "cpu": 102e9, "flops": 7e14},
}
PREFILL = DECODE | {"prompt_tokens": 8192, "seconds": 0.2, "hit_ratio": None}
del PREFILL["batch_size"]

STRATA = f"""
import os, signal, sys, time
kind, path, *options = sys.argv[2:] if sys.argv[1] == "bench" else sys.argv[1:]
if kind == "shape":
    os.mkdir(options[options.index("--out") + 1])
elif kind == "serve" and sys.argv[1] == "serve":
    if "broken" in path:
        sys.exit("strata: error: no memory")
    print("Strata serves m (int4) at http://127.0.0.1:1", flush=True)
    signal.pause()
elif kind == "serve":
    print({json.dumps({"levels": [{"load": "1 stream", "errors": {}, "tokens_per_second": 700.0, "ttft": {"percentiles": {"50": 0.0123, "90": 0.02}}, "engine": {"client_ratio": 0.97}}]})!r})
elif kind == "decode":
    print("loading", file=sys.stderr)
    print({json.dumps(DECODE)!r})
elif kind == "fail":
    print({json.dumps(DECODE)!r})
    print("first\\nstrata: error: why", file=sys.stderr)
    sys.exit(1)
else:
    time.sleep(600)
"""  # noqa: E501


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    (tmp_path / "strata.py").write_text(STRATA)
    return Bench([sys.executable, str(tmp_path / "strata.py")], tmp_path / "stores", budget=300.0)


STORE, BROKEN = Store("s", "qwen3-8b", "int4", num_layers=2), Store("broken", "qwen3-8b", "int4")


def test_what_is_printed_becomes_rows() -> None:
    (decode,) = measured("m", f"{json.dumps(DECODE)}\n{{torn")
    assert (decode.what, decode.figure, decode.predicted_ratio) == ("decode, batch 32", "2,522 tok/s", 0.95)
    assert (decode.moved, decode.hit_ratio, decode.limited_by) == ("VRAM 3.00, PCIe 0.50", 0.5, "device memory")
    decode, prefill = measured("m", f"{json.dumps(DECODE)}\n{json.dumps(PREFILL)}\n")
    (placed,) = measured("m", json.dumps(DECODE | {"way": "cpu", "vram_share": 0.5}) + "\n")
    assert placed.what == "decode, batch 32, 50% of the experts in VRAM, cpu"
    assert (prefill.what, prefill.figure) == ("prompt of 8,192 tokens", "2,522 tok/s, 200 ms")


def test_a_server_that_answers_nothing_is_a_problem() -> None:
    level = {"load": "1 stream", "errors": {"HTTP 500": 2}, "ttft": None, "engine": None}
    printed = json.dumps({"levels": [level]})
    assert first_token("m", 80, printed).problem == "no answer: {'HTTP 500': 2}"
    assert served("m", printed)[0].problem == "errors: {'HTTP 500': 2}"


def test_every_case_gives_a_row_whatever_becomes_of_it(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    cases: list[Case | Served] = [
        Case("good", STORE, ("decode",)),
        Case("fails", STORE, ("fail",)),
        Case("hangs", STORE, ("hang",), seconds=1.0),
        Served("served", STORE, streams=(1,)),
        Served("not served", BROKEN),
    ]
    found = list(bench.run_all(cases))
    assert [(row.case, row.problem or row.figure) for row in found] == [
        ("good", "2,522 tok/s"),
        ("fails", "2,522 tok/s"),
        ("fails", "ended with 1: strata: error: why"),
        ("hangs", "took more than 1 s"),
        ("served", "12.3 ms, p90 20.0"),
        ("served", "700 tok/s, 0.970 of the engine's"),
        ("not served", "the server did not become ready: strata: error: no memory"),
    ]
    assert json.loads((bench.directory / "figures.jsonl").read_text()) == DECODE
    assert bench.rates == "read, GB/s: VRAM 4,350, PCIe 55, host memory 102; products, TFLOP/s: 700"
    assert "3/5 hangs: hang" in capsys.readouterr().out
    bench.budget = 0.0
    assert bench.run(cases[0])[0].problem == "not measured: 0 s were over"


def test_stores_are_written_once_and_kernels_built_meanwhile(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    warm = Case("kernels", Store("warm", "qwen3-8b", "int4", num_layers=1), ("decode",))
    bench.prepare([STORE, BROKEN], [warm])
    assert sorted(path.name for path in bench.directory.iterdir() if path.is_dir()) == ["broken", "s", "warm"]
    assert "s: written" in capsys.readouterr().out
    bench.prepare([STORE], [])
    assert "s: written" not in capsys.readouterr().out


def test_the_page_has_a_line_for_each_row() -> None:
    (row,) = measured("m", json.dumps(DECODE) + "\n")
    text = page({"card": "NVIDIA H200"}, [row, Row("m", "server", problem="a | b")])
    assert "| card | NVIDIA H200 |" in text
    assert (
        "| m | decode, batch 32 | 2,522 tok/s | 0.50 (device memory) | 2,400 | 0.95 | VRAM 3.00, PCIe 0.50 | 0.500 |"
        in text
    )
    assert "| m | server | **a / b** | - |" in text
    table = [line for line in text.splitlines() if line.startswith("| m ")]
    assert {line.count("|") for line in table} == {len(COLUMNS) + 1}


def test_the_suite_s_commands_are_ones_that_strata_takes() -> None:
    parser = build_parser()
    for case in (*SUITE, *WARM):
        parser.parse_args(["bench", "shape", *case.store.arguments, "--out", "d"])
        if isinstance(case, Case):
            kind, *options = case.arguments
            parser.parse_args(["bench", kind, "d", *options, "--json"])
