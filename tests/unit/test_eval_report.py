"""The report: its numbers, its three files, and what a hostile response can do to the page."""

import json
import re
from html.parser import HTMLParser

import pytest
from browser import ask, needs_browser
from graded_rows import HOSTILE, row, two_benchmarks

from exgrpo_eval.reports import command as report
from exgrpo_eval.reports import report_page
from exgrpo_eval.reports.report_text import accuracies, markdown, markdown_table, number
from exgrpo_tools import charts

RUN = {
    "model_path": "models/<b>tiny</b>",
    "seed": 7,
    "files": {"x.parquet": "ab" * 32},
    "template": "own",
    "template_sha256": "cd" * 32,
    "model_sha256": "ef" * 32,
    "versions": {"vllm": "0.28.0"},
    "machine": {"cpu": "a cpu", "cores": 2, "gpus": []},
    "started": "2026-01-01T00:00:00+00:00",
    "generated_tokens": 1234,
    "seconds": 5.0,
}


@pytest.fixture
def rows():
    return two_benchmarks()


class Elements(HTMLParser):
    """Tags and attributes of a page, and the text of its scripts."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.scripts = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_data(self, data):
        if self.tags and self.tags[-1] == "script":
            self.scripts.append(data)


def test_the_numbers_of_a_small_run(rows):
    found = report.summarise(rows, RUN)
    aime = found["benchmarks"]["aime"]
    assert (aime["questions"], aime["samples"], aime["responses"]) == (4, 4, 16)
    assert aime["estimates"]["mean"]["value"] == 0.5 and aime["estimates"]["best"]["value"] == 1
    assert aime["estimates"]["pass@2"]["value"] == pytest.approx(1 - 1 / 6)
    assert aime["cut_off"] == 1 / 16 and aime["tokens"]["max"] == 400
    assert found["overall"]["estimates"]["mean"]["value"] == 0.5
    assert aime["bayes"] is None  # of four samples
    assert aime["pass_at_k"]["k"] == [1, 2, 3, 4]
    assert aime["pass_at_k"]["value"][1] == pytest.approx(aime["estimates"]["pass@2"]["value"])
    assert found["benchmarks"][HOSTILE[:40]]["pass_at_k"] is None  # of one sample
    assert json.loads(json.dumps(found)) == found


def test_the_benchmarks_of_each_file_have_a_mean_of_their_own(rows):
    """As the paper reports them: in distribution, and out of it."""
    more = [row("arc_c", q, 0, q < 1) for q in range(4)] + [
        row("gpqa", q, 0, q < 2) for q in range(4)
    ]
    for each in rows:
        each["input_file"] = "data/valid.id.parquet"
    for each in more:
        each["input_file"] = "data/valid.ood.parquet"
    found = report.summarise([*rows, *more], RUN)
    alone = {
        file: report.summarise(part, RUN)["overall"] for file, part in (("id", rows), ("ood", more))
    }
    assert found["parts"] == {f"data/valid.{file}.parquet": part for file, part in alone.items()}
    assert found["parts"]["data/valid.ood.parquet"]["estimates"]["mean"]["value"] == 0.375
    lines = markdown_table(found).splitlines()[-3:]
    assert [line.split("|")[1].strip("* ") for line in lines] == [
        "mean over valid.id.parquet",
        "mean over valid.ood.parquet",
        "mean over benchmarks",
    ]
    page = report_page.render(found, [*rows, *more])
    assert (
        page.count('class="overall"') == 3 * 3
        and page.count("<td>mean over valid.ood.parquet</td>") == 3
    )
    one_file = [dict(each, input_file="data/valid.id.parquet") for each in [*rows, *more]]
    each_its_own = [dict(each, input_file=each["benchmark"]) for each in [*rows, *more]]
    assert (
        report.summarise(one_file, RUN)["parts"]
        == report.summarise(each_its_own, RUN)["parts"]
        == {}
    )


@pytest.mark.parametrize(
    ("machine", "text"),
    [
        ({"cpu": "a cpu", "cores": 2, "gpus": []}, "a cpu, 2 cores"),
        ({"cpu": "a cpu", "cores": 2, "gpus": ["H100"] * 8}, "8 x H100"),
        ({"cpu": "a cpu"}, "a cpu"),
        ({}, None),
        (None, None),
    ],
)
def test_hardware_has_a_column_where_it_is_known(rows, machine, text):
    found = report.summarise(rows, {**RUN, "machine": machine})
    header, _, line, *_ = markdown_table(found).splitlines()
    assert found["hardware"] == text == (line.split(" | ")[-1].removesuffix(" |") if text else None)
    assert header.endswith("| hardware |" if text else "| cut off |")
    page = report_page.render(found, rows)
    assert ("<th>hardware</th>" in page) == bool(text) and '<td class="n">.062</td>' in page


def test_three_files_appear_and_are_made_again(rows, tmp_path, capsys):
    output = tmp_path / "out.jsonl"
    report.write(rows, RUN, output)
    names = [f"out.report.{suffix}" for suffix in ("html", "json", "md")]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    before = {name: (tmp_path / name).read_bytes() for name in names}
    output.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "out.run.json").write_text(json.dumps(RUN))
    report.main([str(output)])
    assert {name: (tmp_path / name).read_bytes() for name in names} == before
    assert "| aime | 4 | 4 | .500" in capsys.readouterr().out


def test_a_record_that_is_none_is_named(rows, tmp_path, capsys):
    output, record = tmp_path / "out.jsonl", tmp_path / "out.run.json"
    output.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for text, complaint in (("[]", "must be an object"), ('{"se', "must be JSON")):
        record.write_text(text)
        with pytest.raises(SystemExit):
            report.main([str(output)])
        error = capsys.readouterr().err
        assert f"{record}: {complaint}" in error and error.count("\n") == 1


def test_a_response_cannot_leave_the_page_it_is_in(rows, tmp_path):
    rows[0] |= {
        "math_verify_correct": True,
        "oat_correct": False,
        "extracted": HOSTILE,
        "answer": HOSTILE,
    }
    rows[1] |= {"math_verify_correct": False, "oat_correct": False, "answer": HOSTILE}
    rows = [
        {**r, "answer": HOSTILE} if r["question"] == 0 and r["benchmark"] == "aime" else r
        for r in rows
    ]
    report.write(rows, RUN, tmp_path / "out.jsonl")
    page = (tmp_path / "out.report.html").read_text()
    elements = Elements(page)
    assert (
        elements.tags.count("script") == 3
        and "img" not in elements.tags
        and "b" not in elements.tags
    )
    names = {name for name, _ in elements.attributes}
    assert not {"src", "href", "onerror", "onclick"} & names
    assert charts.script() in page
    ours = page.replace(charts.script(), "").replace("https://example.org/x", "")
    assert not re.search(r"url\(|@import|https?://", ours)
    data = json.loads(elements.scripts[0])
    assert data["rows"][0]["response"] == HOSTILE and "<" not in elements.scripts[0]
    text = (tmp_path / "out.report.md").read_text()
    assert "<script>" not in re.sub(r"`[^`]*`|```json.*?```", "", text, flags=re.DOTALL)


def test_the_page_holds_few_of_many_and_says_so(tmp_path):
    many = [row("math", q, 0, q % 10 == 0, response="x" * 30_000) for q in range(1_000)]
    shown = report_page.chosen(many)
    assert len(shown) == report_page.RESPONSES_SHOWN and [r["question"] for r in shown] == sorted(
        r["question"] for r in shown
    )
    assert sum(r["correct"] for r in shown) == report_page.RESPONSES_SHOWN // 2
    assert (
        len(report_page.chosen([r for r in many if not r["correct"]]))
        == report_page.RESPONSES_SHOWN
    )
    mostly_right = [r | {"correct": not r["correct"]} for r in many[:200]]
    assert len(report_page.chosen(mostly_right)) == report_page.RESPONSES_SHOWN
    assert (
        sum(r["correct"] for r in report_page.chosen(mostly_right))
        == report_page.RESPONSES_SHOWN - 20
    )
    assert len(report_page.chosen(many[:7])) == 7
    report.write(many, RUN, tmp_path / "out.jsonl")
    page = (tmp_path / "out.report.html").read_text()
    assert (
        "100 of 1,000 responses are in this page" in page
        and "10,000 characters are left out here" in page
    )
    assert len(page) < report_page.RESPONSES_SHOWN * (report_page.MAX_TEXT + 1_000) + 50_000 + len(
        charts.script()
    )


@needs_browser
def test_the_plots_show_the_estimates_and_their_tips_say_them(rows, tmp_path):
    report.write(rows, RUN, tmp_path / "out.jsonl")
    script = """
    [found.intervals] = await seen("#intervals", [0.5, 0.09]);
    [found.curves] = await seen("#pass_at_k", [0.99, 0.5]);
    found.cards = document.querySelectorAll("#list details").length;
    """
    found = ask((tmp_path / "out.report.html").read_text(), tmp_path / "page.html", script)
    estimates = json.loads((tmp_path / "out.report.json").read_text())["benchmarks"]["aime"][
        "estimates"
    ]
    own = estimates["mean"]
    name, points = found["intervals"]["sets"][0]
    assert name == "Mean@n" and [point["x"] for point in points[:4]] == [
        own["low"],
        own["value"],
        own["high"],
        None,
    ]
    assert [len(points) for _, points in found["intervals"]["sets"]] == [
        4 * 3
    ] * 3  # two benchmarks and their mean
    assert found["intervals"]["tip"] == [
        "aime",
        f"Mean@n: 0.500 ({own['low']:.3f} to {own['high']:.3f})",
    ]
    assert f"aime: {found['intervals']['tip'][1]}" in found["intervals"]["label"]
    [[_, curve], [_, low], [_, high]] = found["curves"]["sets"]
    table = [[estimates[f"pass@{k}"][end] for k in (1, 2, 4)] for end in ("value", "low", "high")]
    assert [[each[k - 1] for k in (1, 2, 4)] for each in (curve, low, high)] == table and len(
        curve
    ) == 4
    assert found["curves"]["sets"][0][0] == "aime" and found["curves"]["tip"] == [
        "pass@4",
        "aime: 1.000 (0.510 to 1.000)",
    ]
    assert (
        found["intervals"]["colours"] > 5
        and found["curves"]["colours"] > 5
        and found["cards"] == 20
    )


@needs_browser
def test_a_run_of_one_sample_each_has_no_curve(rows, tmp_path):
    report.write([row for row in rows if row["sample"] == 0], RUN, tmp_path / "out.jsonl")
    script = "found.plots = [...document.querySelectorAll('.plot')].map((plot) => plot.id);"
    found = ask((tmp_path / "out.report.html").read_text(), tmp_path / "page.html", script)
    assert found["plots"] == ["intervals"]


def test_each_grader_is_named_with_its_accuracy_and_last_stands_the_one_that_counts(
    rows, tmp_path, capsys
):
    by_math_verify = [{**r, "rule": "math_verify" if r["correct"] else None} for r in rows]
    alone = report.summarise(by_math_verify, RUN)
    assert alone["decided_by"] == "Math-Verify" and alone["graders"] == [
        "Math-Verify",
        "full grader",
    ]
    assert accuracies(alone) == ["mean over benchmarks: full grader 50.0 %, Math-Verify 50.0 %"]
    judged = [
        {**r, "math_verify_correct": r["correct"], "oat_correct": r["benchmark"] == "aime"}
        for r in by_math_verify
    ]
    oat = [{**r, "correct": r["oat_correct"]} for r in judged]
    found = report.write(oat, {**RUN, "prompt": "Prompt: |x|"}, tmp_path / "out.jsonl")
    line = "mean over benchmarks: Math-Verify 50.0 %, full grader 50.0 %, Oat 50.0 %"
    assert found["benchmarks"]["aime"]["graders"] == {
        "Math-Verify": 0.5,
        "full grader": 0.5,
        "Oat": 1.0,
    }
    printed = capsys.readouterr().out.splitlines()
    assert (
        printed[2:4][0] == "Prompt: |x|"
        and printed[3].startswith("Sampling: ")
        and printed[-1] == line
    )
    text, page = ((tmp_path / f"out.report.{end}").read_text() for end in ("md", "html"))
    assert text.splitlines()[2] == "Prompt: \\|x\\|" and f"- {line}" in text
    assert "| Mean@n (Oat) | Math-Verify | full grader | Best@n |" in text
    assert "<p>Prompt: |x|</p>" in page.split("<table>")[0] and f"<p>{line}</p>" in page
    assert "<th>Mean@n (Oat)</th><th>Math-Verify</th><th>full grader</th>" in page
    either = report.summarise(
        [{**r, "correct": r["correct"] or r["oat_correct"]} for r in judged], RUN
    )
    assert accuracies(either)[0].endswith(
        "Math-Verify 50.0 %, full grader 50.0 %, Oat 50.0 %, Oat or Math-Verify 75.0 %"
    )


def test_how_the_responses_were_sampled_stands_above_the_table(rows, tmp_path, capsys):
    settings = {"temperature": 0.6, "top_p": 1.0, "max_tokens": 8192, "seed": 7, "template": "own"}
    report.write(rows, {**RUN, "settings": settings}, tmp_path / "out.jsonl")
    sampled = "temperature 0.6, top_p 1.0, max_tokens 8192, seed 7, template own."
    line = f"Sampling: model {RUN['model_path']}, n 4 (aime), 1 ({HOSTILE[:40]}), {sampled}"
    assert capsys.readouterr().out.splitlines()[2] == line
    text, page = ((tmp_path / f"out.report.{end}").read_text() for end in ("md", "html"))
    assert text.splitlines()[2].endswith(sampled) and sampled in page.split("<table>")[0]
    facts = dict(
        report_page.facts(report.summarise(rows, RUN))
    )  # of an older run file, without settings
    assert [facts[name] for name in ("temperature", "seed", "template", "template sha256")] == [
        "-",
        "7",
        "own",
        "cd" * 32,
    ]


def test_one_benchmark_has_no_second_mean_and_its_accuracy_stands_last(rows, tmp_path, capsys):
    report.write(rows[:16], RUN, tmp_path / "out.jsonl")
    printed = capsys.readouterr().out.splitlines()
    assert (
        printed[-1] == "aime: Math-Verify 50.0 %"
        and sum(line.startswith("| ") for line in printed) == 3
    )
    text, page = ((tmp_path / f"out.report.{end}").read_text() for end in ("md", "html"))
    assert (
        "mean over" not in text + page and "**all**" not in text and 'class="overall"' not in page
    )


def test_bayes_stands_where_its_prior_does_not_decide(rows):
    many = [row("x", q, s, s % 2 == 0) for q in range(4) for s in range(32)]
    found = report.summarise(rows + many, {**RUN, "machine": None})
    header, _, aime, *_, of_many, mean = markdown_table(found).splitlines()
    assert header.endswith("| cut off | Bayes@N |") and found["overall"]["bayes"] is None
    assert [line.split(" | ")[-1] for line in (aime, mean)] == [
        "- |",
        "- |",
    ] and "| .500 (.417 to .583) |" in of_many
    page = report_page.render(found, rows)
    assert page.count("<th>Bayes@N</th>") == 1 and "posterior" in page
    assert "Bayes" not in report_page.render(report.summarise(rows, RUN), rows)


def test_disagreements_are_listed(rows):
    rows = [{**r, "math_verify_correct": r["correct"], "oat_correct": r["correct"]} for r in rows]
    rows[5]["oat_correct"] = not rows[5]["oat_correct"]
    rows[6]["oat_correct"] = None  # of an older file
    found = report.summarise(rows, RUN)
    assert found["disagreements"] == 1
    assert [found["disagreements_listed"][0][key] for key in ("question", "sample")] == [1, 1]
    assert "1 responses, the first 1" in markdown(found)


@pytest.mark.parametrize(
    ("value", "text"), [(0.4123, ".412"), (1.0, "1.000"), (0.0, ".000"), (None, "-")]
)
def test_numbers(value, text):
    assert number(value) == text
