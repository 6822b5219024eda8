"""Hooks of docs/mkdocs.yml: pages of the repository's root on the site, and links to files that a
site does not hold.

README.md is the first page. The pages link to scripts and other files; on the site, such a link
becomes the file's path. A link to a file that does not exist is a warning, which `mkdocs build
--strict` counts as an error.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
# page of the site -> file outside docs/
FROM_ROOT = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "lab.md": "lab/README.md",
}
CODE = re.compile(r"<code>([^<\n]+)</code>")  # not a block's
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s:]+)(#[^)\s]*)?\)")  # without links that have a scheme

logger = logging.getLogger("mkdocs.hooks.exgrpo")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root."""
    for page, name in FROM_ROOT.items():
        files.append(
            File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8"))
        )
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the page's links for the site."""
    name = page.file.src_uri
    folder = (ROOT / FROM_ROOT[name] if name in FROM_ROOT else DOCS / name).parent

    def rewritten(link: re.Match[str]) -> str:
        image, text, path, anchor = link.groups(default="")
        target = Path(os.path.normpath(folder / path))
        if not target.exists():
            logger.warning("%s links to %s, which does not exist", name, path)
        on_site = _place_on_site(target, (DOCS / name).parent)
        if on_site is not None:
            return f"{image}[{text}]({on_site}{anchor})"
        where = os.path.relpath(target, ROOT)
        return f"`{where}`" if where.endswith(text.strip("`")) else f"{text}: `{where}`"

    return LINK.sub(rewritten, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Say where a narrow screen may break inline code: in names of one word, which get a class, and
    in long words.
    """

    def breakable(code: re.Match[str]) -> str:
        kind, words = ("", r"\S{30,}") if " " in code[1] else (' class="name"', r"\S+")
        text = re.sub(words, lambda word: re.sub("(?<=[._/=,])(?=.)", "<wbr>", word[0]), code[1])
        return f"<code{kind}>{text}</code>"

    return CODE.sub(breakable, html)


def _place_on_site(target: Path, here: Path) -> str | None:
    """The link from a page in the folder `here` of docs/; None for a file that a site does not
    hold.
    """
    for page, name in FROM_ROOT.items():
        if target == ROOT / name:
            return os.path.relpath(DOCS / page, here)
    return os.path.relpath(target, here) if target.is_relative_to(DOCS) else None
