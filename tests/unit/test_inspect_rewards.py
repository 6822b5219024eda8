"""--rewards, --explain and --quarantine on a run's checkpoint, as a person calls them."""

import hashlib
import json
from dataclasses import astuple
from pathlib import Path

import invariants
import numpy as np
import pandas
import pytest
import replay_world as world

from exgrpo.experience import replay_log
from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.experience_trainer_ops import ExperienceReplay
from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.experience.trajectory import Trajectory
from exgrpo.experience.weighted_bucket_sampler import bucket_weights
from exgrpo.on_verl.checkpoints import MARKER
from exgrpo.saved import durable
from exgrpo.saved.pool_files import read_groups, read_saved
from exgrpo.saved.pool_folder import PoolFolder
from exgrpo_tools.inspect import __main__ as inspect
from exgrpo_tools.inspect.text import load_tokenizer

BASE_MODEL = Path(__file__).parents[2] / "exp_scripts" / "quickstart" / "base_model"
QUARANTINE = ["--quarantine", "--rule", "decimals"]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(str(BASE_MODEL))


@pytest.fixture
def run(tmp_path, tokenizer):
    """A run's folder of checkpoints with one of step 6, the data file, and the replay object."""
    replay = world.play(
        lambda text: tokenizer(text, add_special_tokens=False)["input_ids"], world.names()
    )
    world.save(tmp_path, replay, tokenizer)
    (tmp_path / MARKER).write_text(str(world.STEPS))
    (tmp_path / f"global_step_{world.STEPS}" / "actor").mkdir()
    (tmp_path / f"global_step_{world.STEPS}" / "actor" / "huggingface").symlink_to(BASE_MODEL)
    pandas.DataFrame(world.rows()).to_parquet(tmp_path / "train.parquet")
    return tmp_path


def pool_of(run):
    return run / f"global_step_{world.STEPS}" / "experience"


