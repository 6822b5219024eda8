"""docs/README.zh-CN.md says what README.md says, as far as a program can see it."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENGLISH, CHINESE = "README.md", "docs/README.zh-CN.md"
FENCE = re.compile(r"^```\w*\n.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(((?!\w+:)[^)#\s]+)")
COMMENT = re.compile(r" *# .*")  # may be translated


def read(name: str) -> str:
    """The page, its links as from the root."""
    folder = Path(name).parent
    text = (ROOT / name).read_text(encoding="utf-8")
    return LINK.sub(lambda link: f"]({os.path.normpath(folder / link[1])}", text)


def facts(text: str) -> dict[str, list[str]]:
    """What a translation keeps: each list in an order that it may change, but for code and levels
    of headings.
    """
    prose = FENCE.sub("", text)
    return {
        "code": [COMMENT.sub("", block) for block in FENCE.findall(text)],
        "code in prose": sorted(re.findall(r"`[^`]+`", prose)),
        "numbers": sorted(re.findall(r"(?:\d+)?\.?\d+", text)),
        "links": sorted(set(re.findall(r"\]\(([^)]+)\)", prose)) - {ENGLISH, CHINESE}),
        "headings": re.findall(r"^#+(?= )", prose, re.MULTILINE),
        "bold": [str(len(re.findall(r"\*\*[^*]+\*\*", prose)))],
        "items": re.findall(r"^(?:\d\.|-)(?= )", prose, re.MULTILINE),
    }


def test_the_translation_has_the_same_commands_figures_links_and_headings():
    assert facts(read(CHINESE)) == facts(read(ENGLISH))


def test_each_links_to_the_other_below_its_title():
    assert read(ENGLISH).splitlines()[2] == f"[中文]({CHINESE})"
    assert read(CHINESE).splitlines()[2] == f"[English]({ENGLISH})"


def test_a_changed_figure_command_or_link_is_seen():
    text = read(CHINESE)
    for old, new in [
        (".013", ".015"),
        ("quickstart.sh", "quick.sh"),
        ("docs/keys.md", "docs/key.md"),
        ("## ", "# "),
    ]:
        assert old in text and facts(text.replace(old, new, 1)) != facts(text)
