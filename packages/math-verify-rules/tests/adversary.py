r"""Answers that are wrong on purpose, 1,000 for each gold, against the rules and guards: what gets through is printed.

    python packages/math-verify-rules/tests/adversary.py FOLDER [--golds 60] [--answers 1000] [--processes 2] [--minutes 8] [--skip 40]

FOLDER holds data sets, in folders of its own or not: jsonl files with gold and question, parquet files of verl's schema.
The golds are taken from the files in turn, so that each data set has the same share. Half of the answers are a fixed
kit (empty boxes, options, lists with the gold among them, tautologies, letters that could be anything, undefined values,
other golds, the question); the rest are the gold with one or two characters changed. A change may hit on an equal answer
(2+3 for 3+2): those are printed with the rest, to be looked at, unless the values say that they are equal.
"""

# ruff: noqa: E501
from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import resource
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from time import monotonic

from hostile_answers import ANYTHING, AROUND, NOTHING, SCALED, UNBOXED

from math_verify_rules import accepted_by

SEED = 20251002
MEMORY = 4 << 30  # bytes of a process
OTHERS = 60  # golds of other questions among the answers
DIGITS = "123456789"
ALPHABET = DIGITS + "-*/^()xynk."  # no 0, no + and no comma: before a number they change nothing


def wrong_answers(
    gold: str, others: list[str], question: str, count: int, draw: random.Random
) -> Iterator[str]:
    """Responses that are not the gold: a fixed kit, then random changes of it."""
    bare = re.sub(r"^\$+|\$+$", "", gold.strip())
    fixed = [*NOTHING, *ANYTHING, question[:1500], ", ".join([*others[:30], bare])]
    fixed += [", ".join(map(str, range(500))), " ".join([bare, *others[:30]])]
    numbers = [
        str(draw.choice([n for n in range(2, 41) if str(n) not in re.findall(r"\d+", bare)]))
        for _ in range(2 * len([*AROUND, *UNBOXED]))
    ]
    around = [each for each in AROUND if bare not in ("0", "1") or each not in SCALED]
    filled = [each.format(g=bare, w=numbers.pop(), v=numbers.pop()) for each in around]
    fixed = [each for each in fixed if each.casefold() != bare.casefold()]
    kit = [rf"\boxed{{{each}}}" for each in [*fixed, *filled, *others]] + [*fixed, *filled]
    kit += [each.format(g=bare, w=numbers.pop(), v=numbers.pop()) for each in UNBOXED]
    yield from kit[:count]
    seen = {_plain(bare)}
    for _ in range(20 * count):
        if len(seen) > count - len(kit):
            return
        changed = _changed(bare, draw)
        if _plain(changed) not in seen:
            seen.add(_plain(changed))
            yield rf"\boxed{{{changed}}}"


def _plain(text: str) -> str:
    """A text without what changes nothing: 03, 3x1, 1(x), a*b, a full stop, 7 times infinity, infinity and 7, -0."""
    text = re.sub(
        r"\d+(?=[-+]?\\infty)|(?<=\\infty)\d+|\+(?=\\infty)|(?<!\d)[-.]+(?=0(?![\d.]))", "", text
    )
    text = re.sub(r"(?<![\d.])0+(?=\d)|[\s$]|(?<=[a-z)}])\*(?=[a-z(\\])|\.$", "", text)
    return re.sub(r"(?<![\d.^_])1(?=[a-zA-Z(\\])|(?<=[a-zA-Z)}])1(?![\d.])", "", text)


def _changed(text: str, draw: random.Random) -> str:
    """A character or two of a text exchanged, inserted or left out; never the whole text left out."""
    places = [n for n, letter in enumerate(text) if letter in ALPHABET + "0+,"]
    letters = list(text)
    for place in draw.sample(places, min(len(places), draw.choice((1, 1, 2)))):
        new = draw.choice(DIGITS if text[place].isdigit() else ALPHABET)
        letters[place] = draw.choice((new, new, new + text[place], text[place] + new, ""))
    return "".join(letters)


def sample(folder: Path, count: int) -> list[tuple[str, str]]:
    """Golds and their questions ("" where unknown), each once, from every file in turn; the same for the same count."""
    files = []
    for path in sorted([*folder.rglob("*.jsonl"), *folder.rglob("*.parquet")]):
        found: dict[str, str] = {}
        for gold, question in _questions(path):
            if gold.strip() and len(gold) < 300 and "boxed" not in gold:
                found.setdefault(gold, question)
        files.append(random.Random(SEED).sample(sorted(found.items()), len(found)))
    golds: dict[str, str] = {}
    for gold, question in (
        pair for row in itertools.zip_longest(*files) for pair in row if pair is not None
    ):
        golds.setdefault(gold, question)
    return list(golds.items())[:count]


def _questions(path: Path) -> Iterator[tuple[str, str]]:
    """Golds and questions of a file; of rows with a verdict only those that are right, of verl's the ground truth."""
    if path.suffix == ".jsonl":
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row.get("expected", True):
                yield row["gold"], row.get("question") or ""
        return
    from pyarrow import parquet

    for row in parquet.read_table(path).to_pylist():
        yield str(row["reward_model"]["ground_truth"]), row["prompt"][-1]["content"]


def marked(gold: str) -> str:
    """A gold in dollars, as Math-Verify reads it, if it has none."""
    return gold if "$" in gold or "\\boxed" in gold else f"${gold}$"


def attack(gold: str, question: str, others: list[str], answers: int) -> tuple[int, list[str]]:
    """How many answers were tried, and a line for each that counts as right; in a process of its own."""
    resource.setrlimit(
        resource.RLIMIT_AS, (MEMORY, MEMORY)
    )  # a power tower would take more before its time is up
    tried, through = 0, []
    for response in wrong_answers(
        gold, others[:OTHERS], question, answers, random.Random(f"{SEED} {gold}")
    ):
        tried += 1
        rule = accepted_by(marked(gold), response)
        if rule is not None:
            through.append(f"{rule} | {gold} | {response[:160]}")
    return tried, through


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--golds", type=int, default=60)
    parser.add_argument("--answers", type=int, default=1_000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="no further gold is begun after these"
    )
    parser.add_argument(
        "--skip", type=int, default=0, help="golds of the sample that were tried before"
    )
    asked = parser.parse_args()
    until = monotonic() + 60 * asked.minutes
    golds = sample(asked.folder, asked.golds)
    done = tried = counted = 0
    with ProcessPoolExecutor(asked.processes) as pool:
        for at in range(asked.skip, len(golds), asked.processes):
            if monotonic() > until:
                break
            begun = []
            for gold, question in golds[at : at + asked.processes]:
                others = [each for each, _ in golds[at + 1 :] + golds[:at] if each != gold]
                begun.append(pool.submit(attack, gold, question, others, asked.answers))
            for result in begun:
                answers, through = result.result()
                done, tried, counted = done + 1, tried + answers, counted + len(through)
                print(
                    *through,
                    f"# {tried} answers to {done} golds; {counted} counted as right",
                    sep="\n",
                    flush=True,
                )


if __name__ == "__main__":
    main()
