"""The documentation holds together: links, anchors, commands and paths exist; the code it shows runs."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRONT = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
PAGES = sorted((ROOT / "docs").glob("*.md"))
ALL_PAGES = sorted((ROOT / "docs").rglob("*.md"))  # with the appendix and the texts for other packages
UPSTREAM = ROOT / "packages" / "verl-cpu" / "upstream.md"
WITH_PATHS = [
    page for page in [*FRONT, *ALL_PAGES, UPSTREAM] if page.name != "CHANGELOG.md"
]  # it names files that are gone

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FOLDERS = "exgrpo|packages|exp_scripts|benchmarks|data|eval|tests|docs"
# files that are in the repository, unlike data/valid.parquet; or folders, which end in a slash
PATH = re.compile(rf"(?<![\w/.-])(?:{FOLDERS})/(?:[\w./*-]*\.(?:py|sh|md|yaml|json|txt|png)\b|[\w./-]*/(?=[`\s,;]))")
MODULE = re.compile(r"python -m ([\w.]+)")


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path) -> list[str]:
    wrong = []
    for link in LINK.findall(prose(page)):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    return wrong


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", FRONT + ALL_PAGES, ids=name)
def test_every_link_leads_somewhere(page):
    assert broken(page) == []


def test_broken_links_are_found(tmp_path):
    (tmp_path / "page.md").write_text("# Here it is\n[a](no.md) [b](page.md#there) [c](#here-it-is) [d](https://x/y)\n")
    assert broken(tmp_path / "page.md") == ["no.md", "page.md#there"]


@pytest.mark.parametrize("page", WITH_PATHS, ids=name)
def test_every_path_and_module_that_is_named_exists(page):
    text = page.read_text()
    missing = [path for path in PATH.findall(text) if not any(ROOT.glob(path.rstrip("/")))]
    missing += [module for module in MODULE.findall(text) if importlib.util.find_spec(module) is None]
    assert missing == []


def test_the_readme_is_an_introduction_that_leads_to_every_page():
    text = FRONT[0].read_text()
    assert len(text.split()) <= 950
    assert [line for line in text.splitlines() if len(line) >= 100] == []
    code = [line for _, block in FENCE.findall(text) for line in block.splitlines()]
    assert [line for line in code if len(line) > 85] == []  # more does not fit on the site
    linked = {link.partition("#")[0] for link in LINK.findall(prose(FRONT[0]))}
    assert {name(page) for page in PAGES} - linked == set()


def test_the_pages_are_short():
    """18,000 words without the rows of tables, and the experiments on one page of 600 words with them."""
    lines = [line for page in ALL_PAGES for line in page.read_text().splitlines()]
    assert sum(len(line.split()) for line in lines if not line.lstrip().startswith("|")) <= 18_000
    assert len((ROOT / "docs" / "experiments.md").read_text().split()) <= 600


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "your-own-loop.md"], ids=name)
def test_the_code_that_is_shown_runs(page, tmp_path):
    blocks = [code for language, code in FENCE.findall(page.read_text()) if language == "python"]
    assert blocks
    for code in blocks:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout
