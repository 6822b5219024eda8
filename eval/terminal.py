"""Markdown on stdout: as it is written where that is a file or a pipe, its tables drawn where it is a terminal."""

from __future__ import annotations

import sys


def show(markdown: str) -> None:
    """Print it; only tables are drawn, so that what a model or a data set wrote stays as it is."""
    if not sys.stdout.isatty():
        print(markdown)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    for block in markdown.split("\n\n"):
        if block.startswith("|"):
            console.print(Markdown(block, hyperlinks=False))
        else:
            print(f"{block}\n")
