"""Print Markdown: unchanged to a file or a pipe, with drawn tables on a terminal."""

from __future__ import annotations

import sys

from exgrpo_tools.inspect.text import print_lines


def show(markdown: str) -> None:
    """Print it; only tables are drawn, so that text of a model or a data set is not changed."""
    if not sys.stdout.isatty():
        print_lines(markdown.split("\n"))
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    for block in markdown.split("\n\n"):
        if block.startswith("|"):
            console.print(Markdown(block, hyperlinks=False))
        else:
            print_lines([*block.split("\n"), ""])
