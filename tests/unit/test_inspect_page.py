"""The page: what it embeds, that nothing in it is markup or leaves it, and that a real browser
draws it.
"""

import html
import json
import re

import numpy as np
import pytest
from browser import ask, dump, needs_browser

from exgrpo.console import printable
from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.saved.pool_files import read_saved
from exgrpo.saved.pool_folder import PoolFolder
from exgrpo_tools import charts
from exgrpo_tools.inspect.page import MAX_POINTS, Sample, build_page, draw_sample
from exgrpo_tools.inspect.questions import Question
from exgrpo_tools.inspect.summary import read_overview
from exgrpo_tools.inspect.text import Decoder

HOSTILE = [
    "</script><script>document.body.id = 'owned'</script>",
    "<img src=x onerror=\"document.body.id = 'owned'\">",
    "<!-- <script> /*js*/ /*data*/ \u2028 \\u003c &lt; {{x}}",
]


class Bytes:
    """A tokenizer of bytes, most of which are no character alone; 256 and on are hostile words."""

    def decode(self, tokens, skip_special_tokens, clean_up_tokenization_spaces):
        parts = [
            bytes([token]) if token < 256 else HOSTILE[token - 256].encode() for token in tokens
        ]
        return b"".join(parts).decode(errors="replace")


def to_tokens(text):
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def make_pool(folder, questions, steps=12):
    """Every question has two trajectories, of which the second has no log-probs and unknown
    entropy.
    """
    pool = ExperiencePool(ExperienceConfig(rollout_n=4))
    for step in range(1, steps + 1):
        for number, name in enumerate(questions):
            if step == 1 + number % steps:
                tokens = np.concatenate([[256 + number % 3], to_tokens(f" é{number}")])
                trajectory = Trajectory(tokens, -np.arange(len(tokens)) / 1000, step, number / 10)
                pool.observe(RolloutGroup(name, 4, (trajectory,)))
                pool.file(
                    name,
                    1 + number % 3,
                    Trajectory.without_log_probs(to_tokens(f"teacher\n{number}"), step),
                )
        replayed = {
            "replayed_groups": 2.0,
            "replay_age": 1.5,
            "candidates_scored": 2.0 * (step % 2),
            "chosen_score": 0.1,
        }
        pool.end_step(
            step,
            {
                "fresh_score": step / steps,
                **(replayed if step > 2 else dict.fromkeys(replayed, 0.0)),
            },
        )
    PoolFolder().save(pool, folder, steps, {"data_fingerprint": HOSTILE[0]})
    return read_saved(folder)


def embedded(page):
    return json.loads(
        re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S).group(1)
    )


@pytest.fixture
def page(tmp_path):
    """The page of 30 questions, scored: now is then plus log 2."""
    names = [f"q{number}" for number in range(30)]
    saved = make_pool(tmp_path / "pool", names)
    sample = draw_sample(saved, 200, 0)
    overview = read_overview(saved, frozenset(names))
    questions = {
        name: Question([{"role": "user", "content": f"{HOSTILE[1]} {name}"}], HOSTILE[0])
        for name in names[1:]
    }
    now = {
        name: [np.nan_to_num(trajectory.log_probs) + np.float32(np.log(2)) for trajectory in found]
        for name, found in overview.kept.items()
    }
    return build_page(overview, sample, questions, Decoder(Bytes()), "<b>model</b>", now)


def test_the_page_holds_what_the_pool_does(page):
    data = embedded(page)
    assert data["sizes"] == [0, 10, 10, 10, 0] and data["totals"] == {
        "trajectories": 60,
        "questions": 30,
    }
    assert data["sample"] == {"trajectories": 60, "questions": 30, "seed": 0}
    question = next(question for question in data["questions"] if question["id"] == "q3")
    assert (
        question["text"] == f"{HOSTILE[1]} q3"
        and question["gold"] == HOSTILE[0]
        and question["bucket"] == 1
    )
    first, teacher = question["trajectories"]
    assert (
        "".join(first["pieces"]) == f"{HOSTILE[0]} é3"
        and "".join(teacher["pieces"]) == "teacher\n3"
    )
    assert (
        first["then"] == list(range(len(first["pieces"])))
        and first["entropy"] == 0.3
        and first["step"] == 4
    )
    assert first["now"] == [value - 693 for value in first["then"]]
    assert first["ratio"] == pytest.approx(2, abs=1e-4) and first["ess"] == pytest.approx(
        1, abs=1e-5
    )
    assert teacher["then"] is None and teacher["entropy"] is None and "ratio" not in teacher
    assert (
        next(question for question in data["questions"] if question["id"] == "q0")["text"] is None
    )
    assert [sum(histogram["counts"]) for histogram in data["histograms"]] == [60, 30, 60]
    assert [histogram["unknown"] for histogram in data["histograms"]] == [0, 30, 0]


