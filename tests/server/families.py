"""Chat templates in the styles of the published families, shortened, each with tools, calls and results in the form
that its family is trained on: ``templates/*.jinja``."""

from __future__ import annotations

from pathlib import Path

TEMPLATES = {path.stem: path.read_text() for path in sorted((Path(__file__).parent / "templates").glob("*.jinja"))}
