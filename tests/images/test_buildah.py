from __future__ import annotations

import re
import sys
import threading
from pathlib import Path

import pytest

from images import buildah
from images.buildah import BuildError, patient


@pytest.fixture(autouse=True)
def without_buildah(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buildah, "storage_driver", lambda: "vfs")


def test_a_failing_command_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    script = "import sys; [print('line', n) for n in range(99)]; sys.exit(7)"
    with pytest.raises(BuildError) as error:
        buildah.logged([sys.executable, "-c", script], tmp_path / "it.log")
    assert "ended with 7" in str(error.value)
    assert str(error.value).endswith("line 98")
    assert "line 10\n" not in str(error.value)
    assert "line 10\n" in (tmp_path / "it.log").read_text()


@pytest.mark.parametrize(
    ("instruction", "words"),
    [
        pytest.param("RUN --mount=type=bind,target=/context make it", "step 3/9 RUN make it", id="mounts say little"),
        pytest.param("RUN pip install ${FLAGS} torch", "step 3/9 RUN pip install torch", id="nor do variables"),
    ],
)
def test_a_step_is_told_in_a_few_words(instruction: str, words: str) -> None:
    assert buildah.summary("3", "9", instruction) == words


def test_a_missing_buildah_is_told_by_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(BuildError, match="apt-get install buildah"):
        buildah.buildah("images")


def test_a_long_wait_is_told_with_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    told = threading.Event()

    def title() -> str:
        told.set()
        return "image: pushing"

    with patient(title, seconds=0.01):
        assert told.wait(30)
    assert re.match(r"·   image: pushing \(\d+ s so far\)\n", capsys.readouterr().out)


def test_a_short_wait_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    with patient(lambda: "image: pushing", seconds=600):
        pass
    assert capsys.readouterr().out == ""
