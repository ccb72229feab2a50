"""Small files of a checkpoint or store, with errors that name them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from stat import S_ISREG
from typing import Any

from strata.errors import CheckpointError


def is_file(path: Path) -> bool:
    """Whether it is a regular file; raises CheckpointError where that cannot be told, as in a locked directory."""
    try:
        return S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the name
        return False
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; raises CheckpointError naming it."""
    try:
        if path.exists() and not path.is_file():  # reading a pipe would wait for its writer
            raise CheckpointError(f"{path} is no regular file")
        table = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise CheckpointError(f"{path} holds a JSON {type(table).__name__}; an object is needed")
    return table


def read_json_if_there(path: Path) -> dict[str, Any]:
    """As ``read_json``; empty where there is no such file."""
    return read_json(path) if is_file(path) else {}


def write_json(path: Path, table: Mapping[str, Any]) -> None:
    """The inverse of ``read_json``."""
    path.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def load_tokenizer(path: Path) -> Any:
    """The ``tokenizers.Tokenizer`` of a file, which neither cuts texts off nor pads them.

    Raises CheckpointError naming the file when it is missing or not a tokenizer.
    """
    from tokenizers import Tokenizer

    if not is_file(path):
        raise CheckpointError(
            f"{path} is missing: a fast tokenizer is needed beside the weights. Fetch it with the checkpoint, or make "
            "one from its other tokenizer files with Hugging Face's AutoTokenizer and save_pretrained"
        )
    try:
        tokenizer: Any = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise CheckpointError(f"{path} is not a tokenizer that can be read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