def content(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def printed(capsys, *arguments):
    inspect.main([str(argument) for argument in arguments])
    return capsys.readouterr().out.splitlines()


# -- explain ---------------------------------------------------------------------------------------


def test_a_saved_log_is_the_log_that_was_kept(tokenizer, run):
    replay = world.play(
        lambda text: tokenizer(text, add_special_tokens=False)["input_ids"], world.names()
    )
    kept, saved = list(replay.pool.replays), read_saved(pool_of(run)).replays
    assert len(kept) == len(saved) > 4
    for one, other in zip(kept, saved, strict=True):
        assert (one.question, one.odds, one.effect, one.digest) == (
            other.question,
            other.odds,
            other.effect,
            other.digest,
        )
        np.testing.assert_equal(one.candidates, other.candidates)
    resumed = PoolFolder().load(pool_of(run), world.CONFIG, world.STEPS, {})
    np.testing.assert_equal(
        [astuple(row) for row in resumed.replays], [astuple(row) for row in kept]
    )


def test_a_row_is_explained(run, capsys):
    """Bucket, odds, candidates and effect, against the pool before the step."""
    before = world.play(lambda text: list(text.encode()), world.names(), steps=3)
    sizes = {
        b: before.pool.snapshot().state.buckets.count(b) for b in world.CONFIG.collected_buckets
    }
    order = iter(world.names())
    drawn = before.draw(4, 4, lambda: (next(order), False)).replayed
    (row, *_), name = (
        [each for each in read_saved(pool_of(run)).replays if each.step == 4],
        drawn[0],
    )
    weights = bucket_weights("normal", [b for b in sizes if sizes[b]], 4)
    chance = dict(zip([b for b in sizes if sizes[b]], weights, strict=True))[
        before.pool.bucket(name)
    ]
    lines = printed(capsys, run, "--explain", 4, 1, "--train_files", run / "train.parquet")
    assert (
        lines[0] == f"row             1 of {len(drawn)} in step 4"
        and lines[1] == f"question        {name}"
    )
    assert (
        f"{row.odds.bucket} of 4 solved; {sizes[row.odds.bucket]:,} questions of it"
        in "\n".join(lines)
    )
    assert any(line.startswith(f"bucket drawn    {chance:.4f}") for line in lines)
    listed = [line.split() for line in lines if " step " in line and line.split()[0].isdigit()]
    known = before.candidates([name])[name]
    assert [fields[3] for fields in listed] == [f"{each.entropy:.4f}" for each in known]
    if len(known) > 1:
        assert [fields[4] for fields in listed] == [f"{each.entropy / 2:.4f}" for each in known]
    best = min(range(len(known)), key=lambda i: known[i].entropy)
    assert [fields[-1] == "replayed" for fields in listed] == [i == best for i in range(len(known))]
    assert (
        "advantage       0.5000" in lines
        and "25.00% of its group's" in lines[-1]
        and "12.50% of the step's" in lines[-1]
    )
    assert any(line.startswith("ratios          mean 1.5000, 0.5000 to 3.0000") for line in lines)


def test_a_step_is_listed_and_what_is_not_there_is_refused(run, capsys):
    lines = printed(capsys, run, "--explain", 4)
    rows = [each for each in read_saved(pool_of(run)).replays if each.step == 4]
    assert lines[0].startswith(f"step 4: {len(rows)} rows") and len(lines) == 2 + len(rows)
    for asked, message in (
        (["40"], "nothing was replayed in this step; steps with replayed rows: 2 to 6"),
        (["4", "9"], "must be a row from 1 to"),
        (["4", "1", "1"], "must be STEP or STEP ROW"),
    ):
        with pytest.raises(SystemExit):
            inspect.main([str(run), "--explain", *asked])
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("saves", [(), (3,), (5,), (2, 6)])
def test_the_newest_rows_of_a_log_are_kept_wherever_it_is_saved(tmp_path, monkeypatch, saves):
    """Six steps of three rows, of one to four candidates each; seven rows are kept."""
    monkeypatch.setattr(replay_log, "MAX_ROWS", 7)
    pool, number, shown = ExperiencePool(config := ExperienceConfig(rollout_n=2)), 0, []
    for step in range(1, 7):
        rows = []
        for _ in range(3):
            known = tuple(
                replay_log.LoggedCandidate(step, 0.5 * each, 1.0) for each in range(number % 4 + 1)
            )
            odds = replay_log.Odds(1, 0.5, number, 3)
            rows.append(
                replay_log.LoggedReplay(
                    step, f"q{number}", None, odds, known, number % 4, 9, 1.0, number
                )
            )
            number += 1
        pool.replays.add(rows)
        shown += rows
        if step in saves:
            PoolFolder().save(pool, tmp_path / "pool", step, {})
            pool = PoolFolder().load(tmp_path / "pool", config, step, {})
    assert len(pool.replays) == 7 == len(list(pool.replays))
    np.testing.assert_equal(
        [astuple(row) for row in pool.replays], [astuple(row) for row in shown[-7:]]
    )


def test_a_past_group_is_explained_with_all_of_its_rollouts(tmp_path, capsys):
    replay = ExperienceReplay(ExperienceConfig(rollout_n=2, exp_unit="group"), ["a"])
    rollouts = tuple(Trajectory([1], [-1.0], 1, 0.25, reward=reward) for reward in (0.0, 1.0))
    replay.draw(3, 1, lambda: ("a", False))
    replay.admit([StoredGroup("a", 1, rollouts)], lambda rows: [])
    replay.observe(3, [], {})
    PoolFolder().save(replay.pool, tmp_path / "pool", 3, {})
    lines = printed(capsys, tmp_path / "pool", "--explain", 3, 1)
    assert "drawn           a whole past group, at random: its odds are not known" in lines
    assert sum(line.endswith("<- replayed") for line in lines) == 2 and any(
        "this row's 0.5" in line for line in lines
    )


def test_a_reader_never_writes(run, capsys):
    """Nor does it finish a save that was killed between its two renames; it prints what it would
    beside it.
    """
    pool = pool_of(run)
    train = ["--train_files", run / "train.parquet"]
    commands = [["--explain", 4], ["--rewards", *train], [*QUARANTINE, "--dry_run"]]
    commands = [[run], [pool], *([run, *arguments] for arguments in commands)]
    whole = [printed(capsys, *command) for command in commands]
    pool.rename(pool.with_name(f".{pool.name}.previous"))
    before = content(run)
    assert [printed(capsys, *command) for command in commands] == whole
    assert content(run) == before


def test_a_quarantine_finishes_a_save_that_was_killed_between_its_two_renames(run, capsys):
    pool, before = pool_of(run), content(pool_of(run))
    for arguments in (QUARANTINE, ["--quarantine", "--undo"]):
        pool.rename(pool.with_name(f".{pool.name}.previous"))
        printed(capsys, run, *arguments)
    assert content(pool) == before


# -- quarantine ------------------------------------------------------------------------------------


def test_quarantine_takes_out_what_the_rule_let_in_and_undo_gives_the_pool_as_it_was(run, capsys):
    pool, before = pool_of(run), content(pool_of(run))
    held = [(name, each) for name, each in read_saved(pool).trajectories()]
    faulty = [(name, each) for name, each in held if each.grader == str(world.FAULTY)]
    assert 0 < len(faulty) < len(held)
    lines = printed(capsys, run, *QUARANTINE)
    assert any(line.startswith(f"taken out       {len(faulty)} trajectories") for line in lines)
    replays = [row for row in read_saved(pool).replays if row.grader == str(world.FAULTY)]
    assert any(line.startswith(f"replayed        {len(replays)} times") for line in lines)

    resumed = PoolFolder().load(pool, world.CONFIG, world.STEPS, {})
    invariants.check(resumed)
    left = [each for name in resumed for each in resumed.candidates(name)]
    assert len(left) == len(held) - len(faulty) and str(world.FAULTY) not in {
        each.grader for each in left
    }
    assert resumed.retired == read_saved(pool).state.retired
    assert "in quarantine" in "\n".join(printed(capsys, run))

    undone = printed(capsys, run, "--quarantine", "--undo")
    assert f"{len(faulty)} trajectories are back" in undone[0] and content(pool) == before


def test_past_groups_that_hold_what_the_rule_let_in_leave_too(run, capsys):
    pool, disk = pool_of(run), PoolFolder()
    saved = disk.load(pool, world.CONFIG, world.STEPS, {})
    good, faulty = (
        Trajectory([1], [-1.0], 1, reward=0.5, grader=name) for name in (None, str(world.FAULTY))
    )
    groups = [StoredGroup("a", 1, (good, good)), StoredGroup("b", 1, (good, faulty))]
    disk.save(saved, pool, world.STEPS, {}, None, groups)
    before = content(pool)
    assert "past groups     2 whole ones, for replay without generation" in printed(capsys, run)
    assert "past groups     1 of 2 hold what it judged and leave too" in printed(
        capsys, run, *QUARANTINE
    )
    assert [group.question for group in read_groups(pool)] == ["a"]
    assert "past groups     1 whole ones, for replay without generation" in printed(capsys, run)
    printed(capsys, run, "--quarantine", "--undo")
    assert content(pool) == before and len(read_groups(pool)) == 2


def test_a_question_that_is_left_without_any_leaves_the_pool(run, capsys):
    before, saved = content(pool_of(run)), read_saved(pool_of(run))
    printed(capsys, run, *QUARANTINE)
    first = content(pool_of(run))
    printed(
        capsys, run, "--quarantine", "--grader", "full", "--version", "11111111", "--steps", "1-6"
    )
    empty = PoolFolder().load(pool_of(run), world.CONFIG, world.STEPS, {})
    assert (
        len(saved.state.questions) > 0
        and list(empty) == []
        and empty.retired == saved.state.retired
    )
    printed(capsys, run, "--quarantine", "--undo")
    assert content(pool_of(run)) == first
    printed(capsys, run, "--quarantine", "--undo")
    assert content(pool_of(run)) == before


def test_a_run_goes_on_from_a_pool_in_quarantine(run, capsys):
    printed(capsys, run, *QUARANTINE)
    disk = PoolFolder()
    pool = disk.load(pool_of(run), world.CONFIG, world.STEPS, {})
    disk.save(pool, run / "global_step_7" / "experience", 7, {})
    later = read_saved(run / "global_step_7" / "experience")
    assert later.quarantined == 0 and len(list(later.records())) == pool.trajectories
    assert str(world.FAULTY) not in {each.grader for _, each in later.trajectories()}


def test_a_dry_run_and_a_failed_one_change_nothing(run, capsys, monkeypatch):
    before = content(pool_of(run))
    assert "nothing (--dry_run)" in printed(capsys, run, *QUARANTINE, "--dry_run")[-1]
    assert content(pool_of(run)) == before

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(durable, "sync", full)
        with pytest.raises(SystemExit):
            inspect.main([str(run), *QUARANTINE])
    assert "No space left on device" in capsys.readouterr().err and content(pool_of(run)) == before


def test_a_training_that_is_under_way_is_not_disturbed(run, capsys):
    """By whatever path its pool is named."""
    (run / "links").mkdir()
    (checkpoint := run / "links" / "latest").symlink_to(pool_of(run).parent)
    (pool := run / "links" / "pool").symlink_to(pool_of(run))
    with durable.exclusive_on_all_hosts(run):
        for named in (run, checkpoint, pool):
            with pytest.raises(SystemExit):
                inspect.main([str(named), *QUARANTINE])
            assert "another process is writing to" in capsys.readouterr().err
    moved = run / "links" / "moved"
    pool_of(run).parent.rename(moved)
    pool_of(run).parent.symlink_to(moved)
    with durable.exclusive_on_all_hosts(run), pytest.raises(SystemExit):
        inspect.main([str(run), *QUARANTINE])
    assert "another process is writing to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--quarantine"], "requires --grader, --version, --rule or --reward"),
        (["--rule", "lists"], "--rule=lists: requires --quarantine"),
        (
            ["--quarantine", "--rule", "lists"],
            "was judged by rule lists, steps 0 to 6; recorded are 'full; rules 1111",
        ),
        (["--quarantine", "--rule", "lists", "--steps", "9-2"], "9-2: must be FIRST-LAST"),
        (["--quarantine", "--undo", "--rule", "lists"], "--undo=: takes no --grader"),
        (["--quarantine", "--undo", "--dry_run"], "--undo=: takes no --grader"),
        (
            [*QUARANTINE, "--dry_run", "--export", "a.jsonl"],
            "--export=a.jsonl: not with --explain or --quarantine",
        ),
        (
            ["--explain", "4", "--export", "a.jsonl"],
            "--export=a.jsonl: not with --explain or --quarantine",
        ),
        (["--quarantine", "--undo"], "nothing is in quarantine"),
        (["--quarantine", "--rule", "lists", "--explain", "3"], "only one of these"),
        (["--rewards"], "--train_files=: is required with --rewards"),
        (["--rollouts", "."], "--rollouts=.: requires --rewards"),
    ],
)
def test_wrong_options_are_refused_in_one_line(run, capsys, arguments, message):
    with pytest.raises(SystemExit):
        inspect.main([str(run), *arguments])
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


