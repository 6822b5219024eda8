"""A benchmark's definition: the source of its questions, the columns to read, samples per question,
and the grader.

Each is a YAML file; the benchmarks that are known by name are in eval/benchmarks/.
docs/evaluation.md explains the fields.
"""

from __future__ import annotations

import functools
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from exgrpo_tools.texts import file_part

KNOWN = Path(__file__).with_name("benchmarks")
GRADERS = ("math", "letter")
PLACEHOLDER = "{question}"
SOURCE_FIELDS = ({"hub", "split"}, {"hub", "split", "subset"}, {"file"})


@dataclass(frozen=True)
class Benchmark:
    """The checked fields of a benchmark's file.

    `choices` is the column with a question's choices; or a list of columns, of which the first has
    the right choice. `part` names the file that its questions are written to, valid.PART.parquet.
    `hub_task` is the task's id in the data set's eval.yaml on the hub, for exported results.
    `cluster` is a column; questions with an equal value there count as one cluster in intervals and
    tests.
    """

    name: str
    source: dict[str, str]
    question: str
    answer: str | None = None
    choices: str | list[str] | None = None
    template: str = PLACEHOLDER
    grader: str = "math"
    samples: int = 1
    part: str = ""
    hub_task: str = "default"
    cluster: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        choices = [self.choices] if isinstance(self.choices, str) else self.choices or []
        optional = [column for column in (self.answer, self.cluster) if column]
        return (self.question, *choices, *optional)

    @property
    def file_name(self) -> str:
        """The file that its questions are written to."""
        return f"valid.{file_part(self.part or self.name)}.parquet"


def read(path: Path) -> Benchmark:
    """The benchmark of a YAML file; the path of a local source is relative to that file.

    Raises:
        ValueError: the message names the file, the field and what is allowed.
        OSError: there is no such file.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: must be YAML ({error})") from error
    if fault := _fault(content):
        raise ValueError(f"{path}: {fault}")
    benchmark = Benchmark(**content)
    if "file" in benchmark.source:
        benchmark.source["file"] = str(path.parent / Path(benchmark.source["file"]).expanduser())
    return benchmark


def _fault(content: Any) -> str | None:
    """The first fault of a file's content; None if there is none."""
    if not isinstance(content, dict):
        return "must hold fields, such as name: and source:"
    names = [field.name for field in fields(Benchmark)]
    if unknown := [name for name in content if name not in names]:
        return f"{unknown[0]}: no such field; there are {', '.join(names)}"
    if missing := [
        field.name
        for field in fields(Benchmark)
        if field.default is MISSING and field.name not in content
    ]:
        return f"{missing[0]}: must be given"
    source, choices = content["source"], content.get("choices")
    if (
        not isinstance(source, dict)
        or set(source) not in SOURCE_FIELDS
        or not _texts(list(source.values()))
    ):
        return (
            "source: must be {hub: DATA_SET, split: SPLIT}, with a subset where it has one, or "
            "{file: PATH}"
        )
    if choices is not None and not _texts(choices if isinstance(choices, list) else [choices]):
        return "choices: must be a column, or a list of columns"
    if isinstance(choices, list) == ("answer" in content):
        return (
            "answer: must be a column, and left out where choices is a list, whose first is right"
        )
    for name in ("name", "question", "answer", "part", "hub_task", "cluster"):
        if name in content and not _texts([content[name]]):
            return f"{name}={content[name]!r}: must be a text"
    return _setting_fault(content)


def _setting_fault(content: dict[str, Any]) -> str | None:
    samples, grader, template = (
        content.get("samples", 1),
        content.get("grader", "math"),
        content.get("template"),
    )
    if type(samples) is not int or samples < 1:
        return f"samples={samples!r}: must be 1 or more"
    if grader not in GRADERS:
        return f"grader={grader!r}: must be {' or '.join(GRADERS)}"
    if content.get("choices") and grader != "letter":
        return "grader: must be letter where there are choices"
    if template is not None and (not isinstance(template, str) or PLACEHOLDER not in template):
        return f"template: must be a text that holds {PLACEHOLDER}"
    return None


def _texts(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(value, str) and value for value in values)


@functools.cache
def known() -> dict[str, Benchmark]:
    """The benchmarks that are known by name."""
    return {path.stem: read(path) for path in sorted(KNOWN.glob("*.yaml"))}
