"""The command that looks into a pool: what it finds, prints and refuses."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.question_id import question_id, tokenizer_fingerprint
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.on_verl.checkpoints import MARKER
from exgrpo.saved.pool_files import read_saved
from exgrpo.saved.pool_folder import PoolFolder
from exgrpo_tools.find_pool import find_pool
from exgrpo_tools.inspect import __main__ as inspect
from exgrpo_tools.inspect.summary import read_overview
from exgrpo_tools.inspect.text import load_tokenizer

BASE_MODEL = Path(__file__).parents[2] / "exp_scripts" / "quickstart" / "base_model"
TEXTS = ["1+2+3+4+5", "0+0+0+0+1"]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(str(BASE_MODEL))


@pytest.fixture
def run(tmp_path, tokenizer):
    """A run's folder: checkpoints of steps 5 and 10, the data file, and beside step 10 the
    tokenizer.
    """
    pool = ExperiencePool(ExperienceConfig(rollout_n=4))
    names = [question_id(text) for text in TEXTS]
    for step in (5, 10):
        tokens = tokenizer("1+2=3", add_special_tokens=False)["input_ids"] + [step]
        pool.observe(
            RolloutGroup(names[0], 4, (Trajectory(tokens, [-0.5] * len(tokens), step, step / 10),))
        )
        pool.end_step(step, {"fresh_score": step / 10})
        identity = {"data_fingerprint": "f" * 64, "tokenizer": tokenizer_fingerprint(tokenizer)}
        PoolFolder().save(pool, tmp_path / f"global_step_{step}" / "experience", step, identity)
        if step == 5:
            pool.file(names[1], 3, Trajectory.without_log_probs([1, 2], 6))
            pool.observe(
                RolloutGroup("solved", 4, tuple(Trajectory([i], [-1.0], 6) for i in range(4)))
            )
    (tmp_path / MARKER).write_text("10")
    (tmp_path / "global_step_10" / "actor").mkdir()
    (tmp_path / "global_step_10" / "actor" / "huggingface").symlink_to(BASE_MODEL)
    rows = [
        {"prompt": [{"role": "user", "content": text}], "reward_model": {"ground_truth": "15"}}
        for text in TEXTS
    ]
    pandas.DataFrame(rows).to_parquet(tmp_path / "train.parquet")
    return tmp_path


def test_a_pool_is_found_from_the_run_a_checkpoint_or_itself(run):
    latest = run / "global_step_10" / "experience"
    assert {find_pool(folder) for folder in (run, latest.parent, latest)} == {latest}
    assert find_pool(run / "global_step_5") == run / "global_step_5" / "experience"
    with pytest.raises(FileNotFoundError, match="no saved pool there"):
        find_pool(run / "global_step_10" / "actor")


def test_a_pool_is_found_from_the_folder_above_its_checkpoints(run, tmp_path):
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "checkpoints").symlink_to(run)
    found = find_pool(tmp_path / "outputs")
    assert found == tmp_path / "outputs" / "checkpoints" / "global_step_10" / "experience"


def test_the_summary_says_what_the_pool_says(run, capsys):
    inspect.main([str(run), "--train_files", str(run / "train.parquet")])
    lines = capsys.readouterr().out.splitlines()
    assert (
        "holds           2 questions, 3 trajectories, 14 tokens, 712 bytes" in lines
    )  # 14 x 8 + 3 x 200
    assert "log-probs       2 trajectories with log-probs, 1 without" in lines
    assert "retired         1 questions" in lines
    assert (
        "1 of 4                  1  " + "█" * 40 in lines and "2 of 4                  0" in lines
    )
    assert f"        2  {question_id(TEXTS[0])}  {TEXTS[0]}" in lines
    ages = next(line for line in lines if line.startswith("age, steps"))
    assert ages.split()[-2:] == ["5", "5"] and ages.split()[4] == "4"  # ages 5, 4 and 0


def test_an_empty_pool_has_a_summary(tmp_path, capsys):
    PoolFolder().save(ExperiencePool(ExperienceConfig(rollout_n=4)), tmp_path / "pool", 0, {})
    inspect.main([str(tmp_path / "pool")])
    assert "holds           0 questions, 0 trajectories" in capsys.readouterr().out


def test_an_empty_pool_has_a_page_and_no_rows(tmp_path, capsys):
    """As a run has before its mixing begins."""
    PoolFolder().save(
        ExperiencePool(ExperienceConfig(rollout_n=4)), tmp_path / "pool", 0, {"tokenizer": None}
    )
    pandas.DataFrame([{"prompt": [{"role": "user", "content": "Why?"}]}]).to_parquet(
        tmp_path / "train.parquet"
    )
    page, rows = tmp_path / "page.html", tmp_path / "rows.jsonl"
    given = ["--train_files", str(tmp_path / "train.parquet"), "--tokenizer", str(BASE_MODEL)]
    inspect.main([str(tmp_path / "pool"), *given, "--html", str(page), "--export", str(rows)])
    output = capsys.readouterr().out
    assert f"{page}: 0 of 0 trajectories" in output and f"{rows}: 0 trajectories" in output


def test_a_question_is_printed_decoded(run, capsys):
    name = question_id(TEXTS[0])
    inspect.main([str(run), "--question", name, "--train_files", str(run / "train.parquet")])
    output = capsys.readouterr().out
    assert (
        TEXTS[0] in output and "gold            15" in output and "successes       1 of 4" in output
    )
    assert "1 of 2: step 5, 6 tokens, entropy 0.5000, mean log-prob -0.5000" in output
    assert output.count("\n1+2=3") == 2
    with pytest.raises(SystemExit):
        inspect.main([str(run), "--question", "solved"])
    assert "--question=solved: it is retired" in capsys.readouterr().err


def test_what_is_kept_of_a_pass_is_a_copy(run):
    saved = read_saved(run / "global_step_10" / "experience")
    overview = read_overview(saved, {question_id(TEXTS[1])})
    (kept,) = overview.kept[question_id(TEXTS[1])]
    assert (
        len(kept.tokens.base) < 100 and not kept.has_log_probs
    )  # a view of its own bytes, not of a segment
    assert overview.lengths.tolist() == [6, 2, 6] and np.isnan(overview.entropies).tolist() == [
        False,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--html", "{0}/page.html", "--tokenizer", "{0}/other"], "the pool's is"),
        (["--html", "{0}/page.html", "--tokenizer", "{0}/broken"], "/broken: cannot be loaded ("),
        (["--train_files", "{0}/other.parquet"], "has none of the pool's questions"),
        (["--train_files", "{0}/wrong.parquet"], "must have a column prompt; it has answer"),
        (["--train_files", "{0}/no.parquet"], "cannot be read"),
    ],
)
def test_what_belongs_to_something_else_is_refused(run, capsys, tokenizer, arguments, message):
    pandas.DataFrame([{"prompt": [{"role": "user", "content": "Why?"}]}]).to_parquet(
        run / "other.parquet"
    )
    pandas.DataFrame([{"answer": 1}]).to_parquet(run / "wrong.parquet")
    (run / "no.parquet").write_text("x")
    shutil.copytree(BASE_MODEL, run / "broken")
    (run / "broken" / "tokenizer.json").write_text("{}")
    other = load_tokenizer(str(BASE_MODEL))
    other.add_tokens(["another"])
    other.save_pretrained(run / "other")
    with pytest.raises(SystemExit) as left:
        inspect.main([str(run), *(argument.format(run) for argument in arguments)])
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not (run / "page.html").exists()


ASKED = [{"role": "user", "content": "Why?"}]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "Why?"}, "prompt='Why?': must be a list of messages"),
        ({"prompt": []}, "prompt='[]': must be a list of messages"),
        (
            {"prompt": [{"role": "user"}]},
            "must be a list of messages, {role: text, content: text} each",
        ),
        ({"prompt": ASKED, "reward_model": "4"}, "reward_model='4': must be a dictionary"),
        ({"prompt": ASKED, "extra_info": "x"}, "extra_info='x': must be a dictionary"),
    ],
)
def test_a_row_that_is_not_verls_is_named(run, capsys, row, message):
    data = run / "rows.jsonl"
    data.write_text(
        json.dumps({"prompt": ASKED, "reward_model": None}) + "\n" + json.dumps(row) + "\n"
    )
    with pytest.raises(SystemExit) as left:
        inspect.main([str(run), "--train_files", str(data)])
    error = capsys.readouterr().err
    assert left.value.code == 2 and f"{data}: cannot be read (row 2: " in error
    assert message in error and error.count("\n") == 1


def test_a_damaged_pool_is_named_in_one_line(run, capsys):
    (segment,) = (run / "global_step_5" / "experience" / "trajectories").iterdir()
    segment.write_bytes(segment.read_bytes()[:-1])
    with pytest.raises(SystemExit) as left:
        inspect.main([str(run / "global_step_5")])
    error = capsys.readouterr().err
    assert left.value.code == 2 and f"sha256 of {segment.name}" in error and error.count("\n") == 1


LOOKING = [
    ([], "give a CHECKPOINT or --import FILE, one of them"),
    (["{0}", "--import", "{0}/rows.jsonl"], "give a CHECKPOINT or --import FILE, one of them"),
    (["{0}/none"], "CHECKPOINT={0}/none: no such folder"),
    (["{0}"], "CHECKPOINT={0}: no saved pool there"),
    (["{0}", "--sample", "0"], "--sample=0: must be 1 or more"),
    (["{0}", "--sample", "x"], "--sample: invalid int value: 'x'"),
    (["{0}", "--seed", "-1"], "--seed=-1: must be 0 or more"),
    (["{0}", "--output", "{0}/pool"], "--output={0}/pool: requires --import"),
    (["{0}", "--log_probs", "none"], "--log_probs=none: requires --import"),
    (["{0}", "--export", "{0}/rows.csv"], "--export={0}/rows.csv: must end in .parquet or .jsonl"),
    (
        ["{0}", "--export", "{0}/none/rows.jsonl"],
        "--export={0}/none/rows.jsonl: its folder does not exist",
    ),
    (["{0}", "--html", "{0}"], "--html={0}: is a folder"),
    (["{0}", "--train_files", "{0}/none"], "--train_files={0}/none: no such file"),
    (["{0}", "--tokenizer", "{0}/none"], "--tokenizer={0}/none: no such folder"),
    (["{0}", "--sample", "5"], "--sample=5: requires --html"),
    (["{0}", "--seed", "1"], "--seed=1: requires --html"),
    (["{0}", "--model", "{0}"], "--model={0}: requires --html"),
    (["{0}", "--model", "{0}", "--html", "{0}/a"], "--model={0}: requires --train_files"),
    (["{0}", "--htm", "{0}/a"], "unrecognized arguments: --htm"),
]
IMPORT = ["--import", "{0}/rows.jsonl"]
WHOLE = [*IMPORT, "--output", "{0}/pool", "--train_files", "{0}/rows.jsonl", "--tokenizer", "{0}"]
IMPORTING = [
    (["--import", "{0}/none.jsonl"], "--import={0}/none.jsonl: no such file"),
    (["--import", "{0}/rows.csv"], "--import={0}/rows.csv: must end in"),
    (IMPORT, "--output=: is required with --import"),
    (WHOLE[:4], "--train_files=: is required with --import"),
    (WHOLE[:6], "--tokenizer=: is required with --import"),
    ([*IMPORT, "--html", "{0}/a"], "--html={0}/a: not allowed with --import"),
    ([*WHOLE[:2], "--output", "{0}", *WHOLE[4:]], "--output={0}: exists already"),
    ([*WHOLE, "--rollout_n", "1"], "--rollout_n=1: must be 2 or more"),
    ([*WHOLE, "--successes", "8"], "--successes=8: must be between 1 and 7"),
    ([*WHOLE, "--rollout_n", "4", "--successes", "0"], "--successes=0: must be between 1 and 3"),
    ([*WHOLE, "--log_probs", "model"], "--log_probs=model: model requires --model"),
    ([*WHOLE, "--model", "{0}"], "--log_probs=recorded: model requires --model"),
    ([*WHOLE, "--log_probs", "some"], "argument --log_probs: invalid choice"),
]
WITHOUT_FRAMEWORKS = """
import contextlib, io, json, sys
for name in ("torch", "transformers", "pandas", "pyarrow", "verl", "ray"):
    sys.modules[name] = None
from exgrpo_tools.inspect import __main__ as inspect
found = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as error:
        try:
            inspect.main(arguments)
            code = 0
        except SystemExit as left:
            code = left.code
    found.append((code, error.getvalue()))
print(json.dumps(found))
"""


def test_wrong_arguments_get_one_line_before_anything_large_is_imported(tmp_path):
    (tmp_path / "rows.jsonl").write_text("")
    (tmp_path / "rows.csv").write_text("")
    cases = [*LOOKING, *IMPORTING]
    commands = [[argument.format(tmp_path) for argument in arguments] for arguments, _ in cases]
    command = [sys.executable, "-c", WITHOUT_FRAMEWORKS, json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for (code, error), (_, message) in zip(json.loads(done.stdout), cases, strict=True):
        assert message.format(tmp_path) in error and error.count("\n") == 1 and code == 2, (
            message,
            error,
        )


def test_a_reader_that_closes_early_sees_no_traceback(run):
    with subprocess.Popen(
        [sys.executable, "-m", "exgrpo_tools.inspect", str(run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
