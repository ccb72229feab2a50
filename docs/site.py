"""What the site has beside the pages of ``docs/``: links and anchors as code hosts read them, and pages from elsewhere.

Pages link to files of the repository, and headings have the anchors of a code host. So the same page is right in the
repository and in the site: there README.md is the first page, and a file or folder outside of ``docs/`` that some page
links to has a page that shows it. mkdocs calls the functions ``on_*`` (``mkdocs.yml``).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Pages of the site that lie outside of docs/, by their place in the repository.
OUTSIDE = {
    "README.md": "index.md",
    "README.zh-CN.md": "index.zh-CN.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "charts/strata/README.md": "chart.md",
    "charts/strata-model/README.md": "chart-model.md",
}
ICON = "engine/strata/server/page/icon.svg"  # of the page that the engine serves
FENCED = re.compile(r"^([ ]*)(```+)[^\n]*\n.*?^\1\2[ ]*$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"(?<=\]\()[^()\s]+(?=[)\s])")
HEADING = re.compile(r"^#{1,6}[ ]+(.+?)[ #]*$", re.MULTILINE)


def blanked(code: re.Pattern[str], text: str) -> str:
    return code.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def without_code(text: str) -> str:
    """The same length, with spaces where code was: nothing in it is a link."""
    return blanked(INLINE, blanked(FENCED, text))


def links(text: str) -> Iterator[re.Match[str]]:
    return LINK.finditer(without_code(text))


def slug(heading: str, _separator: str = "-") -> str:
    """The anchor that code hosts give a heading."""
    words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def headings(text: str) -> list[str]:
    """Their texts, as they are written."""
    return [found[1] for found in HEADING.finditer(blanked(FENCED, text))]


def target(source: str, link: str) -> tuple[str, str] | None:
    """What a link in the file ``source`` leads to, (path from the root, anchor); None for another site."""
    path, _, anchor = link.partition("#")
    if re.match(r"[a-z]+:", link):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), path)) if path else source, anchor


def sources() -> dict[str, str]:
    """The place in the repository of each page that somebody wrote -> its place in the site."""
    inside = sorted((ROOT / "docs").rglob("*.md"))
    written = {str(path.relative_to(ROOT)): str(path.relative_to(ROOT / "docs")) for path in inside}
    return written | OUTSIDE


def place(path: str) -> str:
    """Where the site has what lies at ``path`` in the repository."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if (ROOT / path).is_dir():
        return f"{posixpath.relpath(path, 'docs')}/index.md" if path.startswith("docs/") else f"files/{path}/index.md"
    return posixpath.relpath(path, "docs") if path.startswith("docs/") else f"files/{path}.md"


def shown(path: str) -> str:
    """A page with the text of a file, or with links to what a folder has."""
    file = ROOT / path
    if not file.is_dir():
        return f"# {file.name}\n\n````{file.suffix.removeprefix('.')}\n{file.read_text('utf-8')}\n````\n"
    folder = posixpath.dirname(place(path))
    entries = sorted(entry.name for entry in file.iterdir())
    titles = {name: headings((file / name).read_text("utf-8"))[0] for name in entries if name.endswith(".md")}
    lines = [f"- [{titles.get(name, name)}]({posixpath.relpath(place(f'{path}/{name}'), folder)})" for name in entries]
    return f"# {file.name.capitalize()}\n\n" + "\n".join(lines) + "\n"


def linked() -> dict[str, str]:
    """What pages link to and nobody wrote as a page: its place in the repository -> in the site."""
    wanted: set[str] = set()
    for source in sources():
        for link in links((ROOT / source).read_text("utf-8")):
            found = target(source, link[0])
            if found and (ROOT / found[0]).exists():
                wanted.add(found[0])
    folders = {path for path in wanted if (ROOT / path).is_dir() and not path.startswith("docs/")}
    wanted |= {str(entry.relative_to(ROOT)) for folder in folders for entry in (ROOT / folder).rglob("*")}
    pictures = {path for path in wanted if path.startswith("docs/") and (ROOT / path).is_file()}
    return {path: place(path) for path in sorted(wanted - pictures - OUTSIDE.keys())}


def expanded(nav: list[Any]) -> list[Any]:
    """The navigation with each folder's pages in its place."""
    done: list[Any] = []
    for entry in nav:
        if isinstance(entry, dict):
            done += [{title: expanded(part) if isinstance(part, list) else part} for title, part in entry.items()]
        elif entry.endswith("/"):
            done += [entry + page.name for page in sorted((ROOT / "docs" / entry).glob("*.md"))]
        else:
            done.append(entry)
    return done


def for_python_markdown(text: str) -> str:
    """It takes a table behind a comment for a part of that, and one whose headings are all empty for none."""
    text = re.sub(r"-->\n(?=\S)", "-->\n\n", text)
    return re.sub(r"^\|( *\|)+\n(?=\|-)", lambda row: row[0].replace(" ", "<i></i>"), text, flags=re.MULTILINE)


def on_config(config: Any) -> Any:
    config.nav = expanded(config.nav)
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File  # where mkdocs runs alone

    files.append(File.generated(config, "icon.svg", abs_src_path=str(ROOT / ICON)))
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    for path, page in linked().items():
        files.append(File.generated(config, page, content=shown(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    here = page.file.src_uri
    source = next((source for source, place in sources().items() if place == here), None)
    if source is None:
        return markdown
    text, end = "", 0
    for link in links(markdown):
        found = target(source, link[0])
        text += markdown[end : link.start()]
        end = link.end()
        if found is None or found[0] == source:
            text += link[0]
        else:
            text += posixpath.relpath(place(found[0]), posixpath.dirname(here) or ".") + (found[1] and f"#{found[1]}")
    return for_python_markdown(text + markdown[end:])