# -- rewards ---------------------------------------------------------------------------------------


def test_where_graders_disagree(run, capsys, tokenizer):
    """The faulty rule let in an answer that is one too high; strict and full now call it wrong."""
    dumps = run / "rollouts"
    dumps.mkdir()
    rows = [
        ("15", r"\boxed{15}", 1.0),
        ("(3,4]", r"\boxed{3 < x \le 4}", 0.0),
        ("5", r"\boxed{6}", 0.0),
    ]
    lines = [
        json.dumps(
            {"input": "?", "output": out, "gts": gold, "score": score, "step": 1, "uid": f"u_{i}_0"}
        )
        for i, (gold, out, score) in enumerate(rows)
    ]
    (dumps / "1.jsonl").write_text("\n".join(lines) + "\n")
    out = run / "rows.jsonl"
    train = ["--train_files", run / "train.parquet"]
    shown = printed(capsys, run, "--rewards", *train, "--rollouts", dumps, "--export", out)
    held = [each for _, each in read_saved(pool_of(run)).trajectories()]
    wrong = sum(each.grader == str(world.FAULTY) for each in held)
    assert (
        f"pool            {len(held)} responses" in shown
        and f"run and full    differ on {wrong}" in shown
    )
    assert (
        f"full right      {len(held) - wrong:14}{0:14}" in shown
        and f"full wrong      {0:14}{wrong:14}" in shown
    )
    assert "rollouts, step 1, u_1_0: run 0, strict wrong, full right by intervals" in shown
    assert (
        f"{wrong + 1:,} rows on which the graders disagree, or both disagree with the run" in shown
    )
    exported = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(exported) == len(held) + 3 and exported[0]["score"] != float(
        exported[0]["rule"] is not None
    )
    assert {row["grader"] for row in exported if row["place"] == "pool"} == {
        str(world.GOOD),
        str(world.FAULTY),
    }


