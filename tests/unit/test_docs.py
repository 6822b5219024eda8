"""The documentation holds together: links, anchors, commands and paths exist; the code it shows
runs.
"""

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
ALL_PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / "lab").rglob("*.md")])
UPSTREAM = ROOT / "packages" / "verl-cpu" / "upstream.md"
WITH_PATHS = [
    page for page in [*FRONT, *ALL_PAGES, UPSTREAM] if page.name != "CHANGELOG.md"
]  # it names files that are gone

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FOLDERS = "exgrpo|packages|exp_scripts|benchmarks|data|eval|tests|docs|lab"
# files that are in the repository, unlike data/valid.parquet; or folders, which end in a slash
PATH = re.compile(
    rf"(?<![\w/.-])(?:{FOLDERS})/(?:[\w./*-]*\.(?:py|sh|md|yaml|json|txt|png)\b|[\w./-]*/(?=[`\s,;]))"
)
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
    (tmp_path / "page.md").write_text(
        "# Here it is\n[a](no.md) [b](page.md#there) [c](#here-it-is) [d](https://x/y)\n"
    )
    assert broken(tmp_path / "page.md") == ["no.md", "page.md#there"]


@pytest.mark.parametrize("page", WITH_PATHS, ids=name)
def test_every_path_and_module_that_is_named_exists(page):
    text = page.read_text()
    missing = [path for path in PATH.findall(text) if not any(ROOT.glob(path.rstrip("/")))]
    missing += [
        module for module in MODULE.findall(text) if importlib.util.find_spec(module) is None
    ]
    assert missing == []


# of commands that have a name of their own after the set-up, or that stand in an environment which
# a page has activated
OLD_SPELLINGS = re.compile(
    r"python3? (?:-m )?(?:eval|data)[./](?!make_tasks)\w+|python -m (?:pytest|exgrpo\.main_mix_ppo)"
    r"|\.venv(?:-gpu)?/bin/(?:python|exgrpo)"
)
FILES = re.compile(
    r"\b(?:prepare_train|prepare_eval|thinking_copy|compare|sample_size)\.py\b"
)  # not on a page either
BOTH = {  # these say that the two are the same
    "docs/evaluation.md": "python eval/generate_vllm",
    "exgrpo/commands.py": "python -m exgrpo.main_mix_ppo",
}
PRINT_COMMANDS = [
    path
    for folder in (
        "exgrpo/preflight",
        "packages/exgrpo_tools",
        "eval",
        "data",
        "exp_scripts/recipes",
    )
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".sh")
]


def old_spellings(page: Path) -> list[str]:
    text = page.read_text()
    found = OLD_SPELLINGS.findall(text)
    if page.suffix == ".md" and page.name != "map.md":  # the map lists files
        found += FILES.findall(text)
    return [old for old in found if old != BOTH.get(name(page))]


def test_there_is_one_way_of_writing_a_command():
    pages = [
        *WITH_PATHS,
        *(ROOT / "packages").glob("*/README.md"),
        *PRINT_COMMANDS,
        ROOT / "exgrpo" / "commands.py",
    ]
    found = {name(page): old_spellings(page) for page in pages}
    assert {page: old for page, old in found.items() if old} == {}


def test_old_spellings_are_found():
    old = [
        "python eval/compare",
        "python -m eval.export",
        "python data/prepare_eval",
        "python -m pytest",
    ]
    assert [OLD_SPELLINGS.findall(f"`{text}.py --a`") for text in old] == [[text] for text in old]
    assert OLD_SPELLINGS.findall(
        "a; .venv/bin/python x; bash eval/eval.sh; python data/make_tasks.py"
    ) == [".venv/bin/python"]


def flags(command: str, script: str) -> set[str]:
    """The flags of a console command's script, as its help names them."""
    code = (
        f"import sys; sys.argv = [{command!r}, *{script.split()!r}, '--help']; from {{}} import "
        f"{{}} as main; main()"
    )
    module, function = {
        "exgrpo-eval": ("exgrpo_eval.__main__", "main"),
        "exgrpo-data": ("exgrpo_data.__main__", "main"),
        "exgrpo-inspect": ("exgrpo_tools.inspect.__main__", "main"),
    }[command]
    done = subprocess.run(
        [sys.executable, "-c", code.format(module, function)], capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command} {script}: {done.stderr}"
    return set(re.findall(r"--[\w-]+", done.stdout))


def test_every_command_on_a_page_has_the_flags_that_it_is_given():
    """The longest run of code after the command's name, in a block or between backticks."""
    written: dict[tuple[str, str], set[str]] = {}
    for page in [*FRONT, *ALL_PAGES]:
        text = page.read_text().replace("\\\n", " ")
        for command, code in re.findall(
            r"(?<![\w./-])(exgrpo-(?:eval|data|inspect))\b([^`\n#;|]*)", text
        ):
            script = (
                ""
                if command == "exgrpo-inspect"
                else next(iter(re.findall(r"^ ([a-z-]+)", code)), "")
            )
            written.setdefault((command, script), set()).update(re.findall(r"--[\w-]+", code))
    assert len(written) > 8
    wrong = {key: used - flags(*key) for key, used in written.items() if used}
    assert {key: unknown for key, unknown in wrong.items() if unknown} == {}


def test_the_readme_is_an_introduction_that_leads_to_every_page():
    text = FRONT[0].read_text()
    assert len(text.split()) <= 900
    assert [line for line in text.splitlines() if len(line) >= 100] == []
    code = [line for _, block in FENCE.findall(text) for line in block.splitlines()]
    assert [line for line in code if len(line) > 85] == []  # more does not fit on the site
    linked = {link.partition("#")[0] for link in LINK.findall(prose(FRONT[0]))}
    assert {name(page) for page in PAGES} - linked == set()


def words(page: Path) -> int:
    """Without the bars of tables, dashes and fences."""
    return len([word for word in page.read_text().split() if re.search(r"\w", word)])


def test_the_pages_are_short():
    """All together, and those that should be read in one go; the Chinese README is the README's."""
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.name != "README.zh-CN.md"]
    assert sum(map(words, pages)) <= 15_200
    longest = {"experiments.md": 450, "which-keys.md": 500, "performance.md": 600}
    assert {name for name, most in longest.items() if words(ROOT / "docs" / name) > most} == set()


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
