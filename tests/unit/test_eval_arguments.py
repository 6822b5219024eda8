"""The command line of eval/generate_vllm.py: the released defaults, samples a question, and what is
refused.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from eval_inputs import settings


def test_defaults_are_the_released_ones():
    found = settings()
    released = {
        "template": "own",
        "remove_system": None,  # True, as there, but for a model that says otherwise
        "temperature": 0.6,
        "top_p": 1.0,
        "max_tokens": 8192,
        "add_oat_evaluate": False,
        "any_true": False,
        "force_generate": True,
        "add_think_before_answer": False,
        "no_split_think": False,
        "skip_scoring": False,
        "debug": False,
    }
    assert {name: getattr(found, name) for name in released} == released


def test_flags_are_written_as_in_the_released_commands_or_bare():
    assert settings("--remove_system", "True", "--add_oat_evaluate", "True") == settings(
        "--remove_system", "--add_oat_evaluate"
    )
    assert settings("--remove_system", "False").remove_system is False


@pytest.mark.parametrize(
    ("flags", "benchmark", "repeats", "samples"),
    [
        ((), "aime", 1, 32),
        ((), "aime25", 1, 32),
        ((), "amc", 1, 32),
        ((), "math", 1, 1),
        ((), "aime", 32, 32),  # not 1,024
        ((), "amc", 4, 4),  # a file for validation
        (("--n", "8"), "aime", 32, 8),
        (("--n", "aime=2,math=4"), "aime", 32, 2),
        (("--n", "aime=2,math=4"), "math", 1, 4),
        (("--n", "aime=2,math=4"), "amc", 32, 32),
        (("--temperature", "0"), "aime", 32, 1),  # greedy: all would be alike
    ],
)
def test_samples_a_question(flags, benchmark, repeats, samples):
    assert settings(*flags).samples(benchmark, repeats) == samples


def test_debug_takes_ten_questions_unless_a_limit_is_given():
    assert [
        settings(*flags).question_limit for flags in ((), ("--debug",), ("--debug", "--limit", "3"))
    ] == [
        None,
        10,
        3,
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--n", "0"), "--n=0: must be 1 or more samples"),
        (("--n", "aime=0"), "--n=aime=0: must be 1 or more"),
        (("--n", "four"), "'four': must be a number, auto, or"),
        (("--n", "==8"), "'==8': must be a number, auto, or"),
        (("--n", "=8"), "'=8': must be a number, auto, or"),
        (("--n", "8,16"), "'8,16': must have one number for all others"),
        (("--n", "aime=4,aime=8"), "'aime=4,aime=8': must have one number for aime"),
        (("--n", "4", "--temperature", "0"), "--n=4: must be 1 at --temperature 0"),
        (("--temperature", "-1"), "--temperature=-1.0: must be 0"),
        (("--temperature", "nan"), "--temperature=nan: must be 0"),
        (("--top_p", "0"), "--top_p=0.0: must be above 0"),
        (("--max_tokens", "0"), "--max_tokens=0: must be 1 or more"),
        (("--limit", "0"), "--limit=0: must be 1 or more"),
        (("--template", "qwen3"), "--template=qwen3: must be one of own, simplerl"),
        (("--any_true",), "--any_true=True: needs --add_oat_evaluate"),
        (("--remove_system", "maybe"), "'maybe': must be True or False"),
        (("--output_file", "o.json"), "--output_file=o.json: must end in .jsonl"),
        (("--temp", "1"), "unrecognized arguments: --temp 1"),
    ],
)
def test_a_wrong_flag_is_one_line(flags, message, capsys):
    with pytest.raises(SystemExit) as exit_info:
        settings(*flags)
    lines = capsys.readouterr().err.splitlines()
    assert exit_info.value.code == 2 and len(lines) == 1 and message in lines[0]


def test_the_released_flag_without_a_use_is_accepted_and_said(capsys):
    assert settings("--output_eval", "results/x.json") == settings()
    assert capsys.readouterr().out.startswith(
        "--output_eval=results/x.json: not written, as in the release"
    )


def test_help_imports_nothing_heavy():
    """What half a second has no time for."""
    script = str(Path(__file__).parents[2] / "eval" / "generate_vllm.py")
    command = [sys.executable, "-X", "importtime", script, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert (
        done.returncode == 0
        and "--output_file" in done.stdout
        and "exgrpo_eval.generate.command" in imported
    )
    assert not imported & {
        "numpy",
        "torch",
        "vllm",
        "transformers",
        "pyarrow",
        "openai",
        "tqdm",
        "jinja2",
    }
