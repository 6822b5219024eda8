"""Retired questions leave the fresh ones at the next epoch, with verl's own loader too, and after a
resume.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_helpers import FreshQuestions
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.experience_trainer_ops import ExperienceReplay
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.on_verl.in_flight import InFlight
from exgrpo.saved.pool_files import read_manifest
from exgrpo.saved.pool_folder import PoolFolder

# one replayed question a step
CONFIG = ExperienceConfig(rollout_n=2, experience_start_sratio=0, experience_ratio=0.25)
IDENTITY = {"data_fingerprint": "d", "tokenizer": "t", "questions": 12}
QUESTIONS = [f"q{n}" for n in range(12)]
EASY = {"q2", "q5", "q7", "q8"}  # solved by every rollout
BATCH = 4


def retire(pool, *questions):
    for question in questions:
        pool.observe(
            RolloutGroup(question, 2, (Trajectory([1], [-1.0], 1), Trajectory([2], [-1.0], 1)))
        )


class Data:
    """A loader of ring 0: the questions in order, epoch after epoch."""

    def __init__(self, questions=QUESTIONS):
        self.questions, self.place = questions, 0

    def __call__(self):
        epoch, place = divmod(self.place, len(self.questions))
        self.place += 1
        return self.questions[place], epoch > 0 and place == 0


def stream(pool, skip_retired=True):
    return FreshQuestions(pool, QUESTIONS, skip_retired)


def test_a_retired_question_leaves_with_the_next_epoch_and_not_before():
    pool, data = ExperiencePool(CONFIG), Data()
    fresh = stream(pool)
    assert fresh.take(2, (), data) == ["q0", "q1"]
    retire(pool, "q0", "q3")
    assert fresh.take(10, (), data) == QUESTIONS[2:]
    assert fresh.take(4, (), data) == ["q1", "q2", "q4", "q5"]
    retire(pool, "q7")
    assert fresh.take(6, (), data) == QUESTIONS[6:]
    assert fresh.take(9, (), data) == [q for q in QUESTIONS if q not in ("q0", "q3", "q7")]


def test_retired_questions_stay_where_the_key_says_so():
    pool, data = ExperiencePool(CONFIG), Data()
    fresh = stream(pool, skip_retired=False)
    retire(pool, *QUESTIONS)
    assert (
        fresh.take(12, (), data) + fresh.take(12, (), data) == QUESTIONS * 2 and not fresh.exhausted
    )


def test_an_epoch_that_could_not_fill_a_step_skips_no_more_than_the_one_before(caplog):
    pool, data = ExperiencePool(CONFIG), Data()
    fresh = stream(pool)
    retire(pool, *QUESTIONS[:8])
    fresh.take(12, (), data)
    assert fresh.take(4, (), data) == QUESTIONS[8:]
    assert "8 of 12 questions are retired, 8 of them are skipped" in caplog.text
    retire(pool, "q8")
    assert fresh.take(4, (), data) == QUESTIONS[8:]
    assert "9 of 12 questions are retired, 8 of them are skipped" in caplog.text


def test_a_step_that_needs_more_than_a_batch_gets_retired_questions_again():
    pool, data = ExperiencePool(CONFIG), Data()
    fresh = stream(pool)
    retire(pool, *QUESTIONS[:8])
    assert fresh.take(12, (), data) + fresh.take(4, (), data) == [*QUESTIONS, *QUESTIONS[8:]]
    assert fresh.take(2, set(QUESTIONS[8:]), data) == ["q0", "q1"]


def test_a_question_of_the_step_waits_for_the_next():
    fresh, data = stream(ExperiencePool(CONFIG)), Data()
    assert fresh.take(2, {"q0", "q2"}, data) == ["q1", "q3"] and fresh.deferred == ["q0", "q2"]
    assert fresh.take(3, {"q2"}, data) == ["q0", "q4", "q5"] and fresh.deferred == ["q2"]


def test_a_question_that_waits_already_is_not_deferred_again():
    fresh, data = stream(ExperiencePool(CONFIG)), Data()
    fresh.deferred = ["q2", "q3", "q2"]
    assert fresh.take(1, {"q2"}, data) == ["q3"] and fresh.deferred == ["q2"]


def test_nothing_is_left_when_every_question_of_the_data_is_retired():
    pool = ExperiencePool(CONFIG)
    fresh = stream(pool)
    retire(pool, *QUESTIONS[:-1], "not of the data")
    assert not fresh.exhausted
    retire(pool, QUESTIONS[-1])
    assert fresh.exhausted


# -- the trainer's methods with verl's stateful loader, no queue and no workers --------------------


class Rows(list):
    """A data set as the loader sees it."""

    def __init__(self):
        super().__init__(
            {"question_id": question, "raw_prompt": question} for question in QUESTIONS
        )


class Training:
    """Steps of the real trainer's methods; "rollouts" solve the easy questions wholly and the
    others by half.
    """

    def __init__(self, folder, resumed=None, workers=0):
        from torchdata.stateful_dataloader import StatefulDataLoader
        from verl.trainer.ppo.utils import create_rl_sampler
        from verl.utils.dataset.rl_dataset import collate_fn

        from exgrpo.mix_trainer_experience import ExperienceMixPPOTrainer

        self.folder, data = folder, Rows()
        sampler = create_rl_sampler(OmegaConf.create({"shuffle": True, "seed": 3}), data)
        self.trainer = trainer = object.__new__(ExperienceMixPPOTrainer)
        trainer.train_dataloader = StatefulDataLoader(
            data, 1, sampler=sampler, num_workers=workers, collate_fn=collate_fn
        )
        trainer.train_dataloader_it = None
        self.replay, self.disk, self.step = ExperienceReplay(CONFIG, QUESTIONS), PoolFolder(), 0
        if resumed is not None:
            self.step = resumed
            pool = self.disk.load(folder / f"pool{resumed}", CONFIG, resumed, IDENTITY)
            self.replay = ExperienceReplay(CONFIG, QUESTIONS, pool)
            self.replay.restore(read_manifest(folder / f"pool{resumed}")["replay_state"])
            trainer.train_dataloader.load_state_dict(
                torch.load(folder / f"data{resumed}.pt", weights_only=False)
            )

    def run(self, steps):
        drawn = []
        while self.step < steps:
            self.step += 1
            replayed, fresh, *_ = self.replay.draw(self.step, BATCH, self.trainer._next_question)
            groups = []
            for question in fresh + replayed:
                solved = 2 if question in EASY else 1
                rows = tuple(
                    Trajectory([self.step, n], [-1.0, -1.0], self.step) for n in range(solved)
                )
                groups.append(RolloutGroup(question, 2, rows))
            self.replay.observe(self.step, groups, {})
            state = json.loads(json.dumps(self.replay.state()))
            self.disk.save(
                self.replay.pool, self.folder / f"pool{self.step}", self.step, IDENTITY, state
            )
            torch.save(
                self.trainer.train_dataloader.state_dict(), self.folder / f"data{self.step}.pt"
            )
            drawn.append((fresh, replayed, state["skipped"]))
        return drawn


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_resumed_at_any_step_draws_what_the_unbroken_one_draws(tmp_path, workers):
    unbroken = Training(tmp_path, workers=workers).run(12)
    asked = [question for fresh, _, _ in unbroken for question in fresh]
    assert sorted(asked[:12]) == sorted(QUESTIONS)  # the first epoch asks all, ...
    assert not EASY & set(
        asked[24:]
    )  # ... the second those not yet retired when it began, the third no easy one
    skipped = [skipped for _, _, skipped in unbroken]
    assert skipped == sorted(skipped) and skipped[0] == 0 < skipped[5] and skipped[-1] == len(EASY)
    for step in (1, 3, 4, 5, 7, 11) if workers == 0 else (4, 7):
        assert Training(tmp_path, resumed=step, workers=workers).run(12) == unbroken[step:], step


def test_a_run_ends_with_the_step_that_retires_the_last_question(monkeypatch, caplog):
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    from exgrpo.mix_trainer_experience import ExperienceMixPPOTrainer

    saved, ended = [], []
    monkeypatch.setattr(PPOTrainerSync, "on_step_end", lambda self: ended.append(self.global_steps))
    monkeypatch.setattr(
        ExperienceMixPPOTrainer, "_save_checkpoint", lambda self: saved.append(self.global_steps)
    )
    pool = ExperiencePool(CONFIG)
    trainer = object.__new__(ExperienceMixPPOTrainer)
    trainer.experience, trainer.replay = CONFIG, ExperienceReplay(CONFIG, QUESTIONS, pool)
    trainer.config = SimpleNamespace(trainer=SimpleNamespace(save_freq=5))
    trainer.total_training_steps, trainer.global_steps = 100, 6
    trainer.on_step_end()
    assert (saved, ended, trainer.total_training_steps) == ([], [6], 100)
    retire(pool, *QUESTIONS)
    trainer.global_steps = 7
    trainer.on_step_end()
    assert (saved, ended, trainer.total_training_steps) == ([7], [6, 7], 7)
    assert "step 7: every question of the data is retired, training ends here" in caplog.text


def test_a_run_that_ended_so_takes_no_further_step_when_its_command_is_given_again(monkeypatch):
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    from exgrpo.mix_trainer_experience import ExperienceMixPPOTrainer
    from exgrpo.on_verl.old_checkpoints import Rotation
    from exgrpo.on_verl.saved_run import SavedRun

    monkeypatch.setattr(
        PPOTrainerSync, "_load_checkpoint", lambda self: setattr(self, "global_steps", 7)
    )
    pool = ExperiencePool(CONFIG)
    trainer = object.__new__(ExperienceMixPPOTrainer)
    trainer.experience, trainer.replay = CONFIG, ExperienceReplay(CONFIG, QUESTIONS, pool)
    trainer.total_training_steps, trainer.saved_run = (
        100,
        SavedRun(7, {}, {}, PoolFolder(), Rotation(Path(), None)),
    )
    trainer.in_flight = InFlight()
    trainer._load_checkpoint()
    assert trainer.total_training_steps == 100
    retire(pool, *QUESTIONS)
    trainer._load_checkpoint()
    assert trainer.total_training_steps == 7


def test_the_order_of_retirement_survives_a_save(tmp_path):
    pool = ExperiencePool(CONFIG)
    order = np.random.default_rng(0).permutation(QUESTIONS).tolist()
    retire(pool, *order)
    PoolFolder().save(pool, tmp_path / "pool", 1, IDENTITY)
    assert PoolFolder().load(tmp_path / "pool", CONFIG, 1, IDENTITY).retired == order
