"""eval/reports/terminal.py: tables are drawn on a terminal and only there."""

import os
import pty
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (
    "# a and b\n\n| name | value |\n| --- | ---: |\n| mmlu_pro | **+.1** (.0 to .2) |\n\n- "
    "what \\(x_1\\) *is* | ..."
)
SHOW = [sys.executable, "-c", f"from exgrpo_eval.reports.terminal import show\nshow({TEXT!r})"]


def on_a_terminal():
    """What the process writes to a terminal of 80 columns that knows no colours."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "dumb"}
    process = subprocess.Popen(SHOW, cwd=ROOT, stdin=theirs, stdout=theirs, env=environment)
    os.close(theirs)
    written = b""
    try:
        while part := os.read(ours, 1 << 16):
            written += part
    except OSError:  # how Linux says that nobody writes any more
        pass
    os.close(ours)
    assert process.wait() == 0
    return written.decode().replace("\r\n", "\n")


def test_a_file_or_a_pipe_gets_the_markdown():
    assert subprocess.run(SHOW, cwd=ROOT, capture_output=True, text=True).stdout == TEXT + "\n"


def test_a_terminal_gets_drawn_tables_and_everything_else_as_it_is():
    drawn = on_a_terminal()
    cells = [line.split("  ") for line in drawn.splitlines() if "mmlu_pro" in line]
    assert [[cell.strip() for cell in line if cell.strip()] for line in cells] == [
        ["mmlu_pro", "+.1 (.0 to .2)"]
    ]
    assert "| name" not in drawn and "───" in drawn
    assert drawn.startswith("# a and b\n") and "- what \\(x_1\\) *is* | ...\n" in drawn
