r"""Answers that are wrong on purpose, 1,000 for each gold, against the full grader: what gets through is printed.

    python tests/unit/grading_adversary.py FOLDER [--golds 60] [--answers 1000] [--processes 2] [--minutes 8] [--skip 40]

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
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from time import monotonic

from hostile_answers import ANYTHING, AROUND, NOTHING, SCALED, UNBOXED

from exgrpo.gold_answers import latex_forms
from exgrpo.inspect.questions import read_questions
from exgrpo.math_verify_reward import FULL_GRADER, Verifier

SEED = 20251002
WALL_S, CPU_S = 60.0, 2.0
OTHERS = 60  # golds of other questions among the answers
DIGITS = "123456789"
ALPHABET = DIGITS + "-*/^()xynk."  # no 0, no + and no comma: before a number they change nothing


def wrong_answers(gold: str, others: list[str], question: str, count: int, draw: random.Random) -> Iterator[str]:
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
    text = re.sub(r"\d+(?=[-+]?\\infty)|(?<=\\infty)\d+|\+(?=\\infty)|(?<!\d)[-.]+(?=0(?![\d.]))", "", text)
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
    for gold, question in (pair for row in itertools.zip_longest(*files) for pair in row if pair is not None):
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
    for question in read_questions([str(path)]).values():
        yield question.gold, question.text


class Attack:
    """The answers to a share of the golds, judged one by one; counts so far are printed after each gold."""

    def __init__(self, golds: list[tuple[str, str]], answers: int, until: float) -> None:
        self._golds, self._answers, self._until = golds, answers, until
        self._lock, self._golds_done, self._tried, self._through = Lock(), 0, 0, Counter[str]()

    def run(self, first: int, step: int) -> None:
        """Every `step`-th gold in a judging process of its own, none begun past the end of the time."""
        judge = Verifier(*FULL_GRADER)
        for at in range(first, len(self._golds), step):
            if monotonic() > self._until:
                break
            self._one(judge, at)
        judge.close()

    def _one(self, judge: Verifier, at: int) -> None:
        gold, question = self._golds[at]
        others = [each for each, _ in self._golds[at + 1 :] + self._golds[:at] if each != gold]
        tried, through = 0, Counter[str]()
        for response in wrong_answers(gold, others[:OTHERS], question, self._answers, random.Random(f"{SEED} {gold}")):
            tried += 1
            reply = judge.judge(latex_forms(gold), response, WALL_S, CPU_S)
            rule = reply and reply["rule"]
            if rule is not None:
                through[rule] += 1
                print(f"{rule} | {gold} | {response[:160]}", flush=True)
        with self._lock:
            self._golds_done, self._tried = self._golds_done + 1, self._tried + tried
            self._through += through
            print(self.summary(), flush=True)

    def summary(self) -> str:
        counted = f"{self._through.total()} counted as right: {dict(self._through)}"
        return f"# {self._tried} answers to {self._golds_done} golds; {counted}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--golds", type=int, default=60)
    parser.add_argument("--answers", type=int, default=1_000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no further gold is begun after these")
    parser.add_argument("--skip", type=int, default=0, help="golds of the sample that were tried before")
    asked = parser.parse_args()
    attack = Attack(sample(asked.folder, asked.golds)[asked.skip :], asked.answers, monotonic() + 60 * asked.minutes)
    with ThreadPoolExecutor(asked.processes) as pool:
        for done in [pool.submit(attack.run, first, asked.processes) for first in range(asked.processes)]:
            done.result()
    print(attack.summary())


if __name__ == "__main__":
    main()