DUMPED = {"input": "?", "output": "\\boxed{5}\u2028", "gts": "5", "score": 1.0, "step": 1}


def dump(run, *lines):
    """A dump of step 1 with these lines; the arguments that read it."""
    (folder := run / "rollouts").mkdir()
    (folder / "1.jsonl").write_bytes(b"".join(lines))
    return [run, "--rewards", "--train_files", run / "train.parquet", "--rollouts", folder]


def test_a_half_written_last_rollout_is_passed_over(run, capsys):
    line = json.dumps(DUMPED, ensure_ascii=False).encode() + b"\n"
    arguments = dump(run, line, line, line[: line.index(b"\xe2") + 1])
    inspect.main([str(argument) for argument in arguments])
    shown = capsys.readouterr()
    assert "rollouts        2 responses" in shown.out
    assert shown.err == f"{run / 'rollouts' / '1.jsonl'}:3: passed over, it is half written\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "must be a JSON object (Expecting"),
        ("[1]", "is a list: must be a JSON object"),
        ("{}", "output='None': must be a text"),
        (json.dumps(DUMPED | {"score": "right"}), "score='right': must be a number"),
        (json.dumps(DUMPED | {"step": None}), "step='None': must be an integer"),
    ],
)
def test_a_line_of_a_dump_that_is_no_rollout_is_named(run, capsys, line, message):
    good = json.dumps(DUMPED).encode() + b"\n"
    with pytest.raises(SystemExit):
        printed(capsys, *dump(run, good, line.encode() + b"\n", good))
    error = capsys.readouterr().err
    assert f"{run / 'rollouts' / '1.jsonl'}:2: {message}" in error and error.count("\n") == 1


