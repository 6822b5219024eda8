"""The page on troubleshooting quotes what the code prints, and metrics that a run has."""

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = ("exgrpo", "packages", "exp_scripts", "data", "eval")
ROW = re.compile(r"^\| (.*?) \|", re.MULTILINE)
VERLS = "workers/rollout/vllm_rollout/bucketed_weight_transfer.py"  # one row is of verl's text
QUOTED = re.compile(r"`([^`]+)`")


@cache
def printed() -> str:
    """All texts of the sources, with … for values; a line each."""
    texts = []
    verl = Path(importlib.util.find_spec("verl").submodule_search_locations[0])
    ours = (path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py")))
    for path in (*ours, verl / VERLS):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [
                    part.value if isinstance(part, ast.Constant) else "…" for part in node.values
                ]
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(re.sub(r"%[sdr]|%\.\df", "…", node.value))
    texts += [
        re.sub(r"\$\{?\w+\}?", "…", path.read_text())
        for path in (ROOT / "exp_scripts").glob("*.sh")
    ]
    return "\n".join(texts)


def quotes() -> list[str]:
    rows = ROW.findall((ROOT / "docs" / "troubleshooting.md").read_text())
    return [quote for row in rows for quote in QUOTED.findall(row)]


@pytest.mark.parametrize("quote", quotes())
def test_what_the_page_quotes_is_printed(quote):
    pattern = ".*?".join(map(re.escape, re.split(r" ?…,? ?", quote)))
    assert re.search(pattern, printed()) or quote in (ROOT / "docs" / "metrics.md").read_text()


def test_the_page_has_rows():
    assert len(quotes()) > 15
