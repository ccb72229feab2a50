"""The Hub's cache on this machine, as huggingface_hub documents it, so that all programs share what was fetched.

Of a repository there are its blobs by checksum, a directory of links for each commit (``snapshots/COMMIT``), and a file
for each branch or tag that names its commit (``refs/main``).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from strata.errors import CheckpointError, StorageError
from strata.store.directories import nearest_existing
from strata.store.target import lock

_UNFINISHED = ".strata.incomplete"  # ending of a blob of which only the beginning is here
_PIECE_BYTES = 16 << 20  # hashed between two signs of life
_ETAG = re.compile(r"[\w-]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")  # what the Hub calls a large file by


def endpoint() -> str:
    """The Hub's address: $HF_ENDPOINT, else https://huggingface.co."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


class HubCache:
    """The files of one repository."""

    def __init__(self, repo: str) -> None:
        from huggingface_hub import constants

        self._repo = repo
        self._folder = Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"

    def path(self, commit: str, file: str = "") -> Path:
        """Where a file is, or will be; without one, the directory that holds all of them."""
        return self._folder / "snapshots" / commit / file

    def files(self, commit: str) -> dict[str, int]:
        """The files that are here, with their sizes."""
        root = self.path(commit)
        return {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*") if path.is_file()}

    def commit(self, revision: str) -> str:
        """The commit that a branch or tag named when it was last asked for; anything else may be a commit itself."""
        try:
            return (self._folder / "refs" / revision).read_text().strip()
        except OSError:
            return revision

    def remember(self, revision: str, commit: str) -> None:
        """Note which commit a branch or tag names."""
        if commit not in (revision, self.commit(revision)):
            path = self._folder / "refs" / revision
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(commit)

    def missing_bytes(self, commit: str, sizes: Mapping[str, int]) -> int:
        """Bytes of those files that are not here."""
        return sum(size for file, size in sizes.items() if not self.path(commit, file).exists())

    def check_room(self, needed: int) -> None:
        """Raise StorageError unless the disk has room for so many bytes, those of unfinished files among them."""
        needed -= sum(path.stat().st_size for path in self._folder.glob(f"blobs/*{_UNFINISHED}"))
        place = nearest_existing(self._folder)
        free = shutil.disk_usage(place).free
        if needed > free:
            raise StorageError(
                f"{place} has {free / 1e9:.2f} GB free; {self._repo} needs {needed / 1e9:.2f} GB more. Make room, or "
                "set HF_HUB_CACHE to a directory with room"
            )

    def download(self, commit: str, file: str, count: Callable[[int], None]) -> Path:
        """Fetch one file, unless it is here; gives its path. count: told the bytes of each piece."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
        from huggingface_hub.file_download import is_xet_available  # type: ignore[attr-defined]

        path = self.path(commit, file)
        if path.exists():
            return path
        url = hf_hub_url(self._repo, file, revision=commit, endpoint=endpoint())
        metadata = get_hf_file_metadata(url, endpoint=endpoint())
        if _ETAG.fullmatch(metadata.etag or "") and not (metadata.xet_file_data and is_xet_available()):
            assert metadata.etag is not None
            self._download_blob(url, metadata.etag, metadata.size, count)
        # Links the blob. What lies in Xet storage is fetched from there, by the library's own way, which is faster.
        bar: Any = _bar(count)
        return Path(hf_hub_download(self._repo, file, revision=commit, endpoint=endpoint(), tqdm_class=bar))

    def _download_blob(self, url: str, etag: str, size: int | None, count: Callable[[int], None]) -> None:
        """Fetch a blob over HTTP. The library begins anew in every process; here the next one goes on."""
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        blob = self._folder / "blobs" / etag
        unfinished = blob.with_name(f"{etag}{_UNFINISHED}")
        seen = 0

        def watch(_: int) -> None:
            nonlocal seen
            try:
                size = unfinished.stat().st_size
            except FileNotFoundError:  # not begun yet, or just finished
                size = seen
            count(size - seen)
            seen = size

        with lock(blob, watch):  # another process that fetches the same is watched meanwhile
            if blob.exists():
                count(blob.stat().st_size - seen)
                return
            with unfinished.open("ab") as stream:
                begun = stream.tell()
                count(begun - seen)
                # Asked of the Hub, not of the address to which it sends on: the client takes the token off on the way.
                bar: Any = _bar(count)
                http_get(
                    url,
                    stream,
                    resume_size=begun,
                    headers=build_hf_headers(),
                    expected_size=size,
                    displayed_filename=etag,
                    tqdm_class=bar,
                )
            if begun and _SHA256.fullmatch(etag) and _sha256(unfinished, count) != etag:
                unfinished.unlink()
                raise CheckpointError(f"{url}: what was fetched in two parts is damaged; fetch it again")
            unfinished.rename(blob)


def _sha256(path: Path, count: Callable[[int], None]) -> str:
    """count: told of no bytes, again and again: these are not new, but it shows that something happens."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(_PIECE_BYTES):
            digest.update(piece)
            count(0)
    return digest.hexdigest()


def _bar(count: Callable[[int], None]) -> type:
    """What huggingface_hub takes for a progress bar: ``count`` is told the bytes that are on the disk."""

    class Bar:
        n = 0
        total: int | None = None

        def __init__(self, **_: Any) -> None:
            pass

        def update(self, num_bytes: float) -> None:
            count(int(num_bytes))

        def update_transfer(self, num_bytes: float) -> None:
            """Bytes that came over the network; Xet fetches fewer than it writes."""

        def set_postfix_str(self, *_: Any, **__: Any) -> None:
            pass

        def set_transfer_postfix_str(self, *_: Any, **__: Any) -> None:
            pass

        def close(self) -> None:
            pass

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    return Bar
