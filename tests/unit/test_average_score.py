"""The validation's averages over data sources, from verl's own metrics by our trainers' hook."""

import pytest

from exgrpo.on_verl.metrics import with_averages

pytest.importorskip("verl")
from exgrpo.mix_trainer_experience import ExperienceMixPPOTrainer

AVERAGES = ("val-core/avg_score", "val-core/avg_score_stable")


def validated(rewards, correct=None):
    """The metrics of a validation with these rewards, data source -> answers of each question."""
    rows = [
        (source, f"{source}{question}", reward)
        for source, questions in rewards.items()
        for question, answers in enumerate(questions)
        for reward in answers
    ]
    sources, uids, values = map(list, zip(*rows, strict=True))
    infos = {"reward": values} | ({} if correct is None else {"acc": correct})
    trainer = object.__new__(ExperienceMixPPOTrainer)  # verl's method reads nothing of it
    return trainer._val_metrics_update(sources, uids, infos, [])


def test_each_source_counts_once_and_the_stable_one_is_without_minerva():
    aime, math = [[1, 0, 0, 0]] * 3, [[1], [1], [0], [1], [1]]
    metrics = validated({"aime": aime, "math/500": math, "minerva_math": [[0], [1]]})
    assert metrics["val-core/aime/reward/mean@4"] == 0.25
    assert metrics["val-core/math/500/reward/mean@1"] == 0.8
    expected = [(0.25 + 0.8 + 0.5) / 3, (0.25 + 0.8) / 2]
    assert [metrics[name] for name in AVERAGES] == pytest.approx(expected)


def test_of_a_reward_that_is_no_verdict_the_accuracies_are_averaged():
    rewards = {"aime": [[0.3], [0.7]], "amc": [[0.1], [0.2]]}
    metrics = validated(rewards, correct=[0.0, 1.0, 0.0, 0.0])
    assert [metrics[name] for name in AVERAGES] == [0.25, 0.25]


def test_what_has_no_source_is_not_averaged():
    alone = validated({"minerva": [[1], [0]]})
    assert alone["val-core/avg_score"] == 0.5 and "val-core/avg_score_stable" not in alone
    nothing = {
        "val-aux/num_turns/mean": 2.0,
        "val-core/aime/acc/best@4/mean": 1.0,
        "val-aux/aime/acc/mean@2": 1.0,
    }
    assert with_averages(nothing) == nothing
