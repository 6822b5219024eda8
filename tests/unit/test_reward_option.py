"""--reward: one reward from the training to evaluation, import, judging again and quarantine."""

import json

import pandas
import pytest

from exgrpo.provenance import Provenance, of_settings
from exgrpo_eval.generate import command as generate_vllm
from exgrpo_eval.reports import command as report
from exgrpo_tools import reward_option
from exgrpo_tools.reward_option import Reward

MINE = """
def half(data_source, solution_str, ground_truth, extra_info, worth=0.4):
    return {"score": worth if ground_truth in solution_str else 0.0}

async def later(data_source, solution_str, ground_truth, extra_info):
    return float(extra_info["hint"] in solution_str)

def raises(data_source, solution_str, ground_truth, extra_info):
    return solution_str.split("boxed")[7]
"""
HANDED = {"data_source": "x", "ground_truth": "2", "extra_info": {"hint": "two"}}


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def test_a_reward_is_called_as_a_training_calls_it(mine):
    reward = reward_option.named(f"{mine}:half", ["worth=0.9"], None)
    assert reward.score("it is 2", HANDED) == (0.9, {"score": 0.9})
    assert Reward(f"{mine}:later").score("two", HANDED)[0] == 1
    with pytest.raises(
        ValueError, match=r"the reward function failed \(IndexError: list index out"
    ):
        Reward(f"{mine}:raises").score("2", HANDED)


def test_its_name_and_arguments_come_back_from_what_is_recorded(mine):
    reward = Reward(f"{mine}:half", {"worth": 0.9})
    author = Provenance.read(str(reward.author))
    assert (author.grader, author.arguments) == (reward.name, reward.arguments)
    settings = {"path": str(mine), "name": "half", "reward_kwargs": {"worth": 0.9}}
    assert reward.author == of_settings(settings)
    assert Provenance("strict", 'rules {"a": 1}').arguments == {}


@pytest.mark.parametrize(
    ("given", "arguments", "said"),
    [
        ("nobody", None, "--reward=nobody: must be one of strict, full, pkg://module:name or"),
        ("strict", ["worth"], "--reward_kwargs worth: must be KEY=VALUE"),
        (".", None, "--reward=.: does not say who judged it; name the reward"),
    ],
)
def test_wrong_flags_are_refused(given, arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=said.replace(".", "[.]")):
        reward_option.named(given, arguments, None)


def graded(tmp_path, capsys, *flags):
    file, output = tmp_path / "theirs.jsonl", tmp_path / "out.jsonl"
    rows = [
        {"question": q, "response": "it is 2", "answer": a} for q, a in (("a", "2"), ("b", "3"))
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    generate_vllm.main(["--grade_only", str(file), "--output_file", str(output), *flags])
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    return rows, capsys.readouterr().out


def test_an_evaluation_is_judged_by_it_and_its_report_names_it(mine, tmp_path, capsys):
    flags = ["--reward", f"{mine}:half", "--reward_kwargs", "worth=0.9"]
    rows, said = graded(tmp_path, capsys, *flags)
    assert [row["correct"] for row in rows] == [True, False]
    assert [row["reward"] for row in rows] == [0.9, 0.0]
    assert f"Judged by the reward {mine}:half; sha256" in said
    page = (tmp_path / "out.report.md").read_text()
    assert "Mean@n (mine.py:half)" in page and '{"worth": 0.9}' in page
    # the report alone, by the same without its argument: nothing exceeds a half
    report.main([str(tmp_path / "out.jsonl"), "--reward", f"{mine}:half"])
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["reward"] for row in rows] == [0.4, 0.0] and not any(r["correct"] for r in rows)
    assert '"worth"' not in (tmp_path / "out.report.md").read_text()


def test_a_reward_that_fails_ends_in_one_line(mine, tmp_path, capsys):
    with pytest.raises(SystemExit):
        graded(tmp_path, capsys, "--reward", f"{mine}:raises")
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"--reward={mine}:raises: question 0 of theirs: the reward function failed" in error
    with pytest.raises(SystemExit):
        graded(tmp_path, capsys, "--reward", f"{mine}:nobody", "--restart")
    assert "has no function 'nobody'" in capsys.readouterr().err


def test_extra_info_comes_from_the_input_file(mine, tmp_path):
    from exgrpo_eval.grade.by_reward import let_decide

    prompt = [{"role": "user", "content": "1+1?"}]
    extra = {"question_id": "q", "hint": "two"}
    table = pandas.DataFrame([{"prompt": prompt, "extra_info": extra}])
    table.to_parquet(tmp_path / "in.parquet")
    row = {"benchmark": "x", "question": 0, "question_id": "q", "answer": "2", "correct": False}
    row |= {"response": "two", "input_file": str(tmp_path / "in.parquet")}
    (judged,) = let_decide([row], Reward(f"{mine}:later"))
    assert judged["correct"] and judged["reward"] == 1 and not judged["math_verify_correct"]
