"""Models on the Hugging Face Hub, or a mirror of it: found, fetched into the Hub's own cache, and found there again.

The client is ``huggingface_hub``, whose settings count: HF_ENDPOINT, HF_TOKEN (or `hf auth login`), HF_HOME and
HF_HUB_CACHE, HF_HUB_OFFLINE. What other programs have fetched is not fetched again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from strata.config.model_name import ACCEPTED, HubName
from strata.errors import CheckpointError, StorageError, UnfetchedError
from strata.store.files import read_json
from strata.store.progress import Phases, counter, phase
from strata.store.sources.base import INDEX
from strata.store.sources.hub_cache import HubCache, endpoint
from strata.store.sources.hub_files import gguf_files, is_weights, small_files, weight_files

logger = logging.getLogger(__name__)

DEFAULT_REVISION = "main"
CONFIG = "config.json"
ANSWER_SECONDS = 10.0  # that the Hub has to answer
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Fetched:
    """A model in the Hub's cache."""

    path: Path  # a checkpoint directory, or a GGUF's first part
    commit: str


def fetch(name: HubName, progress: Phases) -> Fetched:
    """Fetch what is needed of a model and not here yet (phase "download").

    Where the Hub cannot be reached, what was fetched before is taken. Raises CheckpointError when the repository, its
    revision or its files are not what is needed, or the Hub is out of reach; StorageError when there is no room.
    """
    cache = HubCache(name.repo)
    revision = name.revision or DEFAULT_REVISION
    with _translated(name):
        try:
            commit, sizes = _listing(name)
        except _OutOfReachError as error:
            commit = cache.commit(revision)
            try:
                files = _files(name, cache.files(commit), lambda file: cache.path(commit, file))
            except CheckpointError:
                raise CheckpointError(
                    f"{str(name)!r} is no model: it is no path here, {error}, and it was not fetched before. Check the "
                    "network and HF_ENDPOINT, or fetch it elsewhere and give the directory"
                ) from error
            logger.warning("%s: %s as it was fetched before is taken", error, name)
        else:
            files = _files(name, sizes, lambda file: cache.download(commit, file, lambda num_bytes: None))
            missing = cache.missing_bytes(commit, {file: sizes[file] for file in files})
            cache.check_room(missing)
            count = counter(missing, phase("download", progress))
            for file in files:
                cache.download(commit, file, count)
            cache.remember(revision, commit)
    return Fetched(cache.path(commit, files[0] if files[0].endswith(".gguf") else ""), commit)


def fetch_shape(name: HubName) -> Path:
    """The file that tells the shape of what ``fetch`` would fetch: config.json, which is fetched alone unless it is
    here, or the first part of a GGUF that is here. Where the Hub cannot be reached, what was fetched before is taken.

    Raises UnfetchedError for a GGUF that is not here, else what ``fetch`` raises.
    """
    cache = HubCache(name.repo)
    with _translated(name):
        try:
            commit, files = _listing(name)
        except _OutOfReachError as error:
            commit = cache.commit(name.revision or DEFAULT_REVISION)
            try:
                path = _shape(name, cache, commit, cache.files(commit))
            except CheckpointError:
                raise CheckpointError(
                    f"{str(name)!r} is no model: it is no path here, {error}, and it was not fetched before. Check the "
                    f"network and HF_ENDPOINT, or give its {CONFIG}"
                ) from error
            logger.warning("%s: %s of %s as it was fetched before is taken", error, path.name, name)
            return path
        return _shape(name, cache, commit, files)


def _shape(name: HubName, cache: HubCache, commit: str, files: Mapping[str, int]) -> Path:
    if name.file is None and CONFIG in files:
        return cache.download(commit, CONFIG, lambda num_bytes: None)
    ggufs = [file for file in files if file.endswith(".gguf")]
    if name.file is None and (not ggufs or any(is_weights(file) for file in files)):
        raise CheckpointError(f"{name.origin} has no {CONFIG}, but {_some(files)}; choose another edition of the model")
    parts = gguf_files(files, name.file, name.origin)
    if not all(cache.path(commit, part).exists() for part in parts):
        raise UnfetchedError(
            f"{name} is a GGUF, which tells its shape itself, and it is not here yet: `strata fetch {name}`, or give "
            f"the repository that it was made from, which has a {CONFIG}"
        )
    return cache.path(commit, parts[0])


