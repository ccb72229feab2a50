"""Foreign checkpoints: tensors by name, lazily."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from types import MappingProxyType
from typing import Any

from strata.config.model_name import ACCEPTED, BuiltinName, HubName, LocalName, UrlName, parse_name
from strata.errors import CheckpointError
from strata.store.files import is_file, read_json
from strata.store.progress import Phases, silent
from strata.store.sources import web
from strata.store.sources.base import Source
from strata.store.sources.builtin import builtin_path, recommended
from strata.store.sources.gguf_file import check_magic
from strata.store.sources.gguf_parts import part_paths
from strata.store.sources.hub import fetch


def source_path(name: BuiltinName | LocalName | UrlName) -> Path:
    """The existing file or directory behind a name; raises CheckpointError with what is accepted, UnfetchedError for a
    file of a web server that is not here."""
    if isinstance(name, UrlName):
        return web.found(name)
    if isinstance(name, BuiltinName):
        return builtin_path(name)
    try:
        path = Path(name.path).expanduser()
        mode = path.stat().st_mode
    except PermissionError as error:
        raise CheckpointError(f"{name.path} cannot be read: {error.strerror}") from error
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: no such home; ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(f"{name.path!r} is no model: {reason}. A model is {ACCEPTED}") from error
    if not (S_ISREG(mode) or S_ISDIR(mode)):
        raise CheckpointError(f"{name.path!r} is no model: it is neither a file nor a directory. A model is {ACCEPTED}")
    return path


@dataclass(frozen=True, slots=True)
class Obtained:
    """A checkpoint on this machine."""

    name: str  # for people
    source: tuple[object, ...]  # what stays the same when its content changes
    path: Path
    identity: tuple[object, ...]  # what its content depends on: a conversion is good as long as this is the same
    generation_config: Mapping[str, Any]  # recommended where the checkpoint has none of its own


def obtain(source: str, progress: Phases = silent) -> Obtained:
    """The checkpoint behind what the user gave, fetched from the Hub or a web server if need be (phase "download").

    Raises CheckpointError with what is accepted, and what ``strata.store.sources.hub.fetch`` and ``web.fetch`` raise.
    """
    name = parse_name(source)
    if isinstance(name, HubName):
        fetched = fetch(name, progress)
        identity = (name.repo, fetched.commit, name.file)
        return Obtained(name.repo.split("/")[1], (name.repo, name.file), fetched.path, identity, {})
    if isinstance(name, UrlName):
        downloaded = web.fetch(name, progress)
        return Obtained(name.file.removesuffix(".gguf"), (name.address,), downloaded.path, downloaded.identity, {})
    path = source_path(name)
    files = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in source_files(path)]
    recommendation = recommended(name) if isinstance(name, BuiltinName) else {}
    return Obtained(
        name=path.resolve().name.removesuffix(".gguf"),
        source=(str(path.resolve()), bool(recommendation)),
        path=path,
        identity=(tuple(files), tuple(sorted(recommendation.items()))),
        generation_config=recommendation,
    )


def source_files(path: Path) -> list[Path]:
    """The files that make the checkpoint, sorted: what a cached store of it depends on."""
    if is_file(path):
        return [part for part in part_paths(path) if is_file(part)]
    return sorted(
        file for pattern in ("*.json", "*.safetensors", "*.jinja") for file in path.glob(pattern) if is_file(file)
    )


def open_source(path: Path, generation_config: Mapping[str, Any] = MappingProxyType({})) -> Source:
    """Open a checkpoint by what it is; raises CheckpointError when it is none or damaged.

    generation_config: for a source that has no such file of its own.
    """
    check_files(path)
    if is_file(path):
        from strata.store.sources.gguf import GGUFSource

        return GGUFSource(path, generation_config)
    from strata.store.sources.safetensors import SafetensorsSource

    return SafetensorsSource(path)


def check_files(path: Path) -> None:
    """Raise CheckpointError unless the file or directory looks like a checkpoint; reads no weights."""
    if is_file(path):
        check_magic(path)
    elif not is_file(path / "config.json") or not any(path.glob("*.safetensors*")):
        raise CheckpointError(f"{path} is not a model: {_found(path)}. A model is {ACCEPTED}")


def _found(path: Path) -> str:
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    ggufs = [name for name in names if name.endswith(".gguf")]
    if ggufs:
        return f"it holds {', '.join(ggufs)}; give the path of the .gguf file itself"
    if "config.json" in names:
        read_json(path / "config.json")  # a broken one is the nearer fault
        return "it has a config.json, but no *.safetensors"
    return f"it holds {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}" if names else "it is empty"


__all__ = ["Obtained", "Source", "check_files", "obtain", "open_source", "source_path"]
