"""When candidates are scored: while a step's rollouts are generated if the actor is idle then, otherwise after them.

It is idle, and awake, on a CPU in verl's synchronous mode: actor and rollout servers have weights of their own there,
the same from one update to the next, and generation leaves a part of the cores to others. On a GPU the rollout servers
have the actor's memory meanwhile; asynchronously it is not known which questions come back next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from omegaconf import DictConfig
from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder

from exgrpo.experience.choice import Candidate
from exgrpo.on_verl.candidate_scoring import CandidateScorer

Prompts = Mapping[str, torch.Tensor]  # question -> its prompt's tokens, int64 [P]


class Scoring:
    """The scorer of each step, and the thread that is ahead of it.

    Args:
        config: verl's.
        tokenizer: the actor's, with its chat template.
        synchronous: whether the step's prompts are drawn and generated within the step.
    """

    def __init__(self, config: DictConfig, tokenizer: Any, synchronous: bool) -> None:
        self.is_early = synchronous and config.trainer.device == "cpu"
        self._rollout = config.actor_rollout_ref.rollout
        options = config.data.get("apply_chat_template_kwargs") or {}
        self.builder = ContinuousTokenBuilder(tokenizer, chat_template_kwargs=dict(options))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="exgrpo-scoring")
        self._early: Future[CandidateScorer] | None = None

    def begin(self, workers: Any, candidates: Sequence[Candidate], messages: Callable[[str], Any]) -> None:
        """Score these while the caller waits for rollouts.

        Args:
            workers: the actor's worker group.
            messages: question -> its prompt as messages.
        """
        self._early = self._thread.submit(self._score, workers, candidates, messages) if candidates else None

    def scorer(self, workers: Any, prompts: Prompts) -> CandidateScorer:
        """The scorer of candidates after these prompts; it has scored what was begun.

        A prompt that an agent loop has rendered in another way than the chat template makes that worthless.
        """
        early, self._early = self._early, None
        if early is not None:
            scorer = early.result()
            shared = [question for question in prompts if question in scorer.prompts]
            if all(torch.equal(scorer.prompts[question], prompts[question]) for question in shared):
                scorer.prompts = {**scorer.prompts, **prompts}  # also those of groups to rescue, which failed only now
                return scorer
        return CandidateScorer.of(prompts, workers, self._rollout)

    def _score(self, workers: Any, candidates: Sequence[Candidate], messages: Callable[[str], Any]) -> CandidateScorer:
        prompts = {
            question: torch.tensor(self.builder.build_initial_tokens(list(messages(question))))
            for question in dict.fromkeys(question for question, _ in candidates)
        }
        scorer = CandidateScorer.of(prompts, workers, self._rollout)
        scorer(candidates)
        return scorer