def _files(name: HubName, files: Mapping[str, int], get: Callable[[str], Path]) -> list[str]:
    """The files that make the model. ``get`` gives the path of one, fetched if need be."""
    if name.file is not None:
        return gguf_files(files, name.file, name.origin)
    if any(is_weights(file) for file in files):
        small = small_files(files, name.origin)
        index = read_json(get(INDEX)) if INDEX in small else {}
        return small + weight_files(files, index, name.origin)
    if any(file.endswith(".gguf") for file in files):
        return gguf_files(files, None, name.origin)
    raise CheckpointError(
        f"{name.origin} has neither *.safetensors nor *.gguf, but {_some(files)}; choose another edition of the model"
    )


def _listing(name: HubName) -> tuple[str, dict[str, int]]:
    """The commit that is meant, and the size of each of its files."""
    import httpx2  # huggingface_hub's own client, whose errors it lets through
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    try:
        info = HfApi(endpoint=endpoint()).model_info(
            name.repo, revision=name.revision, files_metadata=True, timeout=ANSWER_SECONDS
        )
    except HFValidationError:  # a ValueError, but not the Hub's answer
        raise
    except OfflineModeIsEnabled as error:
        raise _OutOfReachError("HF_HUB_OFFLINE forbids to ask the Hub") from error
    except HfHubHTTPError as error:
        if error.response.status_code < 500:
            raise
        raise _OutOfReachError(f"{endpoint()} answers with status {error.response.status_code}") from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise _OutOfReachError(f"{endpoint()} cannot be reached ({str(error) or type(error).__name__})") from error
    except (ValueError, TypeError, KeyError) as error:  # JSON that is none, or of another kind
        raise _OutOfReachError(f"{endpoint()} does not answer as a Hub does ({error})") from error
    if not _COMMIT.fullmatch(info.sha or ""):
        raise _OutOfReachError(f"{endpoint()} does not answer as a Hub does: the commit is {info.sha!r}")
    assert info.sha is not None
    for file in info.siblings or []:
        if not file.rfilename or file.rfilename.startswith("/") or ".." in PurePosixPath(file.rfilename).parts:
            raise CheckpointError(
                f"{endpoint()} does not answer as a Hub does: {name.repo} has the file {file.rfilename!r}, which would "
                "lie elsewhere"
            )
    return info.sha, {file.rfilename: file.size or 0 for file in info.siblings or []}


class _OutOfReachError(Exception):
    """The Hub does not answer; its message says why."""


@contextmanager
def _translated(name: HubName) -> Iterator[None]:
    """The Hub's errors in Strata's words."""
    import httpx2
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    page = f"{endpoint()}/{name.repo}"
    try:
        yield
    except GatedRepoError as error:
        raise CheckpointError(
            f"{name.repo} is gated: accept its terms at {page}, then set HF_TOKEN to a token of that account "
            f"({endpoint()}/settings/tokens) or run `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{name.repo!r} is no model: it is no path here, and {endpoint()} has no such repository, or a private one "
            f"that needs a token (HF_TOKEN or `hf auth login`). A model is {ACCEPTED}"
        ) from error
    except HFValidationError as error:
        raise CheckpointError(
            f"{str(name)!r} is no model: it is no path here, and no name on the Hub. A model is {ACCEPTED}"
        ) from error
    except RevisionNotFoundError as error:
        raise CheckpointError(
            f"{name.repo} has no revision {name.revision!r}; branches and tags are listed at {page}/tree/main"
        ) from error
    except HfHubHTTPError as error:
        code = error.response.status_code
        advice = (
            "the token (HF_TOKEN or `hf auth login`) does not allow it" if code in (401, 403) else "try again later"
        )
        raise CheckpointError(f"{page} answers with status {code}: {advice}") from error
    except (httpx2.HTTPError, LocalEntryNotFoundError) as error:
        raise CheckpointError(
            f"the connection to {endpoint()} broke off ({str(error) or type(error).__name__}); the same command "
            "goes on from there"
        ) from error
    except OSError as error:
        raise StorageError(
            f"{name.repo} cannot be kept in the Hub's cache: {error.strerror or error}; see HF_HUB_CACHE"
        ) from error


def _some(files: Mapping[str, int]) -> str:
    names = sorted(files)
    return f"{', '.join(names[:8])}{' ...' if len(names) > 8 else ''}" if names else "no file at all"