def test_steps_that_replayed_nothing_are_gaps_and_not_zeros(page):
    history = embedded(page)["history"]
    assert history["step"] == list(range(1, 13)) and history["fresh_score"][-1] == 1
    assert history["replay_age"] == [None, None] + [1.5] * 10
    assert history["chosen_score"] == [None, None] + [0.1, None] * 5
    assert "passed_over_score" not in history and history["evicted_by_age"] == [0.0] * 12


def test_a_long_history_is_thinned_and_ends_with_the_last_step(tmp_path):
    pool = ExperiencePool(ExperienceConfig(rollout_n=4))
    for step in range(1, 2 * MAX_POINTS + 7):
        pool.end_step(step, {})
    PoolFolder().save(pool, tmp_path / "pool", step, {})
    saved = read_saved(tmp_path / "pool")
    data = embedded(
        build_page(
            read_overview(saved, ()), draw_sample(saved, 5, 0), {}, Decoder(Bytes()), None, {}
        )
    )
    steps = data["history"]["step"]
    assert steps[-1] == step and len(steps) <= MAX_POINTS and set(np.diff(steps)) == {3}
    assert (
        data["histograms"] == []
        and data["questions"] == []
        and data["tiles"]["median age"] == "none"
    )


def test_a_sample_is_drawn_with_its_seed_and_never_exceeds_its_limit(tmp_path):
    saved = make_pool(tmp_path / "pool", [f"q{number}" for number in range(30)])
    sample = draw_sample(saved, 7, 3)
    shown = sample.cut(read_overview(saved, frozenset(sample.questions)).kept)
    assert list(map(len, shown.values())) == [2, 2, 2, 1] and list(shown) == sample.questions[:4]
    assert (
        draw_sample(saved, 7, 3) == sample
        and draw_sample(saved, 7, 4).questions != sample.questions
    )
    assert Sample(["a", "b"], 3, 0).cut({"b": [1, 2, 3, 4]}) == {"b": [1, 2, 3]}


def test_nothing_of_the_data_is_markup_and_no_address_is_in_the_page(page):
    assert page.count("<script") == 3 and page.count("</script>") == 3 and page.count("<img") == 0
    assert not re.search(r"^/\*\w+\*/$", page, re.M) and "default-src 'none'" in page
    assert charts.script() in page
    ours = page.replace(charts.script(), "")  # of the charts' script: test_charts.py
    assert not re.search(r"\w+://", ours)
    assert not re.search(
        r"@import|url\(|\bsrc=|\bhref=",
        re.sub(r"<script id=\"data\".*?</script>", "", ours, flags=re.S),
    )


def test_the_page_is_small(page):
    assert len(page) - len(str(embedded(page)["questions"])) < 300_000


@needs_browser
def test_a_browser_draws_charts_and_trajectories_and_runs_nothing_of_a_model(page, tmp_path):
    document = dump(page, tmp_path / "page.html")
    assert document.count("<article>") == 20 and document.count('class="trajectory"') == 40
    assert document.count("<canvas") == 6 + 4  # 6 charts of the history, 4 of the saved pool
    assert "owned" not in re.findall(r"<body[^>]*>", document)[0] and "<img" not in document
    assert html.escape(HOSTILE[1], quote=False) in document and "20 of 30 questions" in document
    drawn = [
        box.count("<span") for box in re.findall(r'<div class="tokens">(.*?)</div>', document, re.S)
    ]
    pieces = [
        row["pieces"]
        for question in embedded(page)["questions"][:20]
        for row in question["trajectories"]
    ]
    assert drawn == list(map(len, pieces))


