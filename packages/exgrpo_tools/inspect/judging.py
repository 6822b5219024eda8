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
    GRADERS,
    THINK_END,
    Verifier,
    is_right,
    judged_part,
)
from exgrpo.open_table import load_reference
from exgrpo.prompts import opens_thought, render
from exgrpo.provenance import OURS, of_settings
from exgrpo_tools.inspect.questions import Question
from exgrpo_tools.inspect.rewards import LIMIT_S

SUCCESS = 0.5  # a reward above it is a right answer, the default of trainer.exp_success_threshold
_ARGUMENTS = (
    "data_source",
    "solution_str",
    "ground_truth",
    "extra_info",
)  # of verl's reward functions
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
        grader: strict, full, or a reward function as path/file.py:name or pkg://module:name.
        questions: of the training files.
        tokenizer: of the model to be trained.

    Attributes:
        author: who judges, the rule left open.
        counts: right, wrong, unreadable -> number of answers.

    Raises:
        ValueError: the grader cannot be loaded, or no question has a gold; in one line.
    """

    def __init__(self, grader: str, questions: Mapping[str, Question], tokenizer: Any) -> None:
        self._questions = questions
        self._tokenizer = tokenizer
        self._verifier = Verifier(*FULL_GRADER) if grader == FULL else Verifier()
        self.counts = Counter({"right": 0, "wrong": 0, "unreadable": 0})
        if grader not in GRADERS:
            path, _, name = grader.rpartition(":")
            self.author = of_settings({"path": path, "name": name})
            self._grade: Grade = _custom(grader)
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
        forms = latex_forms(question.gold)
        if not forms:
            raise Unreadable("not judged: its question has no gold answer")
        part = judged_part(text, think)
        if not part:
            raise Unreadable(f"unreadable: {f'nothing after {THINK_END}' if think else 'empty'}")
        reply = verifier.judge(forms, part, LIMIT_S, LIMIT_S)
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


def _custom(reference: str) -> Grade:
    """A reward function of the user's own, called as verl calls it."""
    function = load_reference("--grader", reference, _ARGUMENTS)

    def grade(question: Question, text: str) -> tuple[float, str]:
        try:
            result = function(solution_str=text, **question.reward_arguments)
            fields = result if isinstance(result, dict) else {"score": result}
            reward, rule = float(fields["score"]), str(fields.get("rule") or "")
        except Exception as error:  # of another author
            raise Unreadable(
                f"unreadable: the reward function failed ({type(error).__name__}: {error})"
            ) from error
        if not 0 <= reward <= 1:
            raise Unreadable(f"unreadable: reward {reward}: must be between 0 and 1")
        if reward <= SUCCESS:
            raise Wrong(f"wrong: reward {reward:g}")
        return reward, rule

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