# -- a reward of the user's ------------------------------------------------------------------------


@pytest.fixture
def mine(tmp_path):
    """Takes answers to the first question of the data alone."""
    first = world.rows()[0]["reward_model"]["ground_truth"]
    (tmp_path / "mine.py").write_text(
        "def score(data_source, solution_str, ground_truth, extra_info):\n"
        f"    return float(str(ground_truth) == {str(first)!r})\n"
    )
    return f"{tmp_path}/mine.py:score"


def test_a_reward_of_ones_own_judges_the_pool_again(run, mine, capsys):
    data = ["--train_files", run / "train.parquet"]
    said = "\n".join(printed(capsys, run, "--rewards", *data, "--reward", mine))
    assert f"and by          {mine}; sha256" in said and "run and reward" in said
    assert "rows on which reward and run disagree" in said and ", reward 0" in said


def test_what_it_does_not_accept_leaves_the_pool_and_comes_back(run, mine, capsys):
    folder = pool_of(run)
    before, was = content(folder), [name for name, _ in read_saved(folder).trajectories()]
    data = ["--train_files", run / "train.parquet", "--reward", mine]
    said = "\n".join(printed(capsys, run, "--quarantine", *data))
    assert f"quarantine      reward {mine}, steps 0 to {world.STEPS}" in said
    golds = {world.names()[i]: row["reward_model"] for i, row in enumerate(world.rows())}
    kept = [name for name in was if golds[name] == world.rows()[0]["reward_model"]]
    assert [name for name, _ in read_saved(folder).trajectories()] == kept != was
    printed(capsys, run, "--quarantine", "--undo")
    assert content(folder) == before
