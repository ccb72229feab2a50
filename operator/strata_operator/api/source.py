"""``spec.model.source``: where a checkpoint comes from."""

from __future__ import annotations

import re
from dataclasses import dataclass

from strata_operator.api.errors import InvalidSpecError, NotServedError

PATH = r"(?:/[A-Za-z0-9._@+=,:-]+)+"
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_SOURCES = re.compile(
    rf"builtin://(?P<name>[a-z0-9][a-z0-9._-]*)|hostpath://(?P<host>{PATH})"
    rf"|pvc://(?P<claim>[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)(?P<inside>{PATH})?"
    rf"|hf://(?P<hub>{_PART}/{_PART}(?::[A-Za-z0-9._/-]+)?)"
    r"|(?P<url>https?://[A-Za-z0-9._-]+(?::[0-9]{1,5})?/[A-Za-z0-9._~@+=,:/%-]+)"
)


@dataclass(frozen=True, slots=True)
class Source:
    """Exactly one of ``builtin``, ``host_path``, ``claim`` and ``hub`` is set."""

    text: str  # as the user wrote it
    builtin: str | None = None  # a model that the engine's image knows by name
    host_path: str | None = None  # an absolute path on the node
    claim: str | None = None  # a PersistentVolumeClaim of the model's namespace
    path_in_claim: str = ""  # relative to the volume's root; empty is the root
    hub: str | None = None  # ORG/NAME or ORG/NAME:FILE on the Hugging Face Hub

    @classmethod
    def parse(cls, text: str) -> Source:
        """Raises InvalidSpecError for another scheme, a relative path, or one with ``.`` or ``..`` in it;
        NotServedError for a URL."""
        match = _SOURCES.fullmatch(text)
        if match is None or re.search(r"/\.\.?(/|$)", text):
            raise InvalidSpecError(
                f"spec.model.source is {text!r}; allowed are hf://ORG/NAME or hf://ORG/NAME:FILE, builtin://NAME, "
                "hostpath:///ABSOLUTE/PATH and pvc://CLAIM or pvc://CLAIM/PATH, without '.' or '..' in a path"
            )
        if match["url"]:
            raise NotServedError(
                f"spec.model.source is {text!r}: this version fetches from the Hugging Face Hub alone. Download the "
                "file and give it as hostpath:///ABSOLUTE/PATH or pvc://CLAIM/PATH, or name the model as hf://ORG/NAME"
            )
        return cls(
            text=text,
            builtin=match["name"],
            host_path=match["host"],
            claim=match["claim"],
            path_in_claim=(match["inside"] or "").lstrip("/"),
            hub=match["hub"],
        )
