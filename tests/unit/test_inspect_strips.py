"""The page's strips: what replay did with each question, by the pool alone and with rollouts."""

import json
import math
import re
from pathlib import Path

import pandas
import pytest
from browser import ask, needs_browser

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.question_id import question_id
from exgrpo.experience.replay_log import LoggedCandidate, LoggedReplay
from exgrpo.experience.replayed_group import Effect, Odds
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.saved.pool_folder import PoolFolder
from exgrpo_tools.inspect import __main__ as inspect
from exgrpo_tools.inspect.strips import ASKED, FOUND, REPLAYED, WHOLE

BASE_MODEL = Path(__file__).parents[2] / "exp_scripts" / "quickstart" / "base_model"
TEXTS = ["1+2+3+4+5", "0+0+0+0+1", "2+2+2+2+2"]
HOSTILE = "</script><img src=x onerror=\"document.body.id = 'owned'\">"
K = 4


def replay(step, text, group_mean=math.nan, chosen=0):
    count = 1 if chosen == 0 else K
    candidates = tuple(LoggedCandidate(1, 0.5, 0.25) for _ in range(count))
    effect = Effect(group_mean=group_mean, advantage=0.5)
    reward = 1.0 if chosen == 0 else 0.5
    odds = Odds(2, 0.5, 3, 2)
    return LoggedReplay(
        step, question_id(text), None, odds, candidates, chosen, 4, reward, 7, effect
    )


@pytest.fixture
def pool(tmp_path):
    """The first question is replayed in steps 3 and 5, the third as a whole group in step 4; the
    second never. Rollouts are written of steps 1, 3, 5 and, by a run that went on, 6.
    """
    made = ExperiencePool(ExperienceConfig(rollout_n=K))
    for step, text in ((1, TEXTS[0]), (2, TEXTS[1])):
        made.observe(RolloutGroup(question_id(text), K, (Trajectory([1, 2], [-1.0] * 2, step),)))
    made.replays.add([replay(3, TEXTS[0], group_mean=0.75)])
    made.replays.add([replay(4, TEXTS[2], chosen=-1)])
    made.replays.add([replay(5, TEXTS[0])])
    PoolFolder().save(made, tmp_path / "pool", 5, {})
    rows = [
        {"prompt": [{"role": "user", "content": text}], "reward_model": {"ground_truth": "15"}}
        for text in TEXTS
    ]
    pandas.DataFrame(rows).to_parquet(tmp_path / "train.parquet")
    (tmp_path / "rollouts").mkdir()
    for step, right in ((1, 1), (3, 3), (5, 2), (6, 4)):
        dumped = []
        for place, text in enumerate(TEXTS[:2]):
            for session in range(K):
                row = {"input": f"{text}\n", "output": f"{HOSTILE} {session}", "gts": "15"}
                row |= {"score": float(session < right), "step": step}
                dumped.append(row | {"uid": f"000{step}q{place}_{session}_0"})
        lines = "".join(json.dumps(row) + "\n" for row in dumped)
        (tmp_path / "rollouts" / f"{step}.jsonl").write_text(lines)
    return tmp_path


def written(pool, *more):
    page = pool / "page.html"
    files = ["--train_files", str(pool / "train.parquet"), "--tokenizer", str(BASE_MODEL)]
    inspect.main([str(pool / "pool"), "--html", str(page), *files, *more])
    text = page.read_text()
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    return text, json.loads(found.group(1))["strips"]


def test_the_pool_alone_knows_what_was_replayed(pool):
    _, strips = written(pool)
    first, third = strips["questions"]
    assert (first["text"], first["gold"], first["state"]) == (TEXTS[0], "15", "now 1 of 4")
    assert third["text"] == TEXTS[2] and third["state"] == "no longer in the pool"
    assert [cell[:4] for cell in first["cells"]] == [
        [1, None, None, FOUND],
        [3, 2, 3, REPLAYED],  # 3 of 4 with the replayed one
        [5, None, None, REPLAYED],
    ]
    assert [cell[:4] for cell in third["cells"]] == [[4, 2, 4, WHOLE]]
    assert strips["last"] == 5 and strips["total"] == 2 and not strips["with_rollouts"]
    about = strips["cards"][first["cells"][1][4]]["about"]
    assert "row             1 of 1 in step 3" in about and "advantage       0.5000" in about
    assert all(card["rollouts"] == [] for card in strips["cards"])


def test_the_rollouts_add_the_other_steps_and_the_siblings(pool):
    _, strips = written(pool, "--rollouts", str(pool / "rollouts"))
    first = strips["questions"][0]
    assert [cell[:4] for cell in first["cells"]] == [
        [1, 1, 4, ASKED],
        [3, 3, 3, REPLAYED],
        [5, 2, 3, REPLAYED],
    ]
    asked, card = (strips["cards"][first["cells"][n][4]] for n in (0, 2))
    assert asked["about"] == [] and len(asked["rollouts"]) == 4
    assert [each[1:] for each in card["rollouts"]] == [
        [True, False],
        [True, False],
        [False, False],
        [False, True],  # the last one is the past answer
    ]


def test_rollouts_of_other_questions_are_refused(pool, capsys):
    for path in (pool / "rollouts").iterdir():
        path.write_text(path.read_text().replace("1+2+3+4+5", "9+9"))
    with pytest.raises(SystemExit):
        written(pool, "--rollouts", str(pool / "rollouts"))
    assert "has none of the replayed questions of --train_files" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        inspect.main([str(pool / "pool"), "--rollouts", str(pool / "rollouts")])
    assert "requires --rewards, or --html with --train_files" in capsys.readouterr().err


@needs_browser
def test_a_click_opens_the_card_and_keys_move_along_a_strip(pool, tmp_path):
    page, _ = written(pool, "--rollouts", str(pool / "rollouts"))
    script = """
    const cells = [...document.querySelectorAll(".lane button")];
    found.labels = cells.map((cell) => cell.getAttribute("aria-label"));
    cells[2].click();
    found.card = document.querySelector(".card").textContent;
    found.marks = [...document.querySelectorAll(".card li")].map((row) => row.textContent[0] + row.className);
    cells[2].click(); found.closed = document.querySelectorAll(".card").length;
    cells[0].focus();
    cells[0].parentNode.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
    found.focus = cells.indexOf(document.activeElement);
    found.note = at("strips-note").textContent;
    found.images = document.images.length; found.owner = document.body.id;
    """  # noqa: E501
    found = ask(page, tmp_path / "asked.html", script)
    assert found["labels"] == [
        "step 1: asked; 1 of 4 new rollouts right",
        "step 3: a past answer was replayed; 3 of 3 new rollouts right",
        "step 5: a past answer was replayed; 2 of 3 new rollouts right",
        "step 4: a whole past group was replayed, 2 of 4 right",
    ]
    assert "question drawn" in found["card"] and HOSTILE in found["card"]
    assert found["marks"] == ["✗past", "✓", "✓", "✗"] and found["closed"] == 0
    assert found["focus"] == 1 and "01234 of 4" in found["note"]
    assert (found["images"], found["owner"]) == (0, "")
