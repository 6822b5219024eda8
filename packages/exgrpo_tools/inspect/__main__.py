"""Inspect a saved experience pool, export its trajectories to a file, or make a pool from a file of
trajectories.

    exgrpo-inspect CHECKPOINT                  a summary
    exgrpo-inspect CHECKPOINT --question ID    one question's trajectories, to read
    exgrpo-inspect CHECKPOINT --html pool.html --train_files train.parquet
    exgrpo-inspect CHECKPOINT --export rows.parquet --train_files train.parquet
    exgrpo-inspect CHECKPOINT --rewards --train_files train.parquet --rollouts FOLDER
    exgrpo-inspect CHECKPOINT --explain STEP [ROW]
    exgrpo-inspect RUN --curves [--beside OTHER]  what a run, or each of two, has learned
    exgrpo-inspect CHECKPOINT --quarantine --grader full --rule lists --steps 10-25  (then --undo)
    exgrpo-inspect --import rows.parquet --output POOL --train_files train.parquet --tokenizer MODEL

CHECKPOINT is a run's folder of checkpoints (the latest is used), one checkpoint, or a saved pool. A
run with trainer.experience_import=POOL starts from the pool POOL. Rows of an import name their
question (question_id, question or prompt) and have tokens, with or without log_probs, or a
response, or are chats (messages); successes and entropy are optional. Their answers are judged, and
wrong ones kept out; refused rows are listed in POOL.rejected.jsonl, with the reason.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from exgrpo import __version__
from exgrpo.console import printable
from exgrpo.saved.durable import newest
from exgrpo_tools import reward_option
from exgrpo_tools.inspect.exchange import SUFFIXES

_JUDGES = "requires --rewards, --quarantine or --import"
LOG_PROBS = ("recorded", "none", "model")
# options of only one of the two commands, with their defaults
_SUSPECT: dict[str, Any] = {
    "grader": None,
    "version": None,
    "rule": None,
    "steps": None,
    "undo": False,
    "dry_run": False,
}
_REWARD: dict[str, Any] = {"reward": None, "reward_kwargs": None}
_REWARDS: dict[str, Any] = {
    "rewards": False,
    "rollouts": None,
    "explain": None,
    "quarantine": False,
    **_SUSPECT,
    **_REWARD,
}
_SHOWING: dict[str, Any] = {
    "curves": False,
    "beside": None,
    "question": None,
    "html": None,
    "export": None,
    "sample": 200,
    "seed": 0,
    **_REWARDS,
}
_IMPORTING: dict[str, Any] = {
    "output": None,
    "rollout_n": 8,
    "successes": None,
    "log_probs": "recorded",
    "trust": False,
    **_REWARD,
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with the message in one line, without the usage."""
        self.exit(2, f"exgrpo-inspect: error: {printable(' '.join(message.split()))}\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Exits with status 2 and one line on an error, or if an import accepts no row."""
    if arguments is None:
        signal.signal(
            signal.SIGPIPE, signal.SIG_DFL
        )  # called as a command: `| head` is not an error
    if (sys.argv[1:] if arguments is None else [*arguments]) == [
        "--version"
    ]:  # it takes a text only in a quarantine
        print(f"exgrpo {__version__}")
        return
    parser = _make_parser()
    options = parser.parse_args(arguments)
    accepted, interrupted = None, False
    try:
        accepted = _run(options)
    except ModuleNotFoundError as error:
        parser.error(
            f"{error.name} is not installed: pip install '.[tools]' in exgrpo's folder, and "
            "torch for --model"
        )
    except (ValueError, OSError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        # the line comes when what was under way, such as a bar, has ended with the exception
        interrupted = True
    if interrupted:
        parser.exit(130, f"exgrpo-inspect: interrupted: {_left(options.output)}\n")
    if accepted == 0:
        parser.error(f"--import={options.import_file}: no row was accepted, no pool was made")


def _run(options: argparse.Namespace) -> int | None:
    """Run the command; the number of rows that an import has accepted."""
    _check(options)
    if options.import_file is not None:
        from exgrpo_tools.inspect.importing import import_pool

        return import_pool(options)
    if options.curves:
        from exgrpo_tools.inspect import curves

        curves.show(options.checkpoint, options.beside)
        return None
    from exgrpo_tools.inspect.show import show

    show(options)
    return None


def _left(output: Path | None) -> str:
    """What an interrupted command leaves: it writes files and folders as a whole."""
    if output is None:
        return "no file was left half written"
    return (
        f"{output} is whole" if output.exists() else f"{output} was not made, nothing of it is left"
    )


def _make_parser() -> _Parser:
    parser = _Parser(
        prog="exgrpo-inspect",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "checkpoint",
        nargs="?",
        type=Path,
        metavar="CHECKPOINT",
        help="checkpoint or pool to inspect",
    )
    add(
        "--train_files",
        nargs="+",
        metavar="FILE",
        help="training data files with the questions' texts and answers",
    )
    add(
        "--tokenizer",
        metavar="PATH",
        help="tokenizer (default: the checkpoint's, in actor/huggingface)",
    )
    text = (
        "with --html: also show log-probs under this model; with --log_probs model: compute "
        "log-probs with it"
    )
    add("--model", metavar="PATH", help=text)
    add = parser.add_argument_group("inspecting").add_argument
    text = "draw RUN/curves.png: accuracy, pool, replay; from any logger's files of the run"
    add("--curves", action="store_true", default=None, help=text)
    text = "with --curves: two runs in one picture, at equal steps and at equal generated tokens"
    add("--beside", type=Path, metavar="OTHER", help=text)
    add("--question", metavar="ID", help="print the trajectories of this question, decoded")
    add(
        "--html",
        type=Path,
        metavar="FILE",
        help="write a page: curves, histograms, trajectories token by token",
    )
    add("--sample", type=int, metavar="N", help="at most this many trajectories on the page (200)")
    add("--seed", type=int, metavar="N", help="seed for drawing the page's questions (0)")
    add(
        "--export",
        type=Path,
        metavar="FILE",
        help="write all trajectories to a .parquet or .jsonl file",
    )
    _add_rewards(parser)
    add = parser.add_argument_group("importing").add_argument
    add(
        "--import",
        type=Path,
        metavar="FILE",
        dest="import_file",
        help="a .parquet or .jsonl file of trajectories",
    )
    add("--output", type=Path, metavar="POOL", help="new folder for the pool")
    add(
        "--rollout_n",
        type=int,
        metavar="K",
        help="rollouts per question in training, 2 or more (8)",
    )
    add(
        "--successes",
        type=int,
        metavar="N",
        help="successes out of K of questions whose rows do not say (half of K)",
    )
    text = (
        "recorded: those of the rows that have them; none; model: computed with --model (recorded)"
    )
    add("--log_probs", choices=LOG_PROBS, help=text)
    text = "do not judge the rows (by default --reward does, as the run would: strict)"
    add("--trust", action="store_true", default=None, help=text)
    return parser


def _add_rewards(parser: _Parser) -> None:
    """Options on who judged what; the flags are None if they are absent, as the other
    options are.
    """
    group = parser.add_argument_group("rewards, also with --import and --quarantine")
    reward_option.add_to(group)
    add = group.add_argument
    text = (
        "judge the pool's trajectories again, strict, full and by --reward: where they disagree "
        "(requires --train_files)"
    )
    add("--rewards", action="store_true", default=None, help=text)
    text = "the run's trainer.rollout_data_dir: judged with --rewards, shown with --html"
    add("--rollouts", type=Path, metavar="FOLDER", help=text)
    text = "why this trajectory was replayed: a step's rows, or one row (from 1)"
    add("--explain", type=int, nargs="+", metavar=("STEP", "ROW"), help=text)
    add = parser.add_argument_group("quarantine").add_argument
    text = (
        "take out of the pool what a grader let in, by the next four, or what --reward does not "
        "accept; the latest checkpoint, or the one named"
    )
    add("--quarantine", action="store_true", default=None, help=text)
    text = "who judged: strict, full, a reward function's PATH:NAME, stated or unknown"
    add("--grader", metavar="NAME", help=text)
    add("--version", metavar="TEXT", help="a part of the recorded version; alone: print exgrpo's")
    add("--rule", metavar="NAME", help="a rule of docs/grading.md")
    add(
        "--steps",
        type=_steps,
        metavar="FIRST-LAST",
        help="only trajectories generated in these steps",
    )
    add("--dry_run", action="store_true", default=None, help="only the report")
    add(
        "--undo",
        action="store_true",
        default=None,
        help="with --quarantine: put back what was last taken out",
    )


def _steps(text: str) -> tuple[int, int]:
    """FIRST-LAST, or one step."""
    first, _, last = text.partition("-")
    if not first.isdigit() or not (last or first).isdigit() or int(first) > int(last or first):
        raise argparse.ArgumentTypeError(f"{text}: must be FIRST-LAST, two steps in order")
    return int(first), int(last or first)


def _check(options: argparse.Namespace) -> None:
    """ValueError or FileNotFoundError at the first wrong option; then fills in defaults."""
    importing = options.import_file is not None
    inspecting = options.checkpoint is not None
    if importing == inspecting:
        raise ValueError("give a CHECKPOINT or --import FILE, one of them")
    own, others = (_IMPORTING, _SHOWING) if importing else (_SHOWING, _IMPORTING)
    for name in (name for name in others if name not in own):
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
    (_check_import if importing else _check_show)(options)


def _check_show(options: argparse.Namespace) -> None:
    other = options.beside
    _need(other is None or bool(options.curves), "--beside", other, "requires --curves")
    if options.curves:
        _check_rewards(options)
        return
    _need(newest(options.checkpoint).is_dir(), "CHECKPOINT", options.checkpoint, "no such folder")
    _need(options.sample >= 1, "--sample", options.sample, "must be 1 or more")
    _need(options.seed >= 0, "--seed", options.seed, "must be 0 or more")
    for name in ("sample", "seed"):
        value = getattr(options, name)
        _need(
            options.html is not None or value == _SHOWING[name],
            f"--{name}",
            value,
            "requires --html",
        )
    if options.model is not None:
        _need(
            options.html is not None,
            "--model",
            options.model,
            "requires --html, which shows its log-probs",
        )
        _need(
            options.train_files is not None,
            "--model",
            options.model,
            "requires --train_files for the prompts",
        )
    if options.export is not None:
        _need(
            options.export.suffix in SUFFIXES,
            "--export",
            options.export,
            f"must end in {' or '.join(SUFFIXES)}",
        )
    _check_rewards(options)
    for name in ("html", "export"):
        path = getattr(options, name)
        _need(path is None or not path.is_dir(), f"--{name}", path, "is a folder: must be a file")
        _need(
            path is None or path.absolute().parent.is_dir(),
            f"--{name}",
            path,
            "its folder does not exist",
        )


def _check_rewards(options: argparse.Namespace) -> None:
    commands = [
        f"--{name}"
        for name in ("curves", "question", "html", "rewards", "explain", "quarantine")
        if getattr(options, name)
    ]
    _need(len(commands) < 2, " ".join(commands), "", "only one of these")
    _need(
        not options.rewards or options.train_files is not None,
        "--train_files",
        "",
        "is required with --rewards",
    )
    exporting = options.explain is None and not options.quarantine
    _need(
        options.export is None or exporting,
        "--export",
        options.export,
        "not with --explain or --quarantine",
    )
    if options.rewards and options.export is not None:
        _need(
            options.export.suffix == ".jsonl",
            "--export",
            options.export,
            "must end in .jsonl with --rewards",
        )
    folder = options.rollouts
    used = bool(options.rewards or (options.html and options.train_files))
    rule = "requires --rewards, or --html with --train_files"
    _need(folder is None or used, "--rollouts", folder, rule)
    _need(folder is None or folder.is_dir(), "--rollouts", folder, "no such folder")
    _need(
        options.explain is None or len(options.explain) < 3,
        "--explain",
        options.explain,
        "must be STEP or STEP ROW",
    )
    for name, default in _SUSPECT.items():
        value = getattr(options, name)
        _need(
            value == default or bool(options.quarantine),
            f"--{name}",
            value,
            "requires --quarantine",
        )
    asked = [options.grader, options.version, options.rule, options.steps]
    if options.quarantine and options.undo:
        rule = "takes no --grader, --version, --rule, --steps, --reward or --dry_run"
        _need(not any([*asked, options.reward, options.dry_run]), "--undo", "", rule)
    elif options.quarantine:
        asks = any([*asked[:3], options.reward])
        _need(asks, "--quarantine", "", "requires --grader, --version, --rule or --reward")
    judges = bool(options.rewards or options.quarantine)
    _need(options.reward is None or judges, "--reward", options.reward, _JUDGES)
    needed = options.reward is None or options.train_files is not None
    _need(needed, "--train_files", "", "is required with --reward")


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
    trusting = not options.trust or options.reward is None
    _need(trusting, "--trust", "", "takes no --reward: nothing is judged")
    consistent = (options.log_probs == "model") == (options.model is not None)
    _need(
        consistent,
        "--log_probs",
        options.log_probs,
        "model requires --model, and --model requires it",
    )


def _need(holds: bool, name: str, value: object, rule: str) -> None:
    """ValueError ``name=value: rule`` unless it holds."""
    if not holds:
        raise ValueError(f"{name}={'' if value is None else value}: {rule}")


if __name__ == "__main__":
    main()
