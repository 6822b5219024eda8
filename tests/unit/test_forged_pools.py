"""Pools whose files have the right checksums and hold what no pool can: each ends as DamagedPool,
in one line.
"""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf
from saved_pools import CONFIG, IDENTITY, lived

from exgrpo.experience.experience_trainer_ops import ExperienceReplay
from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.experience.replay_log import LoggedReplay
from exgrpo.experience.trajectory import Trajectory
from exgrpo.experience.trajectory_selector import TokenScores
from exgrpo.on_verl import checkpoints
from exgrpo.saved import durable
from exgrpo.saved.pool_files import DamagedPool, checksum_of
from exgrpo.saved.pool_folder import PoolFolder

TABLES = ["live", "questions", "history", "replayed", "groups"]
WRONG = [None, "x", -1, [{}]]
KEYS = [
    "counts",
    "counters",
    "next_serial",
    "segments",
    "sha256",
    "rollout_n",
    "step",
    "replay_state",
    "identity",
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint's pool with every table; its folder, and its manifest without checksum."""
    folder = tmp_path_factory.mktemp("real") / "experience"
    pool = lived()
    replay = ExperienceReplay(CONFIG, [f"q{i}" for i in range(40)], pool)
    scored = replay.choose(
        {q: pool.candidates(q) for q in list(pool)[:3]},
        lambda pairs: [TokenScores(np.ones(len(t)), np.full(len(t), -1.0)) for _, t in pairs],
    )
    pool.replays.add([LoggedReplay.of(group, 1) for group in scored.groups])
    pool.end_step(1, {"fresh_score": 0.5})
    masked = Trajectory([1, 2], [-1.0, -1.0], 1, 0.5, [True, False], 0.0, "note", "grader")
    group = StoredGroup("q1", 1, (Trajectory([1], [-1.0], 1), masked), np.array([3, 4]))
    pool.file("q1", 2, masked)
    PoolFolder().save(pool, folder, 0, IDENTITY, replay.state(), [group, group])
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest.pop("checksum")
    return folder, manifest


def forge(saved, target, change=lambda manifest: None, file=None, table=lambda table: table):
    """A copy with a manifest and a table that are changed, under checksums that fit."""
    folder, manifest = saved[0], json.loads(json.dumps(saved[1]))
    for path in folder.rglob("*.parquet"):
        (target / path.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
        durable.link(path, target / path.relative_to(folder))
    if file is not None:
        path = next(target.rglob(f"{file}*.parquet"))
        changed = table(pq.ParquetFile(path).read())
        path.unlink()
        pq.write_table(changed, path)
        if file == "segment":
            manifest["segments"][0]["sha256"] = durable.sha256(path)
        else:
            manifest["sha256"][path.name] = durable.sha256(path)
    change(manifest)
    (target / "manifest.json").write_text(
        json.dumps(manifest | {"checksum": checksum_of(manifest)})
    )
    return target


def load(folder):
    """As a run that resumes."""
    named = folder.parent / "global_step_0"
    named.mkdir()
    folder.rename(named / checkpoints.POOL)
    trainer = OmegaConf.create({"resume_mode": "resume_path", "resume_from_path": str(named)})
    groups = replace(CONFIG, exp_unit="group")
    checkpoints.open_experience(trainer, groups, IDENTITY, [f"q{i}" for i in range(40)])


def ends(folder):
    """What comes of a load."""
    try:
        load(folder)
    except DamagedPool as error:
        return "damaged" if "\n" not in str(error) else "lines"
    except ValueError as error:
        return "another" if "expected" in str(error) and "\n" not in str(error) else repr(error)
    except Exception as error:
        return repr(error)
    return "accepted"


def test_the_real_one_is_taken(saved, tmp_path):
    assert ends(forge(saved, tmp_path / "pool")) == "accepted"


@pytest.mark.parametrize("key", KEYS)
def test_a_manifest_with_another_value_or_none(saved, tmp_path, key):
    outcomes = {}
    for number, wrong in enumerate(WRONG):
        folder = tmp_path / str(number) / "pool"
        outcomes[str(wrong)[:9]] = ends(
            forge(saved, folder, lambda manifest, wrong=wrong: manifest.update({key: wrong}))
        )
    outcomes["gone"] = ends(
        forge(saved, tmp_path / "gone" / "pool", lambda manifest: manifest.pop(key))
    )
    for inner in saved[1][key] if isinstance(saved[1][key], dict) else []:
        for number, wrong in enumerate(WRONG):
            folder = tmp_path / f"{inner}{number}" / "pool"
            change = lambda manifest, inner=inner, wrong=wrong: manifest[key].update({inner: wrong})  # noqa: E731
            outcomes[f"{inner} {wrong}"[:40]] = ends(forge(saved, folder, change))
    harmless = {"odds {}", "deferred []", "deferred {}", "deferred x", "deferred [{}]"} | {
        f"{name} {{}}" for name in ()
    }
    allowed = {"damaged"} | ({"another"} if key in ("identity", "step", "rollout_n") else set())
    wrong = {
        name: said
        for name, said in outcomes.items()
        if said not in allowed and name not in harmless
    }
    assert not wrong


def columns_of(saved, file):
    return pq.ParquetFile(next(saved[0].rglob(f"{file}*.parquet"))).read().schema


CHANGES = {
    "gone": lambda table, name: table.drop_columns([name]),
    "nulls": lambda table, name: replaced(table, name, pa.nulls(len(table), table[name].type)),
    "text": lambda table, name: replaced(table, name, pa.array(["x"] * len(table))),
    "negative": lambda table, name: filled(table, name, -2),
    "huge": lambda table, name: filled(table, name, 2**31 - 1),
    "infinite": lambda table, name: filled(table, name, float("-inf")),
    "one twice": lambda table, name: pa.concat_tables([table, table.slice(0, 1)]),
    "backwards": lambda table, name: table.take(list(range(len(table)))[::-1]),
    "one less": lambda table, name: table.slice(1),
    "cut lists": lambda table, name: lists(table, name, lambda values: values[:-1]),
    "longer lists": lambda table, name: lists(
        table, name, lambda values: [*values, values[-1] if values else 0]
    ),
    "null inside": lambda table, name: lists(table, name, lambda values: [None, *values[1:]]),
    "positive": lambda table, name: (
        lists(table, name, lambda values: [abs(value) + 1 for value in values])
        if "float" in str(table[name].type)
        else None
    ),
}
# what a real pool may hold, or what nobody reads: of (file, column, change)
MAY = {
    ("segment", "log_probs", "nulls"),
    ("segment", "loss_mask", "nulls"),
    ("segment", "note", "nulls"),
    ("segment", "grader", "nulls"),
    ("segment", "note", "text"),
    ("segment", "grader", "text"),
    ("groups", "log_probs", "nulls"),
    ("groups", "loss_mask", "nulls"),
    ("groups", "note", "nulls"),
    ("groups", "grader", "nulls"),
    ("groups", "note", "text"),
    ("groups", "grader", "text"),
    ("groups", "question", "text"),
    ("groups", "prompt", "nulls"),
    ("replayed", "grader", "nulls"),
    ("replayed", "grader", "text"),
    ("replayed", "question", "text"),
    ("questions", "question", "text"),
}


# numbers that a trajectory may have; rows that a group may have
LEGAL = {
    ("step", "huge"),
    ("stored", "huge"),
    ("tokens", "huge"),
    ("prompt", "huge"),
    ("prompt", "negative"),
}
LEGAL |= {(name, change) for name in ("entropy", "reward") for change in ("huge", "negative")}
LEGAL |= {("log_probs", "negative")}
ROWS = ("one twice", "backwards", "one less")


def replaced(table, name, values):
    return table.set_column(table.schema.get_field_index(name), name, values)


def filled(table, name, value):
    kind = table[name].type
    if pa.types.is_floating(kind) or (pa.types.is_integer(kind) and isinstance(value, int)):
        return replaced(table, name, pa.array([value] * len(table), kind))
    if pa.types.is_list(kind) and not pa.types.is_boolean(kind.value_type):
        value = float(value) if pa.types.is_floating(kind.value_type) else value
        value = (
            float("inf") if value == 2**31 - 1 and pa.types.is_floating(kind.value_type) else value
        )
        number = value if pa.types.is_floating(kind.value_type) or isinstance(value, int) else -9
        return lists(table, name, lambda values: [number] * len(values))
    return None


def lists(table, name, change):
    if not pa.types.is_list(table[name].type):
        return None
    rows = [None if row is None else change(row) for row in table[name].to_pylist()]
    return (
        None
        if rows == table[name].to_pylist()
        else replaced(table, name, pa.array(rows, table[name].type))
    )


FREE_VALUES = {
    "history": ["step"],
    "replayed": ["chosen", "candidate_score"],
}  # others may have any values


@pytest.mark.parametrize("file", ["segment", *TABLES])
def test_a_table_with_another_column(saved, tmp_path, file):
    outcomes = {}
    for name in FREE_VALUES.get(file, columns_of(saved, file).names):
        for change in ("gone", "nulls", "text") if file in FREE_VALUES else CHANGES:
            make = CHANGES[change]
            if (
                make(pq.ParquetFile(next(saved[0].rglob(f"{file}*.parquet"))).read(), name)
                is not None
            ):
                folder = tmp_path / f"{name}-{change}" / "pool"
                outcomes[name, change] = ends(
                    forge(saved, folder, file=file, table=lambda table, m=make, n=name: m(table, n))
                )
    wrong = {
        key: said for key, said in outcomes.items() if said != "damaged" and (file, *key) not in MAY
    }
    legal = {
        *LEGAL,
        *(
            (name, change)
            for name in columns_of(saved, file).names
            for change in ROWS
            if file == "groups"
        ),
    }
    wrong = {key: said for key, said in wrong.items() if key not in legal and key[0] != "prompt"}
    assert not wrong


def test_a_file_that_is_no_table(saved, tmp_path):
    for name in TABLES:
        folder = forge(saved, tmp_path / name / "pool")
        path = folder / f"{name}.parquet"
        path.unlink()
        path.write_bytes(b"PAR1 and no more")
        manifest = saved[1] | {"sha256": saved[1]["sha256"] | {path.name: durable.sha256(path)}}
        (folder / "manifest.json").write_text(
            json.dumps(manifest | {"checksum": checksum_of(manifest)})
        )
        assert ends(folder) == "damaged", name
