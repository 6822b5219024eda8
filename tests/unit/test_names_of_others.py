"""Names of benchmarks, models and graders are somebody else's: none reaches a terminal, Markdown or
a path as it is.
"""

import json

import pytest
from graded_rows import two_benchmarks

from exgrpo.console import refused
from exgrpo_eval.benchmark_files import Benchmark
from exgrpo_eval.export import __main__ as export
from exgrpo_eval.reports import command as report
from exgrpo_eval.reports import compare_text
from exgrpo_eval.reports.report_text import markdown, plain
from exgrpo_tools.texts import LONGEST, file_part, picture_label

ESCAPE = "\x1b]0;owned\x07\x1b[2J"
HOSTILE = f"../../a`b`|c ![x](http://e) <img>{ESCAPE}\u202e\x9b\nd"
LONG = "数" * 300


@pytest.fixture
def rows():
    """A graded run of two benchmarks, one of a hostile and one of a long name."""
    names = {"aime": HOSTILE, "arc_c": LONG}
    return [row | {"benchmark": names.get(row["benchmark"], LONG)} for row in two_benchmarks()]


def is_harmless(text):
    return all(c == "\n" or c.isprintable() for c in text)


def test_a_report_shows_them_as_text(rows, tmp_path, capsys):
    run = {"model_path": HOSTILE, "prompt": f"Prompt: {HOSTILE}", "seconds": 1.0}
    summary = report.write(rows, run, tmp_path / "out.jsonl")
    assert is_harmless(capsys.readouterr().out)
    text = (tmp_path / "out.report.md").read_text()
    assert text == markdown(summary) and is_harmless(text)
    readable, _, record = text.partition("```json")
    assert "](http" not in readable and "<img" not in readable and "`b`" not in readable
    assert json.loads(record.rpartition("```")[0])["model_path"] == HOSTILE
    tables = [line for line in readable.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in tables[:3]} == {tables[0].count("|")}


def test_a_refusal_and_a_legend_do_too(capsys):
    with pytest.raises(SystemExit):
        refused("exgrpo-eval compare", ValueError(f"no {HOSTILE}"))
    assert is_harmless(capsys.readouterr().err)
    assert picture_label("_$x$" + LONG) == r"\$x\$" + "数" * 35 + "…"
    assert compare_text.plain is plain and plain("a | b\n`c`") == "a \\| b &#96;c&#96;"


@pytest.mark.parametrize("form", ["inspect", "lighteval", "every_eval_ever"])
def test_an_export_stays_in_its_folder_and_has_a_file_each(rows, tmp_path, form, capsys):
    if form == "inspect":
        pytest.importorskip("inspect_ai.log")
    output = tmp_path / "out.jsonl"
    output.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = "/".join(["..", "..", "..", LONG, HOSTILE])
    output.with_suffix(".run.json").write_text(json.dumps({"model_path": model}))
    folder = tmp_path / "a" / "b"
    export.main([str(output), "--format", form, "--output", str(folder)])
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent != tmp_path]
    assert len(written) == (1 if form == "every_eval_ever" else 2)
    assert all(folder in path.parents for path in written)
    assert is_harmless(capsys.readouterr().out)


def test_no_two_names_are_one_and_none_is_a_path():
    names = ["aime24", "a/b", "a_b", "a b", "..", ".", "", ".hidden", LONG, LONG + "x", "a\x00b"]
    parts = [file_part(name) for name in names]
    assert len(set(parts)) == len(names) and parts[0] == "aime24" and parts[2] == "a_b"
    assert all("/" not in part and not part.startswith(".") for part in parts)
    assert max(len(part.encode()) for part in parts) <= LONGEST
    own = Benchmark("../x", {"file": "x"}, "question", answer="answer")
    assert own.file_name == f"valid.{file_part('../x')}.parquet"
