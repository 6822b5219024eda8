"""Inspect a saved experience pool, export its trajectories to a file, or make a pool from a file of trajectories.

    python -m exgrpo.inspect CHECKPOINT                                       a summary
    python -m exgrpo.inspect CHECKPOINT --question ID                         one question's trajectories, to read
    python -m exgrpo.inspect CHECKPOINT --html pool.html --train_files train.parquet
    python -m exgrpo.inspect CHECKPOINT --export rows.parquet --train_files train.parquet
    python -m exgrpo.inspect --import rows.parquet --output POOL --train_files train.parquet --tokenizer MODEL

CHECKPOINT is a run's folder of checkpoints (the latest is used), one checkpoint, or a saved pool. A run with
trainer.experience_import=POOL starts from the pool POOL. Rows of an import name their question (question_id, question
or prompt) and have tokens, with or without log_probs, or a response; successes and entropy are optional. Rejected rows
are listed in POOL.rejected.jsonl, with the reason.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from exgrpo.saved.exchange import SUFFIXES

LOG_PROBS = ("recorded", "none", "model")
# options of only one of the two commands, with their defaults
_LOOKING: dict[str, Any] = {"question": None, "html": None, "export": None, "sample": 200, "seed": 0}
_IMPORTING: dict[str, Any] = {"output": None, "rollout_n": 8, "successes": None, "log_probs": "recorded"}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with the message in one line, without the usage."""
        self.exit(2, f"exgrpo.inspect: error: {' '.join(message.split())}\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Exits with status 2 and one line on an error, or if an import accepts no row."""
    if arguments is None:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # called as a command: `| head` is not an error
    parser = _make_parser()
    options = parser.parse_args(arguments)
    try:
        _check(options)
        if options.import_file is None:
            from exgrpo.inspect.look import look

            look(options)
            return
        from exgrpo.inspect.importing import import_pool

        accepted = import_pool(options)
    except ModuleNotFoundError as error:
        parser.error(f"{error.name} is not installed: pip install 'exgrpo[inspect]', and torch for --model")
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if accepted == 0:
        parser.error(f"--import={options.import_file}: no row was accepted, no pool was made")


def _make_parser() -> _Parser:
    parser = _Parser(
        prog="python -m exgrpo.inspect",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("checkpoint", nargs="?", type=Path, metavar="CHECKPOINT", help="checkpoint or pool to inspect")
    add("--train_files", nargs="+", metavar="FILE", help="training data files with the questions' texts and answers")
    add("--tokenizer", metavar="PATH", help="tokenizer (default: the checkpoint's, in actor/huggingface)")
    text = "with --html: also show log-probs under this model; with --log_probs model: compute log-probs with it"
    add("--model", metavar="PATH", help=text)
    add = parser.add_argument_group("inspecting").add_argument
    add("--question", metavar="ID", help="print the trajectories of this question, decoded")
    add("--html", type=Path, metavar="FILE", help="write a page: curves, histograms, trajectories token by token")
    add("--sample", type=int, metavar="N", help="at most this many trajectories on the page (200)")
    add("--seed", type=int, metavar="N", help="seed for drawing the page's questions (0)")
    add("--export", type=Path, metavar="FILE", help="write all trajectories to a .parquet or .jsonl file")
    add = parser.add_argument_group("importing").add_argument
    add("--import", type=Path, metavar="FILE", dest="import_file", help="a .parquet or .jsonl file of trajectories")
    add("--output", type=Path, metavar="POOL", help="new folder for the pool")
    add("--rollout_n", type=int, metavar="K", help="rollouts per question in training, 2 or more (8)")
    add("--successes", type=int, metavar="N", help="successes out of K of questions whose rows do not say (half of K)")
    text = "recorded: those of the rows that have them; none; model: computed with --model (recorded)"
    add("--log_probs", choices=LOG_PROBS, help=text)
    return parser


def _check(options: argparse.Namespace) -> None:
    """ValueError or FileNotFoundError at the first wrong option; then fills in defaults."""
    importing = options.import_file is not None
    inspecting = options.checkpoint is not None
    _need(importing != inspecting, "CHECKPOINT", options.checkpoint, "this or --import is required, not both")
    own, others = (_IMPORTING, _LOOKING) if importing else (_LOOKING, _IMPORTING)
    for name in others:
        value = getattr(options, name)
        rule = "not allowed with --import" if importing else "requires --import"
        _need(value is None, f"--{name}", value, rule)
    for name, default in own.items():
        if getattr(options, name) is None:
            setattr(options, name, default)
    for path in options.train_files or []:
        _need(Path(path).expanduser().is_file(), "--train_files", path, "no such file")
    for name in ("tokenizer", "model"):
        path = getattr(options, name)
        local = path is not None and path.startswith(("/", ".", "~"))
        _need(not local or Path(path).expanduser().is_dir(), f"--{name}", path, "no such folder")
    (_check_import if importing else _check_look)(options)


def _check_look(options: argparse.Namespace) -> None:
    _need(options.checkpoint.is_dir(), "CHECKPOINT", options.checkpoint, "no such folder")
    _need(options.sample >= 1, "--sample", options.sample, "must be 1 or more")
    _need(options.seed >= 0, "--seed", options.seed, "must be 0 or more")
    if options.model is not None:
        _need(options.html is not None, "--model", options.model, "requires --html, which shows its log-probs")
        _need(options.train_files is not None, "--model", options.model, "requires --train_files for the prompts")
    if options.export is not None:
        _need(options.export.suffix in SUFFIXES, "--export", options.export, f"must end in {' or '.join(SUFFIXES)}")
    for name in ("html", "export"):
        path = getattr(options, name)
        _need(path is None or not path.is_dir(), f"--{name}", path, "is a folder: must be a file")
        _need(path is None or path.absolute().parent.is_dir(), f"--{name}", path, "its folder does not exist")


def _check_import(options: argparse.Namespace) -> None:
    file, output, rollout_n = options.import_file, options.output, options.rollout_n
    _need(file.is_file(), "--import", file, "no such file")
    _need(file.suffix in SUFFIXES, "--import", file, f"must end in {' or '.join(SUFFIXES)}")
    for name in ("output", "train_files", "tokenizer"):
        _need(getattr(options, name) is not None, f"--{name}", "", "is required with --import")
    _need(not output.exists(), "--output", output, "exists already: must be a new folder")
    _need(rollout_n >= 2, "--rollout_n", rollout_n, "must be 2 or more")
    if options.successes is None:
        options.successes = rollout_n // 2
    in_range = 1 <= options.successes < rollout_n
    _need(in_range, "--successes", options.successes, f"must be between 1 and {rollout_n - 1}")
    consistent = (options.log_probs == "model") == (options.model is not None)
    _need(consistent, "--log_probs", options.log_probs, "model requires --model, and --model requires it")


def _need(holds: bool, name: str, value: object, rule: str) -> None:
    """ValueError ``name=value: rule`` unless it holds."""
    if not holds:
        raise ValueError(f"{name}={'' if value is None else value}: {rule}")


if __name__ == "__main__":
    main()
