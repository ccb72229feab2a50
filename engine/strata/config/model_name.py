"""What the user names as the model, told apart: a repository on the Hub, a model that comes along, or what is here."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TypeAlias

SCHEME = "builtin://"
ACCEPTED = (
    "a store made by `strata convert`, a Hugging Face directory (config.json and *.safetensors), a .gguf file, "
    f"{SCHEME}NAME, https://HOST/FILE.gguf, or a model on the Hugging Face Hub (ORG/NAME, ORG/NAME@REVISION, "
    "ORG/NAME:FILE.gguf, ORG/NAME:Q4_K_M)"
)
_URL = re.compile(
    r"(?P<address>https?://[^\s/?#]+/(?:[^\s?#]*/)?(?P<file>[\w.@+=,%-]+\.gguf)(?:\?[^\s#]*)?)"
    r"(?:#sha256=(?P<sha256>[0-9a-f]{64}))?"
)
_HUB = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>(?!.*\.\.)[^\s@:]+))?(?::(?P<file>[^\s:]+))?"
)


@dataclass(frozen=True, slots=True)
class HubName:
    """``ORG/NAME[@REVISION][:FILE]``."""

    repo: str
    revision: str | None = None  # a branch, a tag or a commit; None: the default branch
    file: str | None = None  # a GGUF's name, or the name of its quantisation

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.repo}{revision}{f':{self.file}' if self.file else ''}"

    @property
    def origin(self) -> str:
        """As errors name the repository."""
        return f"{self.repo}@{self.revision}" if self.revision else self.repo


@dataclass(frozen=True, slots=True)
class BuiltinName:
    """``builtin://NAME``."""

    name: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.name}"


@dataclass(frozen=True, slots=True)
class LocalName:
    """A file or directory here, as it was written; it need not exist."""

    path: str

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class UrlName:
    """``https://HOST/PATH.gguf[#sha256=...]``."""

    address: str
    file: str  # its last part
    sha256: str | None = None

    def __str__(self) -> str:
        return f"{self.address}#sha256={self.sha256}" if self.sha256 else self.address


ModelName: TypeAlias = HubName | BuiltinName | LocalName | UrlName


def parse_name(text: str) -> ModelName:
    """What is meant. A path that exists is never a name on the Hub."""
    if text.startswith(SCHEME):
        return BuiltinName(text.removeprefix(SCHEME))
    url = _URL.fullmatch(text)
    if url is not None:
        return UrlName(url["address"], url["file"], url["sha256"])
    match = _HUB.fullmatch(text)
    if match is None or match["repo"].endswith((".gguf", ".safetensors")) or os.path.lexists(text):
        return LocalName(text)
    return HubName(match["repo"], match["revision"], match["file"])
