"""Looks into a saved experience pool; writes its trajectories to a file, or makes a pool of a file of trajectories.

    python -m exgrpo.inspect CHECKPOINT                                       a summary
    python -m exgrpo.inspect CHECKPOINT --question ID                         one question's trajectories, to read
    python -m exgrpo.inspect CHECKPOINT --html pool.html --train_files train.parquet
    python -m exgrpo.inspect CHECKPOINT --export rows.parquet --train_files train.parquet
    python -m exgrpo.inspect --import rows.parquet --output POOL --train_files train.parquet --tokenizer MODEL

CHECKPOINT is a run's folder of checkpoints (its latest is taken), one of them, or a saved pool. POOL is what a training
starts with under trainer.experience_import=POOL. Rows of an import name their question (question_id, question or
prompt) and have tokens, with or without log_probs, or a response; successes and entropy are optional. Rows that are
refused are listed in POOL.rejected.jsonl, with the reason.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from exgrpo.saved.exchange import SUFFIXES

LOG_PROBS = ("recorded", "none", "model")
# options of one of the two commands and the defaults they have in it
_LOOKING: dict[str, Any] = {"question": None, "html": None, "export": None, "sample": 200, "seed": 0}
_IMPORTING: dict[str, Any] = {"output": None, "rollout_n": 8, "successes": None, "log_probs": "recorded"}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, without the usage."""
        self.exit(2, f"exgrpo.inspect: error: {' '.join(message.split())}\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Leaves with status 2 and one line where something is wrong, or where an import accepts no row."""
    if arguments is None:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as a command: `| head` is no error
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
    add("checkpoint", nargs="?", type=Path, metavar="CHECKPOINT", help="what to look into")
    add(
        "--train_files", nargs="+", metavar="FILE", help="the training's data files: texts and answers of the questions"
    )
    add("--tokenizer", metavar="PATH", help="what decodes (the one the checkpoint has, in actor/huggingface)")
    add("--model", metavar="PATH", help="with --html: shows log-probs under it too; with --log_probs model: theirs")
    add = parser.add_argument_group("looking").add_argument
    add("--question", metavar="ID", help="print the trajectories of this question, decoded")
    add("--html", type=Path, metavar="FILE", help="write a page: curves, histograms, trajectories token by token")
    add("--sample", type=int, metavar="N", help="at most this many trajectories on the page (200)")
    add("--seed", type=int, metavar="N", help="of the draw of the page's questions (0)")
    add("--export", type=Path, metavar="FILE", help="write all trajectories to a .parquet or .jsonl")
    add = parser.add_argument_group("importing").add_argument
    add("--import", type=Path, metavar="FILE", dest="import_file", help="a .parquet or .jsonl of trajectories")
    add("--output", type=Path, metavar="POOL", help="the folder to make")
    add("--rollout_n", type=int, metavar="K", help="rollouts a question of the training, 2 or more (8)")
    add("--successes", type=int, metavar="N", help="of K, of questions whose rows do not say (half of K)")
    text = "the rows' own, where they have them; none at all; or those of --model (recorded)"
    add("--log_probs", choices=LOG_PROBS, help=text)
    return parser


def _check(options: argparse.Namespace) -> None:
    """ValueError or FileNotFoundError at the first thing that cannot work; then defaults are filled in."""
    importing = options.import_file is not None
    _need(
        importing != (options.checkpoint is not None), "CHECKPOINT", options.checkpoint, "this or --import, one of them"
    )
    own, others = (_IMPORTING, _LOOKING) if importing else (_LOOKING, _IMPORTING)
    for name in others:
        given = getattr(options, name)
        _need(given is None, f"--{name}", given, f"goes {'without' if importing else 'with'} --import")
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
        _need(options.html is not None, "--model", options.model, "goes with --html, which shows what it says")
        _need(
            options.train_files is not None, "--model", options.model, "goes with --train_files, which have the prompts"
        )
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
        _need(getattr(options, name) is not None, f"--{name}", "", "must be given with --import")
    _need(not output.exists(), "--output", output, "exists already: must be a new folder")
    _need(rollout_n >= 2, "--rollout_n", rollout_n, "must be 2 or more")
    if options.successes is None:
        options.successes = rollout_n // 2
    _need(
        1 <= options.successes < rollout_n, "--successes", options.successes, f"must be between 1 and {rollout_n - 1}"
    )
    wants = options.log_probs == "model"
    _need(
        wants == (options.model is not None), "--log_probs", options.log_probs, "model goes with --model, and only it"
    )


def _need(holds: bool, name: str, value: object, rule: str) -> None:
    """ValueError ``name=value: rule`` unless it holds."""
    if not holds:
        raise ValueError(f"{name}={'' if value is None else value}: {rule}")


if __name__ == "__main__":
    main()
