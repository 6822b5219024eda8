"""Interrupts imports at random moments; what is left must let the same command work.

    python lab/benchmarks/interrupted_imports.py [--runs 20] [--within_s 15] [--seed 0]

SIGKILL and SIGINT in turn. After each the pool is whole or not there, and where it is not, the command is run again.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import benchmark_folders  # noqa: F401
from common import ROOT, at_least, die_with_parent

ROWS = 400
LIMIT_S = 300  # one that is not over then hangs
SILENT: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
BASE_MODEL = ROOT / "exp_scripts" / "quickstart" / "base_model"


def main() -> None:
    """Import, interrupt, import again; exits with 1 if a second import failed."""
    import tasks  # on the path that common has set

    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--runs", type=at_least(1), default=20)
    cli.add_argument("--within_s", type=float, default=15.0)
    cli.add_argument("--seed", type=int, default=0)
    options = cli.parse_args()
    rng, worked, whole = random.Random(options.seed), 0, 0
    for number in range(options.runs):
        with tempfile.TemporaryDirectory(prefix="exgrpo-import-") as name:
            folder = Path(name)
            tasks.write(folder)
            questions = tasks.split_questions()["train"][:ROWS]
            rows = [{"question": text, "response": f"\\boxed{{{tasks.answer(text)}}}"} for text in questions]
            (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            files = ["--import", "rows.jsonl", "--output", "pool", "--train_files", "train.parquet"]
            command = [sys.executable, "-m", "exgrpo_tools.inspect", *files, "--tokenizer", str(BASE_MODEL)]
            first = subprocess.Popen(command, cwd=folder, preexec_fn=die_with_parent, **SILENT)
            moment, kind = rng.uniform(0, options.within_s), (signal.SIGKILL, signal.SIGINT)[number % 2]
            time.sleep(moment)
            first.send_signal(kind)
            first.wait(LIMIT_S)
            complete = (folder / "pool").exists()
            again = complete or subprocess.run(command, cwd=folder, timeout=LIMIT_S, **SILENT).returncode == 0
            left = "the pool was whole" if complete else f"no pool; the same command {'works' if again else 'FAILS'}"
            print(f"{kind.name} after {moment:.1f} s: {left}", flush=True)
            whole += complete
            worked += again
    print(f"{worked} of {options.runs} imports worked after an interruption; {whole} had been whole before it")
    sys.exit(worked < options.runs)


if __name__ == "__main__":
    main()
