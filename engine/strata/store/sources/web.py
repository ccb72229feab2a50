"""A .gguf file on a web server: fetched into the cache, found there again, and fetched anew when it has changed.

A download that was cut short goes on where it was, if the server says that the file is still the same. A checksum after
the address, ``#sha256=...``, is compared before the file is used.
"""

from __future__ import annotations

import hashlib
import http.client
import logging
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata.config.model_name import UrlName
from strata.errors import CheckpointError, StorageError, UnfetchedError
from strata.store.directories import default_cache_dir
from strata.store.files import is_file, read_json_if_there, write_json
from strata.store.progress import Phases, counter, phase
from strata.store.target import lock

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 30.0  # of silence, before a server counts as out of reach
_PIECE_BYTES = 1 << 20
_UNFINISHED = ".incomplete"
_FACTS = "facts.json"  # what the server said of the file: its ETag, when it was changed, its size


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A file in the cache. ``identity``: what its content depends on."""

    path: Path
    identity: tuple[object, ...]


def place(name: UrlName) -> Path:
    """Where the file is, or will be: under its own name, in a directory of its address."""
    digest = hashlib.sha256(name.address.encode()).hexdigest()[:16]
    return default_cache_dir() / "downloads" / digest / name.file


def found(name: UrlName) -> Path:
    """The file that is here. Raises UnfetchedError."""
    path = place(name)
    if not is_file(path):
        raise UnfetchedError(f"{name} tells its shape itself, and it is not here yet: `strata fetch {name}`")
    return path


def fetch(name: UrlName, progress: Phases) -> Downloaded:
    """Fetch what is not here or has changed (phase "download").

    Where the server cannot be reached, what was fetched before is taken. Raises CheckpointError when it answers with an
    error or with what is not meant, or is out of reach; StorageError when there is no room.
    """
    path = place(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock(path):
            try:
                _update(name, path, progress)
            except _OutOfReachError as error:
                if not path.is_file():
                    raise CheckpointError(
                        f"{name.address} {error}; check address and network, and try again"
                    ) from error
                logger.warning("%s %s: the file as it was fetched before is taken", name.address, error)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}; see STRATA_CACHE_DIR") from error
    return Downloaded(path, (name.address, *sorted(_facts(path.with_name(_FACTS)).items())))


class _OutOfReachError(Exception):
    """The server does not answer; its message says why."""


def _update(name: UrlName, path: Path, progress: Phases) -> None:
    """Facts of a file that is being fetched are kept beside it, until both take the places of what was before."""
    unfinished, facts_path = path.with_name(path.name + _UNFINISHED), path.with_name(_FACTS)
    pending_path = path.with_name(_FACTS + _UNFINISHED)
    pending, begun = _facts(pending_path), unfinished.stat().st_size if unfinished.is_file() else 0
    if not (begun and begun == pending.get("size")):
        answer = _open(name, _conditions(path, _facts(facts_path), pending, begun))
        if answer is None:  # what is here has not changed
            return
        with answer:
            _receive(name, answer, unfinished, pending_path, begun, progress)
    _check_sum(name, unfinished)
    facts_path.unlink(missing_ok=True)
    unfinished.replace(path)
    pending_path.replace(facts_path)


def _conditions(path: Path, facts: Mapping[str, Any], pending: Mapping[str, Any], begun: int) -> dict[str, str]:
    """What to ask the server for: the rest of what was begun, or the file if it has changed."""
    if begun and (same := pending.get("etag") or pending.get("modified")):
        return {"Range": f"bytes={begun}-", "If-Range": same}
    if path.is_file() and facts.get("etag"):
        return {"If-None-Match": facts["etag"]}
    if path.is_file() and facts.get("modified"):
        return {"If-Modified-Since": facts["modified"]}
    return {}


def _receive(name: UrlName, answer: Any, unfinished: Path, facts: Path, begun: int, progress: Phases) -> None:
    """Write what comes behind what was begun, or in its place."""
    begun = begun if answer.status == 206 else 0
    length = int(answer.headers.get("Content-Length") or 0)
    total = begun + length if length else 0  # 0: the server does not tell
    _check_room(unfinished, length)
    if not begun:
        unfinished.unlink(missing_ok=True)
    write_json(facts, {"etag": _strong(answer), "modified": answer.headers.get("Last-Modified") or "", "size": total})
    count = counter(total, phase("download", progress), done=begun)
    with unfinished.open("ab") as stream:
        _copy(answer, stream, count)
    size = unfinished.stat().st_size
    if total and size != total:
        raise _OutOfReachError(f"broke off after {size} of {total} bytes; the same command goes on from there")


def _facts(path: Path) -> dict[str, Any]:
    """Empty where the file is damaged: then everything is fetched anew."""
    try:
        return read_json_if_there(path)
    except CheckpointError:
        return {}


class _KeepTls(urllib.request.HTTPRedirectHandler):
    """Follows where a server sends on to, but not from https to what anybody on the way may change."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not newurl.startswith(("https://", "http://")) or (req.type == "https" and newurl.startswith("http://")):
            raise CheckpointError(
                f"{req.full_url} sends on to {newurl}, which is not https; give that address if it may be fetched so"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(name: UrlName, headers: dict[str, str]) -> Any:
    """The answer; None where the file has not changed. Raises CheckpointError for what trying again does not better."""
    request = urllib.request.Request(name.address, headers={"User-Agent": "strata", **headers})  # noqa: S310  http(s)
    try:
        return urllib.request.build_opener(_KeepTls).open(request, timeout=ANSWER_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == 304:
            return None
        if error.code < 500 and error.code not in (408, 429):
            raise CheckpointError(f"{name.address} answers with status {error.code}; check the address") from error
        raise _OutOfReachError(f"answers with status {error.code}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise _OutOfReachError(f"cannot be reached ({reason})") from error


def _copy(answer: Any, stream: Any, count: Callable[[int], None]) -> None:
    while True:
        try:
            piece = answer.read(_PIECE_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise _OutOfReachError(f"broke off ({error}); the same command goes on from there") from error
        if not piece:
            return
        stream.write(piece)
        count(len(piece))


def _strong(answer: Any) -> str:
    """The ETag, if it stands for the very bytes."""
    etag = str(answer.headers.get("ETag") or "")
    return "" if etag.startswith("W/") else etag


def _check_room(path: Path, needed: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        raise StorageError(
            f"{path.parent} has {free / 1e9:.2f} GB free; {needed / 1e9:.2f} GB more are needed. Make room, or set "
            "STRATA_CACHE_DIR to a directory with room"
        )


def _check_sum(name: UrlName, path: Path) -> None:
    if name.sha256 is None:
        return
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != name.sha256:
        with suppress(OSError):
            path.unlink()
        raise CheckpointError(f"{name.address} is not what its checksum says: sha256 is {digest}, not {name.sha256}")
