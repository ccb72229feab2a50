"""Models on the Hub, through the real client, from a hub on this machine."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata.config import read_hf_config
from strata.config.model_name import HubName, parse_name
from strata.errors import CheckpointError, StorageError, UnfetchedError
from strata.store.locate import resolve
from strata.store.peek import peek
from strata.store.reader import Store
from strata.store.sources import obtain
from strata.store.sources.hub import Fetched, fetch
from strata.store.sources.hub_cache import _bar
from strata.store.sources.hub_files import gguf_files, weight_files
from tests.store.checkpoints import config, write_gguf, write_hf
from tests.store.hub import Hub, serving, speak_with

NAME = "acme/Tiny-1B"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub with which the client speaks, and an empty cache."""
    with serving() as running:
        speak_with(running, tmp_path / "hub", monkeypatch)
        monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1 << 16)  # instead of 10 MiB
        yield running


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a checkpoint of three shards, with some that nobody needs."""
    path = write_hf(tmp_path_factory.mktemp("checkpoint") / "m", shards=3)
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    return files | {
        "README.md": b"read me",
        "pytorch_model.bin": b"another edition",
        "original/model.safetensors": b"another edition",
        "generation_config.json": b'{"temperature": 0.5}',
    }


NEEDED = {
    "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors.index.json",
    "model-1-of-3.safetensors", "model-2-of-3.safetensors", "model-3-of-3.safetensors",
}  # fmt: skip


def get(name: str) -> Fetched:
    """Fetch without a progress bar."""
    parsed = parse_name(name)
    assert isinstance(parsed, HubName)
    return fetch(parsed, lambda *_: None)


def held(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


# --- names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Qwen/Qwen3-8B", HubName("Qwen/Qwen3-8B")),
        ("Qwen/Qwen3-8B@v1.0", HubName("Qwen/Qwen3-8B", "v1.0")),
        ("Qwen/Qwen3-8B@refs/pr/3", HubName("Qwen/Qwen3-8B", "refs/pr/3")),
        ("a/b:Q4_K_M", HubName("a/b", None, "Q4_K_M")),
        ("a/b@main:sub/b-Q8_0.gguf", HubName("a/b", "main", "sub/b-Q8_0.gguf")),
        ("Qwen3-8B", None),
        ("/models/Qwen3-8B", None),
        ("./a/b", None),
        ("~/a/b", None),
        ("../b", None),
        ("a/../b", None),
        ("a/b/c", None),
        ("models/b.gguf", None),  # a file that is not there
        ("a/b@../../x", None),
        ("builtin://smollm2-135m", None),
        ("a/b c", None),
        ("a/b\x00", None),
        ("", None),
    ],
)
def test_what_is_a_name_on_the_hub(text: str, expected: HubName | None) -> None:
    found = parse_name(text)
    assert str(found) == text
    assert found == expected if expected is not None else not isinstance(found, HubName)


def test_a_path_that_is_there_wins(
    hub: Hub, checkpoint: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repo(NAME).commit(checkpoint)
    monkeypatch.chdir(tmp_path)
    write_hf(tmp_path / NAME)
    assert obtain(NAME).path == Path(NAME)
    assert not hub.requests


# --- what is fetched


def test_only_what_is_needed_is_fetched(hub: Hub, checkpoint: dict[str, bytes]) -> None:
    commit = hub.repo(NAME).commit(checkpoint)
    found = get(NAME)
    assert found.commit == commit
    assert held(found.path) == {name: checkpoint[name] for name in NEEDED}
    assert sorted(hub.fetched()) == sorted(NEEDED)


def test_what_is_here_is_not_fetched_again(hub: Hub, checkpoint: dict[str, bytes]) -> None:
    hub.repo(NAME).commit(checkpoint)
    first = get(NAME)
    hub.fetched()
    assert get(NAME) == first
    assert hub.fetched() == []


def test_another_program_finds_what_was_fetched(hub: Hub, checkpoint: dict[str, bytes]) -> None:
    from huggingface_hub import snapshot_download, try_to_load_from_cache

    hub.repo(NAME).commit(checkpoint)
    found = get(NAME)
    assert try_to_load_from_cache(NAME, "config.json") == str(found.path / "config.json")
    assert snapshot_download(NAME, local_files_only=True) == str(found.path)


def test_progress_counts_the_bytes_that_come(hub: Hub, checkpoint: dict[str, bytes]) -> None:
    hub.repo(NAME).commit(checkpoint)
    seen: list[tuple[str, int, int]] = []
    fetch(HubName(NAME), lambda *now: seen.append(now))
    total = sum(len(checkpoint[name]) for name in NEEDED - {"model.safetensors.index.json"})  # that one comes first
    assert {(phase, of) for phase, _, of in seen} == {("download", total)}
    assert seen[-1][1] == total


def test_a_newer_commit_is_fetched_and_a_pinned_one_stays(hub: Hub, checkpoint: dict[str, bytes]) -> None:
    old = hub.repo(NAME).commit(checkpoint)
    get(NAME)
    hub.fetched()
    new = hub.repo(NAME).commit(checkpoint | {"generation_config.json": b"{}"})
    found = get(NAME)
    assert found.commit == new
    assert hub.fetched() == ["generation_config.json"]  # the other blobs are the same
    assert (found.path / "generation_config.json").read_bytes() == b"{}"
    assert get(f"{NAME}@{old}").commit == old
    hub.repo(NAME).revisions["v1"] = old
    assert get(f"{NAME}@v1").commit == old


def test_a_single_file_is_preferred_to_an_index(hub: Hub, checkpoint: dict[str, bytes]) -> None:
    hub.repo(NAME).commit(checkpoint | {"model.safetensors": b"all in one"})
    names = set(held(get(NAME).path))
    assert "model.safetensors" in names
    assert not any("-of-3" in name or "index" in name for name in names)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"tokenizer.json": None}, "has no tokenizer.json; choose a repository", id="no tokenizer"),
        pytest.param({"config.json": None}, "has no config.json", id="no config"),
        pytest.param({"model-2-of-3.safetensors": None}, "not there: model-2-of-3.safetensors", id="no shard"),
        pytest.param(
            {"model.safetensors.index.json": None}, "no model.safetensors.index.json that says", id="no index"
        ),
        pytest.param({"model.safetensors.index.json": b"{"}, "index.json is not JSON", id="a broken index"),
        pytest.param({"model.safetensors.index.json": b'{"weight_map": 7}'}, "none at all", id="an odd index"),
        pytest.param(
            {f"model-{n}-of-3.safetensors": None for n in (1, 2, 3)},
            r"neither \*\.safetensors nor \*\.gguf",
            id="no weights",
        ),
    ],
)
def test_a_repository_that_is_no_checkpoint_is_known_before_its_weights_are_fetched(
    hub: Hub, checkpoint: dict[str, bytes], change: dict[str, bytes | None], message: str
) -> None:
    files = {name: data for name, data in (checkpoint | change).items() if data is not None}
    hub.repo(NAME).commit(files)
    with pytest.raises(CheckpointError, match=message):
        get(NAME)
    assert not any(file.endswith(".safetensors") for file in hub.fetched())


# --- GGUF

FILES = {
    "README.md": b"",
    "Tiny-Q4_K_M.gguf": b"a",
    "Tiny-Q4_K_S.gguf": b"b",
    "Tiny-IQ4_NL.gguf": b"c",
    "mmproj-Tiny-Q8_0.gguf": b"d",
    "Q8_0/Tiny-Q8_0-00001-of-00002.gguf": b"e",
    "Q8_0/Tiny-Q8_0-00002-of-00002.gguf": b"f",
    "bf16/Tiny-00001-of-00002.gguf": b"g",
}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("Tiny-Q4_K_M.gguf", ["Tiny-Q4_K_M.gguf"]),
        ("Q4_K_M", ["Tiny-Q4_K_M.gguf"]),
        ("q4_k_s", ["Tiny-Q4_K_S.gguf"]),
        ("Q8_0", ["Q8_0/Tiny-Q8_0-00001-of-00002.gguf", "Q8_0/Tiny-Q8_0-00002-of-00002.gguf"]),
        (
            "Q8_0/Tiny-Q8_0-00002-of-00002.gguf",
            ["Q8_0/Tiny-Q8_0-00001-of-00002.gguf", "Q8_0/Tiny-Q8_0-00002-of-00002.gguf"],
        ),
    ],
)
def test_one_gguf_is_meant(wanted: str, expected: list[str]) -> None:
    assert gguf_files(FILES, wanted, "a/b") == expected


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            None,
            r"a/b has 5 GGUFs; choose one of a/b:Q8_0/Tiny-Q8_0\.gguf, a/b:Tiny-IQ4_NL\.gguf, a/b:Tiny-Q4_K_M",
        ),
        ("Q4_K", r"no GGUF that 'Q4_K' names; choose one of (a/b:.*, ){4}a/b:bf16/Tiny\.gguf$"),
        ("Q4_NL", "no GGUF that 'Q4_NL' names"),
        ("Tiny", r"5 GGUFs that 'Tiny' names"),
        ("bf16", r"of the 2 parts of bf16/Tiny\.gguf there are only 1"),
    ],
)
def test_no_gguf_or_several_are_listed(wanted: str | None, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        gguf_files(FILES, wanted, "a/b")


def test_a_repository_without_gguf_says_so(hub: Hub, checkpoint: dict[str, bytes]) -> None:
    hub.repo(NAME).commit(checkpoint)
    with pytest.raises(CheckpointError, match=rf"{NAME} has no \.gguf file; leave ':Q4_0' out"):
        get(f"{NAME}:Q4_0")


def test_an_index_that_leads_elsewhere_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"not there: \.\./\.\./x"):
        weight_files({"a.safetensors"}, {"weight_map": {"t": "../../x"}}, "a/b")


@pytest.mark.parametrize("file", ["../../../../m.gguf", "/tmp/m.gguf", "a/../../m.gguf"])
def test_a_file_that_would_lie_elsewhere_is_refused(hub: Hub, file: str) -> None:
    hub.repo(NAME).commit({file: b"GGUF"})
    with pytest.raises(CheckpointError, match="which would lie elsewhere"):
        get(f"{NAME}:m.gguf")
    assert hub.fetched() == []


def test_a_gguf_of_the_hub_is_served_by_its_quantisation(hub: Hub, tmp_path: Path) -> None:
    data = write_gguf(tmp_path / "m.gguf", kind="Q8_0").read_bytes()
    hub.repo(NAME).commit({"m-Q8_0.gguf": data, "m-Q4_0.gguf": b"another"})
    store = Store.open(resolve(f"{NAME}:Q8_0", "int8", tmp_path / "cache"))
    assert store.dtype == "int8"
    assert hub.fetched() == ["m-Q8_0.gguf"]


# --- a connection that breaks, a process that ends


LARGE = 3 << 20


def noise(size: int) -> bytes:
    return b"".join(hashlib.sha256(str(index).encode()).digest() for index in range(size // 32))


def test_a_connection_that_breaks_goes_on_where_it_was(hub: Hub) -> None:
    data = noise(LARGE)
    hub.repo(NAME).commit({"m.gguf": data})
    hub.cuts["m.gguf"] = [1 << 20]
    seen: list[int] = []
    found = fetch(HubName(NAME), lambda _, done, total: seen.append(done))
    assert found.path.read_bytes() == data
    ranges = [request.range for request in hub.requests if request.method == "GET" and "/cdn/" in request.path]
    assert ranges == [None, f"bytes={1 << 20}-"]
    assert seen[-1] == LARGE


def test_the_next_process_goes_on_where_one_was_stopped(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    data = noise(LARGE)
    hub.repo(NAME).commit({"m.gguf": data})
    hub.cuts["m.gguf"] = [2 << 20]

    def stop(phase: str, done: int, total: int) -> None:
        if done >= 1 << 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(HubName(NAME), stop)
    hub.cuts.clear()
    hub.requests.clear()
    monkeypatch.setattr("strata.store.sources.hub_cache._PIECE_BYTES", 1 << 16)
    seen: list[int] = []
    found = fetch(HubName(NAME), lambda _, done, total: seen.append(done))
    assert found.path.read_bytes() == data
    (asked,) = [request.range for request in hub.requests if request.method == "GET" and "/cdn/" in request.path]
    assert asked is not None
    begun = int(asked.removeprefix("bytes=").removesuffix("-"))
    assert seen[0] == begun > 0
    assert seen.count(LARGE) > LARGE >> 16, "comparing the checksum shows that it goes on"
    assert [file.name for file in found.path.resolve().parent.iterdir()] == [found.path.resolve().name]


def test_one_that_waits_for_anothers_download_sees_it_grow(hub: Hub) -> None:
    data = noise(LARGE)
    hub.repo(NAME).commit({"m.gguf": data})
    hub.holds["m.gguf"] = 2 << 20
    found: list[Fetched] = []
    seen: list[int] = []
    grows = threading.Event()

    def watch(phase: str, done: int, total: int) -> None:
        seen.append(done)
        if done >= 1 << 20:
            grows.set()

    first = threading.Thread(target=lambda: found.append(get(NAME)))
    second = threading.Thread(target=lambda: found.append(fetch(HubName(NAME), watch)))
    first.start()
    assert hub.held.wait(60)
    second.start()
    assert grows.wait(60)
    hub.holds.clear()
    hub.release.set()  # the connection breaks, and the first one asks for the rest
    first.join()
    second.join()
    assert [one.path.read_bytes() == data for one in found] == [True, True]
    assert seen == sorted(seen)
    assert seen[-1] == LARGE
    asked = [request.range for request in hub.requests if request.method == "GET" and "/cdn/" in request.path]
    assert len(asked) == 2
    assert asked[0] is None


def test_two_parts_that_do_not_fit_are_refused(hub: Hub, tmp_path: Path) -> None:
    data = noise(LARGE)
    hub.repo(NAME).commit({"m.gguf": data})
    blobs = tmp_path / "hub" / f"models--{NAME.replace('/', '--')}" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{hashlib.sha256(data).hexdigest()}.strata.incomplete").write_bytes(bytes(1000))
    with pytest.raises(CheckpointError, match=r"fetched in two parts is damaged; fetch it again"):
        get(NAME)
    assert get(NAME).path.read_bytes() == data


def test_a_token_stays_with_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repo(NAME).commit({"m.gguf": noise(1 << 10)})
    hub.repo(NAME).token = "secret"
    monkeypatch.setenv("HF_TOKEN", "secret")
    get(NAME)
    tokens = {(request.token, "/cdn/" in request.path) for request in hub.requests}
    assert tokens == {("secret", False), (None, True)}


def test_xets_reports_are_understood() -> None:
    from types import SimpleNamespace

    from huggingface_hub.utils._xet_progress_reporting import XetDownloadProgressReporter

    seen: list[int] = []
    with XetDownloadProgressReporter(
        reconstruction_desc="a", total=10, log_level=logging.INFO, tqdm_class=_bar(seen.append)
    ) as reporter:
        for done in (4, 10):
            reporter.update_progress(
                SimpleNamespace(
                    total_bytes_completed=done,
                    total_transfer_bytes_completed=done // 2,
                    total_bytes_completion_rate=1.0,
                    total_transfer_bytes_completion_rate=1.0,
                    total_bytes=10,
                )
            )
    assert seen == [4, 6]


# --- faults


def test_a_name_that_is_nothing_says_what_a_model_can_be(hub: Hub, tmp_path: Path) -> None:
    accepted = r".*A model is a store .* or a model on the Hugging Face Hub \(ORG/NAME"
    with pytest.raises(
        CheckpointError, match=f"'acme/nothing' is no model: it is no path here, and .* no such{accepted}"
    ):
        get("acme/nothing")
    for name in ("acme--x/b", "acme/nothing.git"):
        with pytest.raises(CheckpointError, match=f"'{name}' is no model: it is no path here, and no name{accepted}"):
            get(name)
    with pytest.raises(CheckpointError, match=f"'nothing' is no model: No such file or directory{accepted}"):
        resolve("nothing", "int4", tmp_path / "cache")


def test_a_private_repository_needs_the_token(
    hub: Hub, checkpoint: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub.repo(NAME).commit(checkpoint)
    hub.repo(NAME).token, hub.repo(NAME).is_private = "secret", True
    with pytest.raises(CheckpointError, match="or a private one that needs a token"):
        get(NAME)
    (tmp_path / "token").write_text("secret")  # where `hf auth login` writes it
    get(NAME)


@pytest.mark.parametrize("token", [None, "of another account"])
def test_a_gated_repository_says_what_to_do(
    hub: Hub, checkpoint: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    hub.repo(NAME).commit(checkpoint)
    hub.repo(NAME).token = "secret"
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(CheckpointError, match=rf"is gated: accept its terms at {hub.url}/{NAME}, then set HF_TOKEN"):
        get(NAME)


def test_a_wrong_revision_is_named(hub: Hub, checkpoint: dict[str, bytes]) -> None:
    hub.repo(NAME).commit(checkpoint)
    with pytest.raises(CheckpointError, match=rf"{NAME} has no revision 'v9'; branches and tags are listed at .*/tree"):
        get(f"{NAME}@v9")


@pytest.mark.parametrize("why", ["down", "offline", "refused", "no hub"])
def test_a_hub_out_of_reach_is_said(
    hub: Hub, checkpoint: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    hub.repo(NAME).commit(checkpoint)
    get(f"{NAME}")
    expected = out_of_reach(hub, monkeypatch, why)
    with pytest.raises(CheckpointError, match=rf"'acme/other' is no model: it is no path here, .*{expected}"):
        get("acme/other")


@pytest.mark.parametrize("why", ["down", "offline", "refused"])
def test_what_was_fetched_before_is_taken_without_the_hub(
    hub: Hub, checkpoint: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    hub.repo(NAME).commit(checkpoint)
    first = get(NAME)
    out_of_reach(hub, monkeypatch, why)
    assert get(NAME) == first
    assert f"{NAME} as it was fetched before is taken" in caplog.text
    (first.path / "model-2-of-3.safetensors").unlink()
    with pytest.raises(CheckpointError, match="it was not fetched before"):
        get(NAME)


def out_of_reach(hub: Hub, monkeypatch: pytest.MonkeyPatch, why: str) -> str:
    """Take the hub away; gives what is said of it."""
    match why:
        case "down":
            hub.status = 503
            return "answers with status 503"
        case "offline":
            monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
            return "HF_HUB_OFFLINE forbids to ask the Hub"
        case "refused":
            monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # discard: nobody listens
            return "cannot be reached"
        case _:
            hub.status = 200
            return "does not answer as a Hub does"


def test_a_full_disk_is_known_beforehand(
    hub: Hub, checkpoint: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repo(NAME).commit(checkpoint)
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(StorageError, match=r"has 0\.00 GB free; acme/Tiny-1B needs 0\.00 GB more.*HF_HUB_CACHE"):
        get(NAME)
    assert hub.fetched() == ["model.safetensors.index.json"]


# --- served from the Hub


def test_the_second_start_needs_no_hub(hub: Hub, checkpoint: dict[str, bytes], tmp_path: Path) -> None:
    hub.repo(NAME).commit(checkpoint)
    phases: list[str] = []
    store = resolve(NAME, "int4", tmp_path / "cache", lambda phase, *_: phases.append(phase))
    assert list(dict.fromkeys(phases)) == ["download", "convert", "verify"]
    assert Store.open(store).generation_config == {"temperature": 0.5}
    assert store.name.startswith("Tiny-1B-int4-")
    shutil.rmtree(tmp_path / "hub")  # and none of its files
    hub.requests.clear()
    phases.clear()
    assert resolve(NAME, "int4", tmp_path / "cache", lambda phase, *_: phases.append(phase)) == store
    assert not hub.requests
    assert not phases


def test_a_newer_commit_is_served_when_it_is_asked_for(hub: Hub, checkpoint: dict[str, bytes], tmp_path: Path) -> None:
    hub.repo(NAME).commit(checkpoint)
    first = resolve(NAME, "bf16", tmp_path / "cache")
    hub.repo(NAME).commit(checkpoint | {"generation_config.json": b"{}"})
    assert resolve(NAME, "bf16", tmp_path / "cache") == first
    second = resolve(NAME, "bf16", tmp_path / "cache", refresh=True)
    assert second != first
    assert resolve(NAME, "bf16", tmp_path / "cache") == second
    assert not first.exists()
    assert resolve(NAME, "bf16", tmp_path / "cache", refresh=True) == second


def test_a_store_that_was_removed_is_made_again(hub: Hub, checkpoint: dict[str, bytes], tmp_path: Path) -> None:
    hub.repo(NAME).commit(checkpoint)
    first = resolve(NAME, "bf16", tmp_path / "cache")
    shutil.rmtree(first)
    assert resolve(NAME, "bf16", tmp_path / "cache") == first
    Store.open(first)


def test_revisions_files_and_mirrors_have_stores_of_their_own(
    hub: Hub, checkpoint: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = hub.repo(NAME)
    repo.commit(checkpoint | {"config.json": json.dumps(config(rope_theta=500.0)).encode()}, "other")
    repo.commit(checkpoint)
    stores = {resolve(name, "bf16", tmp_path / "cache") for name in (NAME, f"{NAME}@other")}
    assert len(stores) == 2
    assert all(store.exists() for store in stores), "a link points to each"
    with serving() as mirror:
        monkeypatch.setenv("HF_ENDPOINT", mirror.url)
        mirror.repo(NAME).commit(checkpoint | {"generation_config.json": b"{}"})
        assert resolve(NAME, "bf16", tmp_path / "cache") not in stores


# --- config.json alone


def test_a_config_is_fetched_alone_and_once(hub: Hub, checkpoint: dict[str, bytes]) -> None:
    hub.repo(NAME).commit(checkpoint)
    assert peek(NAME).model == read_hf_config(json.loads(checkpoint["config.json"]), origin=NAME)
    assert hub.fetched() == ["config.json"]
    peek(NAME)
    assert hub.fetched() == []


def test_a_config_of_another_revision(hub: Hub, checkpoint: dict[str, bytes]) -> None:
    repo = hub.repo(NAME)
    repo.commit(checkpoint)
    repo.commit({"config.json": json.dumps(config(num_hidden_layers=7)).encode()}, revision="wide")
    assert peek(f"{NAME}@wide").model.num_layers == 7
    assert peek(NAME).model.num_layers == config()["num_hidden_layers"]


def test_a_config_that_was_fetched_is_enough_when_the_hub_is_down(hub: Hub, checkpoint: dict[str, bytes]) -> None:
    hub.repo(NAME).commit(checkpoint)
    get(NAME)
    hub.status = 503
    assert peek(NAME).model.num_layers == config()["num_hidden_layers"]
    with pytest.raises(CheckpointError, match=r"it was not fetched before.*give its config\.json"):
        peek("acme/Other")


def test_a_config_leaves_a_whole_model_of_an_older_commit_in_its_place(hub: Hub, checkpoint: dict[str, bytes]) -> None:
    """The cache names only commits that are here as a whole."""
    repo = hub.repo(NAME)
    repo.commit(checkpoint)
    whole = get(NAME)
    repo.commit(checkpoint | {"README.md": b"newer"})
    peek(NAME)
    hub.status = 503
    assert get(NAME) == whole


def test_a_repository_without_a_config_says_what_it_has(hub: Hub) -> None:
    hub.repo(NAME).commit({"pytorch_model.bin": b"pickled"})
    with pytest.raises(CheckpointError, match=r"has no config\.json, but pytorch_model\.bin"):
        peek(NAME)


@pytest.mark.parametrize("config_json", [{}, {"config.json": json.dumps(config(num_hidden_layers=7)).encode()}])
def test_a_gguf_tells_its_shape_once_it_is_here(hub: Hub, tmp_path: Path, config_json: dict[str, bytes]) -> None:
    """Whatever a config.json beside it says, which is of no file by name."""
    data = write_gguf(tmp_path / "m.gguf", kind="Q8_0").read_bytes()
    hub.repo(NAME).commit({"m-Q8_0.gguf": data, "m-Q4_0.gguf": b"another", **config_json})
    with pytest.raises(UnfetchedError, match=f"`strata fetch {NAME}:Q8_0`"):
        peek(f"{NAME}:Q8_0")
    assert hub.fetched() == []
    get(f"{NAME}:Q8_0")
    hub.status = 503
    assert peek(f"{NAME}:Q8_0").model.num_layers == config()["num_hidden_layers"]
    with pytest.raises(CheckpointError, match="it was not fetched before"):
        peek(f"{NAME}:Q4_0")


def test_a_gguf_that_no_file_is_lists_the_choice(hub: Hub) -> None:
    hub.repo(NAME).commit({"m-Q8_0.gguf": b"", "m-Q4_0.gguf": b""})
    for name in (NAME, f"{NAME}:Q5_K_M"):
        with pytest.raises(CheckpointError, match=f"choose one of {NAME}:m-Q4_0.gguf, {NAME}:m-Q8_0.gguf"):
            peek(name)
