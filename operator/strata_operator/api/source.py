"""``spec.model.source``: where a checkpoint comes from."""

from __future__ import annotations

import re
from dataclasses import dataclass

from strata_operator.api.errors import InvalidSpecError

PATH = r"(?:/[A-Za-z0-9._@+=,:-]+)+"
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_SOURCES = re.compile(
    rf"builtin://(?P<name>[a-z0-9][a-z0-9._-]*)|hostpath://(?P<host>{PATH})"
    rf"|pvc://(?P<claim>[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)(?P<inside>{PATH})?"
    rf"|hf://(?P<hub>{_PART}/{_PART}(?::[A-Za-z0-9._/-]+)?)"
    r"|(?P<url>https?://[A-Za-z0-9._-]+(?::[0-9]{1,5})?/(?:[A-Za-z0-9._~@+=,:%-]+/)*[A-Za-z0-9._@+=,%-]+[.]gguf"
    r"(?:[?][A-Za-z0-9._~@+=,:/%&-]*)?(?:#sha256=[0-9a-f]{64})?)"
)


@dataclass(frozen=True, slots=True)
class Source:
    """Exactly one of ``builtin``, ``host_path``, ``claim``, ``hub`` and ``url`` is set."""

    text: str  # as the user wrote it
    builtin: str | None = None  # a model that the engine's image knows by name
    host_path: str | None = None  # an absolute path on the node
    claim: str | None = None  # a PersistentVolumeClaim of the model's namespace
    path_in_claim: str = ""  # relative to the volume's root; empty is the root
    hub: str | None = None  # ORG/NAME or ORG/NAME:FILE on the Hugging Face Hub
    url: str | None = None  # of a .gguf file, with #sha256=... where it is to be compared

    @classmethod
    def parse(cls, text: str) -> Source:
        """Raises InvalidSpecError for another scheme, a relative path, or one with ``.`` or ``..`` in it."""
        match = _SOURCES.fullmatch(text)
        if match is None or re.search(r"/\.\.?(/|$)", text):
            raise InvalidSpecError(
                f"spec.model.source is {text!r}; allowed are hf://ORG/NAME or hf://ORG/NAME:FILE, builtin://NAME, "
                "hostpath:///ABSOLUTE/PATH, pvc://CLAIM or pvc://CLAIM/PATH and https://HOST/PATH/FILE.gguf, without "
                "'.' or '..' in a path"
            )
        return cls(
            text=text,
            builtin=match["name"],
            host_path=match["host"],
            claim=match["claim"],
            path_in_claim=(match["inside"] or "").lstrip("/"),
            hub=match["hub"],
            url=match["url"],
        )
