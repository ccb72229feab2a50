"""What is made of compute-sanitizer's words, with a program that pretends to be it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.stress import sanitize

CLEAN = "3 passed, 9 deselected in 4.20s\n========= ERROR SUMMARY: 0 errors\n"
BAD = (
    "========= COMPUTE-SANITIZER\n========= Invalid __global__ write of size 4 bytes\n3 passed in 4.20s\n"
    "========= ERROR SUMMARY: 1 error\n"
)


@pytest.mark.parametrize(
    ("printed", "code", "problem"),
    [
        pytest.param(CLEAN, 0, "", id="clean"),
        pytest.param(CLEAN.replace("3 passed", "3 skipped"), 0, "no test ran on a card", id="no card"),
        pytest.param("9 deselected in 0.1s", 5, "no test ran on a card", id="no test"),
        pytest.param(BAD, 86, "Invalid __global__ write of size 4 bytes", id="a write beside its tensor"),
        pytest.param(BAD, 0, "Invalid __global__ write of size 4 bytes", id="found, though nothing failed"),
        pytest.param(CLEAN.replace("3 passed", "1 failed, 2 passed"), 1, "pytest ended with 1", id="a test failed"),
    ],
)
def test_outcomes(tmp_path: Path, printed: str, code: int, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "compute-sanitizer"
    (tmp_path / "printed").write_text(printed)
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked; cat {tmp_path}/printed; exit {code}\n')
    program.chmod(0o755)
    files = [str(Path(__file__).parents[1] / "kernels" / "test_rms_norm.py")]
    arguments = [
        "--program",
        str(program),
        "--logs",
        str(tmp_path / "logs"),
        "--pytest",
        "-c other.ini",
        "--files",
        *files,
    ]
    assert sanitize.main([*arguments, "--files", *files]) == bool(problem)
    line, total = capsys.readouterr().out.splitlines()
    assert line.endswith(problem or "clean")
    assert total.startswith(f"{int(not problem)} of 1 clean")
    assert (
        f"--tool memcheck --error-exitcode 86 --print-limit 20 {sys.executable} -m pytest"
        in (tmp_path / "asked").read_text()
    )


def test_a_file_that_does_not_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "compute-sanitizer"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    files = [str(Path(__file__).parents[1] / "kernels" / name) for name in ("test_rms_norm.py", "test_misses.py")]
    arguments = ["--program", str(program), "--logs", str(tmp_path / "logs"), "--budget", "0.3", "--files", *files]
    assert sanitize.main(arguments) == 1
    said = capsys.readouterr().out
    assert said.count("not finished in time") == 1
    assert said.count("not begun") == 2, "races too, where programs hand numbers over"


def test_files_whose_races_are_looked_for_are_there() -> None:
    for name in sanitize.HANDED_OVER:
        assert (sanitize.ROOT / "tests" / "kernels" / name).is_file()


def test_without_the_tool_it_is_said_where_it_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert sanitize.main(["--program", "/nowhere/compute-sanitizer"]) == 2
    assert "comes with the CUDA toolkit" in capsys.readouterr().err