@needs_browser
def test_the_charts_show_the_history_and_the_pool_and_their_tips_say_the_numbers(page, tmp_path):
    script = """
    found.time = await seen("#time", [0.999, 0.5]);
    found.now = await seen("#now", [0.5, 0.5]);
    """
    found, data = ask(page, tmp_path / "page.html", script), embedded(page)
    buckets, _, ages, selection, _, evicted = found["time"]
    history = data["history"]
    assert buckets["sets"] == [[f"{k}", history[f"bucket_{k}"]] for k in range(5)]
    assert buckets["tip"] == [
        "step 12",
        *(f"{k}: {history[f'bucket_{k}'][-1]:.0f}" for k in reversed(range(5))),
    ]
    names = {"pool, median": "age_median", "pool, 95 %": "age_p95", "replayed, mean": "replay_age"}
    assert ages["sets"] == [[name, history[metric]] for name, metric in names.items()]
    assert ages["tip"][-1] == "replayed, mean: 1.5" and ages["label"].endswith(
        "replayed, mean 1.5."
    )
    assert selection["sets"] == [["chosen", history["chosen_score"]]] and selection["tip"][1:] == [
        "chosen: 0.1"
    ]
    assert [name for name, _ in evicted["sets"]] == ["per question", "size", "age"]
    assert [chart["sets"] for chart in found["now"]] == [
        [["", counts]]
        for counts in (data["sizes"], *(histogram["counts"] for histogram in data["histograms"]))
    ]
    assert found["now"][0]["tip"] == ["2 of 4: 10"]
    assert all(chart["colours"] > 5 for chart in found["time"] + found["now"])


@needs_browser
def test_between_light_and_dark_the_charts_are_drawn_again_in_the_other_colours(page, tmp_path):
    before = """
    let change; // what the page does when the reader's preference changes
    matchMedia = () => ({ addEventListener: (name, listener) => { change = listener; } });
    """
    script = """
    const first = (chart) => [chart.data.datasets[0].backgroundColor].flat()[0];
    const colours = () => Object.values(Chart.instances).map(first);
    found.before = colours();
    document.documentElement.style.setProperty("--c0", "rgb(1, 2, 3)");
    change();
    found.after = colours();
    found.canvases = document.querySelectorAll("canvas").length;
    """
    found = ask(page, tmp_path / "page.html", script, before)
    assert len(found["before"]) == len(found["after"]) == found["canvases"] == 10
    assert "rgb(1, 2, 3)" not in found["before"]
    assert found["after"].count("rgb(1, 2, 3)") == 8  # all but the buckets'


@needs_browser
def test_a_browser_filters_searches_sorts_and_shows_the_numbers_of_a_token(page, tmp_path):
    script = """
    const ids = () => [...document.querySelectorAll("article .about .mono")].map((node) => node.textContent);
    const choose = (name, value) => { at(name).value = value; at(name).dispatchEvent(new Event("change")); };
    choose("order", "highest entropy"); found.sorted = ids().slice(0, 3);
    choose("bucket", "2"); found.filtered = ids();
    choose("colour", RATIO); found.background = document.querySelector(".tokens span").style.background;
    document.querySelector(".tokens span").dispatchEvent(new MouseEvent("mousemove", { clientX: 5, clientY: 5 }));
    found.tip = at("tip").textContent;
    choose("bucket", "all"); at("search").value = "É17"; at("search").dispatchEvent(new Event("input"));
    found.searched = ids();
    at("search").value = ""; at("search").dispatchEvent(new Event("input"));
    at("more").click(); found.all = ids().length; found.more = at("more").hidden;
    """  # noqa: E501
    found = ask(page, tmp_path / "page.html", script)
    assert found["sorted"] == ["q29", "q28", "q27"] and found["searched"] == ["q17"]
    assert found["filtered"] == [f"q{number}" for number in range(28, 0, -3)]
    assert found["background"] == "rgba(var(--hot), 0.75)"  # twice as likely now
    assert "token 1 of" in found["tip"] and "importance ratio 2" in found["tip"]
    assert "then: log-prob 0.000, probability 1" in found["tip"].replace("-0.000", "0.000")
    assert found["all"] == 30 and found["more"] is True


# -- tokens as text --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["plain", "é", "a√2 €5 😀!", "漢字", ""])
def test_pieces_make_up_the_text_and_each_token_has_one(text):
    tokens = to_tokens(text)
    pieces = Decoder(Bytes()).pieces(tokens)
    assert len(pieces) == len(tokens) and "".join(pieces) == text == Decoder(Bytes()).text(tokens)
    finished = [text.encode()[: i + 1].decode(errors="ignore") for i in range(len(tokens))]
    assert ["".join(pieces[: i + 1]) for i in range(len(tokens))] == finished


def test_bytes_that_never_become_a_character_have_a_piece_all_the_same():
    pieces = Decoder(Bytes()).pieces(np.array([0xF0, 0x9F, 65, 0xFF, 66], np.int32))
    assert len(pieces) == 5 and "A" in "".join(pieces) and "".join(pieces).endswith("B")


def test_a_response_cannot_move_the_cursor():
    assert printable("a\tb\n\x1b[31m\u202e") == "a\tb\\n\\x1b[31m\\u202e"
