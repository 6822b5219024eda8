"""The input files of eval/generate_vllm.py: what makes a question, how often to ask it, and what is
refused.
"""

import random
import re
import shutil
from pathlib import Path

import pytest
from eval_inputs import parquet, row, settings

from exgrpo.experience.question_id import question_id
from exgrpo_eval.generate import arguments, question_files
from exgrpo_eval.generate.command import describe, read_inputs
from exgrpo_tools.chat_template import _KEEPS_SYSTEM

MODEL = Path(__file__).parents[2] / "exp_scripts" / "quickstart" / "base_model"
SHARED = Path(__file__).parents[3] / "shared" / "data" / "eval"


def read(*files, remove_system=True, limit=None):
    return question_files.read(files, remove_system=remove_system, limit=limit)


def test_repeated_rows_are_one_question(tmp_path):
    rows = [row("a", "1", "aime")] * 32 + [row("b", "2", "aime")] * 32 + [row("c")]
    random.Random(0).shuffle(rows)
    found = {
        question.messages[-1]["content"]: question for question in read(parquet(tmp_path, rows))
    }
    assert {text: question.repeats for text, question in found.items()} == {
        "a": 32,
        "b": 32,
        "c": 1,
    }
    assert {found["a"].index, found["b"].index} == {0, 1} and found["c"].index == 0
    assert found["a"].question_id == question_id("a")


def test_what_makes_a_question_another(tmp_path):
    rows = [row("a", "1"), row("a", "2"), row("a", "1", "aime"), row("a", "1", system="Else.")]
    file = parquet(tmp_path, rows)
    assert len(read(file)) == 3  # its answer, its benchmark; not a system message that is dropped
    assert len(read(file, remove_system=False)) == 4


def test_a_row_that_slipped_in_twice_asks_for_no_sample(tmp_path):
    (first, second) = read(parquet(tmp_path, [row("a"), row("b"), row("a")]))
    assert first.repeats == second.repeats == 1


def test_a_question_of_two_files_is_asked_once(tmp_path):
    one = parquet(tmp_path, [row("a")] * 4 + [row("b")] * 4, "1.parquet")
    two = parquet(tmp_path, [row("b"), row("c")], "2.parquet")
    found = read(one, two)
    assert [(q.messages[-1]["content"], q.index, Path(q.input_file).name) for q in found] == [
        ("a", 0, "1.parquet"),
        ("b", 1, "1.parquet"),
        ("c", 2, "2.parquet"),
    ]


def test_files_without_a_system_message_work(tmp_path):
    file = parquet(tmp_path, [row("a", system=None), row("b")])
    assert [question.messages for question in read(file)] == [
        ({"role": "user", "content": "a"},),
        ({"role": "user", "content": "b"},),
    ]
    assert [len(question.messages) for question in read(file, remove_system=False)] == [1, 2]


@pytest.mark.parametrize(
    ("remove_system", "system", "said"),
    [
        (
            True,
            "Think.",
            "; the files' system messages are left out, as in the released evaluation. ",
        ),
        (False, "Think.", ', with the files\' system message "Think.".'),
        (False, "a b\n" * 40, f', with the files\' system message "{"a b " * 25} ...".'),
        (True, None, "; the files have no system message."),
    ],
)
def test_the_first_line_says_what_the_prompt_is(tmp_path, remove_system, system, said):
    questions = read(parquet(tmp_path, [row("a", system=system)]), remove_system=remove_system)
    first, second = describe(settings("--n", "1"), questions).splitlines()
    assert (
        first.startswith(f"Prompt: the model's chat template (own){said}")
        and second == "math: 1 questions x 1 sample"
    )


@pytest.mark.parametrize(
    ("flags", "trained", "removed"),
    [
        ((), True, False),
        ((), False, True),
        (("--remove_system", "True"), True, True),
        (("--template", "no"), True, True),
    ],
)
def test_a_thinking_copy_keeps_the_system_messages_unless_told_otherwise(
    tmp_path, flags, trained, removed
):
    model = shutil.copytree(MODEL, tmp_path / "model")
    (model / "chat_template.jinja").write_text(
        "{{ messages[0].content }}" + trained * _KEEPS_SYSTEM
    )
    asked = ["--model_path", str(model), "--input_file", str(parquet(tmp_path, [row("a")]))]
    inputs = read_inputs(
        arguments.read([*asked, "--output_file", str(tmp_path / "o.jsonl"), *flags], "")
    )
    assert inputs.remove_system is removed and inputs.questions[0].left_out is removed


def test_only_an_id_of_our_own_is_taken_over(tmp_path):
    ours = question_id("another wording")
    (found,) = read(parquet(tmp_path, [row("a", question_id=ours)]))
    assert found.question_id == ours
    (found,) = read(
        parquet(tmp_path, [row("a", question_id=70)])
    )  # MMLU-Pro numbers its questions under this name
    assert found.question_id == question_id("a")


def test_limit_counts_in_each_benchmark(tmp_path):
    rows = [row(f"{name}{number}", benchmark=name) for number in range(5) for name in ("x", "y")]
    assert [q.messages[-1]["content"] for q in read(parquet(tmp_path, rows), limit=2)] == [
        "x0",
        "x1",
        "y0",
        "y1",
    ]


def test_globs_and_paths(tmp_path, monkeypatch):
    for name in ("b.parquet", "a.parquet", "[c].parquet"):
        parquet(tmp_path, [row("q")], name)
    monkeypatch.chdir(tmp_path)
    assert [
        str(path) for path in question_files.expand(["b.parquet", "?.parquet", "[c].parquet"])
    ] == [
        "b.parquet",
        "a.parquet",
        "[c].parquet",
    ]
    with pytest.raises(FileNotFoundError, match=r"^--input_file=d\*: no such file$"):
        question_files.expand(["d*"])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"data_source": "m", "prompt": "q"}],
            "no column reward_model; it has data_source, prompt",
        ),
        ([{**row("a"), "prompt": "a"}], "row 0: prompt: must be a list of messages"),
        (
            [row("a"), {**row("a"), "prompt": []}],
            "row 1: prompt: must end with a message of the user",
        ),
        (
            [{**row("a"), "prompt": [{"role": "assistant", "content": "a"}]}],
            "row 0: prompt: must end with",
        ),
        ([row("a"), row("a", None)], "row 1: reward_model: must have a ground_truth"),
        ([row("a", benchmark=None)], "row 0: data_source=None: must be the name"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, rows, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        read(parquet(tmp_path, rows))
    assert str(error.value).startswith(f"--input_file={tmp_path}/in.parquet: ")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the benchmark files are not beside the checkout")
def test_real_files_go_through():
    auto, found = settings(), {}
    for question in read(*sorted(SHARED.glob("*.parquet"))):
        found.setdefault(question.benchmark, []).append(question)
        assert len(question.messages) == 1 and re.fullmatch("[0-9a-f]{32}", question.question_id)
    assert {
        name: (len(questions), auto.samples(name, questions[0].repeats))
        for name, questions in found.items()
    } == {
        "gsm8k": (1319, 1),
        "mmlu_pro": (11873, 1),
        "math": (500, 1),
        "olympiad_bench": (675, 1),
        "minerva": (272, 1),
        "aime": (30, 32),
        "amc": (83, 32),
        "aime25": (30, 32),
        "arc_c": (1172, 1),
    }
    assert all(
        len({q.question_id for q in questions}) == len(questions) for questions in found.values()
    )
    assert all(
        [q.index for q in questions] == list(range(len(questions))) for questions in found.values()
    )
