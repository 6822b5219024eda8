"""Judge the answers that an import brings, as the reward of the run will judge that run's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from exgrpo import full_grader
from exgrpo.experience.trajectory import Trajectory
from exgrpo.gold_answers import latex_forms
from exgrpo.math_verify_reward import (
    FULL,
    FULL_GRADER,
    THINK_END,
    Verifier,
    is_right,
    judged_part,
)
from exgrpo.prompts import opens_thought, render
from exgrpo.provenance import OURS, of_settings
from exgrpo_tools.inspect.questions import Question
from exgrpo_tools.inspect.rewards import LIMIT_S
from exgrpo_tools.reward_option import SUCCESS, Reward

_SHOWN = 60  # characters of an answer in a reason
Grade = Callable[
    [Question, str], tuple[float, str]
]  # question, response -> reward, rule that accepted it


class Unreadable(ValueError):
    """There is no verdict on an answer; the reason in one line."""


class Wrong(ValueError):
    """An answer is not right; the reason in one line."""


class Judge:
    """Judges responses as the training would: decoded from their tokens, against the gold of the
    training files.

    What follows </think> is judged if the model's prompts open a thought, as the default of the
    reward is.

    Args:
        reward: strict, full, or a reward function.
        questions: of the training files.
        tokenizer: of the model to be trained.

    Attributes:
        author: who judges, the rule left open.
        counts: right, wrong, unreadable -> number of answers.

    Raises:
        ValueError: the grader cannot be loaded, or no question has a gold; in one line.
    """

    def __init__(self, reward: Reward, questions: Mapping[str, Question], tokenizer: Any) -> None:
        grader = reward.name
        self._questions = questions
        self._tokenizer = tokenizer
        self._verifier = Verifier(*FULL_GRADER) if grader == FULL else Verifier()
        self.counts = Counter({"right": 0, "wrong": 0, "unreadable": 0})
        if not reward.is_ours:
            self.author = reward.author
            self._grade: Grade = _custom(reward)
            return
        if grader == FULL:
            full_grader.package()
        if not any(question.gold for question in questions.values()):
            raise ValueError(
                "--train_files: no question has a gold answer to judge by; --trust imports "
                "without judging"
            )
        think = _opens_thought(questions, tokenizer)
        settings = {"grader": grader, "require_think": think}
        self.author = of_settings(
            {"path": OURS, "name": "compute_score", "reward_kwargs": settings}
        )
        self._grade = _ours(grader, think, self._verifier)

    def judge(self, name: str, trajectory: Trajectory) -> Trajectory:
        """The trajectory of a right answer, with its reward and who judged it; else Wrong or
        Unreadable.
        """
        text = self._tokenizer.decode(trajectory.tokens.tolist(), skip_special_tokens=True)
        try:
            reward, rule = self._grade(self._questions[name], text)
        except (Wrong, Unreadable) as error:
            self.counts[type(error).__name__.lower()] += 1
            raise
        self.counts["right"] += 1
        author = str(self.author.by(rule))
        if trajectory.has_log_probs:
            return replace(trajectory, reward=reward, grader=author)
        entropy, mask = trajectory.entropy, trajectory.loss_mask
        return Trajectory.without_log_probs(
            trajectory.tokens, 0, entropy, mask, reward, trajectory.note, author
        )

    def close(self) -> None:
        """End the grader's process."""
        self._verifier.close()


def _ours(grader: str, think: bool, verifier: Verifier) -> Grade:
    def grade(question: Question, text: str) -> tuple[float, str]:
        golds = list(filter(None, map(latex_forms, question.golds)))
        if not golds:
            raise Unreadable("not judged: its question has no gold answer")
        part = judged_part(text, think)
        if not part:
            raise Unreadable(f"unreadable: {f'nothing after {THINK_END}' if think else 'empty'}")
        # each gold counts; the first that the answer agrees with ends it
        for forms in golds:
            reply = verifier.judge(forms, part, LIMIT_S, LIMIT_S)
            if reply is not None and is_right(reply, grader):
                break
        if reply is None:
            raise Unreadable(f"unreadable: no verdict within {LIMIT_S:g} s")
        if is_right(reply, grader):
            return 1.0, reply.get("rule") or ""
        if reply["extracted"] is None:
            raise Unreadable(f"unreadable: no answer in ...{part[-_SHOWN:]!r}")
        raise Wrong(
            f"wrong: gold {question.gold[:_SHOWN]!r}, answer {reply['extracted'][:_SHOWN]!r}"
        )

    return grade


def _custom(reward: Reward) -> Grade:
    """A reward function of the user's own."""

    def grade(question: Question, text: str) -> tuple[float, str]:
        try:
            score, fields = reward.score(text, question.reward_arguments)
        except ValueError as error:
            raise Unreadable(f"unreadable: {error}") from error
        if not 0 <= score <= 1:
            raise Unreadable(f"unreadable: reward {score}: must be between 0 and 1")
        if score <= SUCCESS:
            raise Wrong(f"wrong: reward {score:g}")
        return score, str(fields.get("rule") or "")

    return grade


def _opens_thought(questions: Mapping[str, Question], tokenizer: Any) -> bool:
    """Whether the first prompt that can be rendered ends in an opened thought."""
    if getattr(tokenizer, "chat_template", None) is None:
        return False
    for question in questions.values():
        try:
            return opens_thought(render(tokenizer, question.messages))
        except Exception:  # a template may raise any error
            continue
    return False
