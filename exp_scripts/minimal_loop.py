"""ExGRPO (arXiv 2510.02245) on a transformers model and a CPU, in one file: no trainer, no Ray, no
vLLM.

    python exp_scripts/minimal_loop.py [--output outputs/minimal_loop] [key=value ...]

Keys are those of the trainer, such as trainer.experience_ratio=0.25, trainer.experience=False for
plain GRPO, or policy_loss.off_policy_reshape=no_reshape, and those of `Loop`, such as loop.steps=60
or loop.seed=1. Model and questions are the quickstart's: sums of five numbers. `train`,
`experience_of` and `objective` are the algorithm.
"""

from __future__ import annotations

import argparse
import importlib
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from exgrpo import (
    ExperienceConfig,
    ExperienceReplay,
    RolloutGroup,
    Trajectory,
    compute_entropy,
    compute_grpo_loss,
)
from exgrpo.console import in_one_line
from exgrpo.experience.experience_trainer_ops import Draw
from exgrpo.experience.replayed_group import ReplayedGroup
from exgrpo.experience.trajectory_selector import TokenScores
from exgrpo.loss_settings import LossSettings

HERE = Path(__file__).resolve().parent
# keys of the trainer that this loop cannot honour, and why
REFUSED = {
    "exp_seed": "loop.seed seeds everything",
    "experience_import": "this loop starts with an empty pool",
    "exp_missing_log_probs": "every trajectory of this loop has its log-probs",
}
Row = tuple[str, Trajectory]  # a question and one response to it, with its reward
Given: TypeAlias = npt.NDArray[np.int32] | None  # the tokens with which a response begins


@dataclass(frozen=True)
class Task:
    """Questions, each a prompt, and the verifiable reward of a response to one: 0 or 1."""

    train: Sequence[str]
    test: Sequence[str]
    reward: Callable[[str, str], float]


@dataclass(frozen=True)
class Loop:
    """Settings of the loop itself: questions a step, rollouts a question, steps between tests."""

    steps: int = 60
    questions: int = 16
    rollout_n: int = 8
    lr: float = 1e-4
    test_every: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.lr < math.inf:
            raise ValueError(f"loop.lr={self.lr}: must be at least 0")
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.default == 0 else 1
            if isinstance(value, int) and value < least:
                raise ValueError(f"loop.{field.name}={value}: must be at least {least}")


class Rows(NamedTuple):
    """What a step trains on."""

    fresh: Sequence[Row]
    past: Sequence[
        Row
    ]  # a stored success for each replayed question; it joins the question's fresh rows
    stored: Sequence[ReplayedGroup] = ()  # whole past groups, for which nothing is generated
    rehearsed: Sequence[Row] = ()  # stored successes that belong to no group


def train(
    policy: Policy, task: Task, experience: ExperienceConfig, loss: LossSettings, loop: Loop
) -> Iterator[dict[str, float]]:
    """The algorithm, on the policy's model in place. Yields the metrics of each step, and of step 0
    before any.
    """
    torch.manual_seed(loop.seed)
    rng = np.random.default_rng(loop.seed)
    replay = ExperienceReplay(experience, task.train, rng=rng)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=loop.lr)
    questions, generated = epochs(task.train, rng), 0
    yield {"step": 0, "generated": 0, "test": accuracy(policy, task)}
    for step in range(1, loop.steps + 1):
        # 1. Questions: some of medium difficulty from the pool, the others fresh.
        drawn = replay.draw(step, loop.questions, lambda: next(questions))
        rows, report = experience_of(policy, task, replay, drawn, step)  # 2. and 3.

        # 4. One update on groups of one replayed and K - 1 fresh rollouts.
        value, metrics = objective(policy, rows, replay, loss)
        update(policy, optimizer, value)

        generated += int(report.pop("tokens"))
        measured = {
            "generated": generated,
            **report,
            "ratio_mean": float(metrics["replayed_ratio_mean"]),
        }
        due = step % loop.test_every == 0 or step == loop.steps
        yield {"step": step, **measured, **({"test": accuracy(policy, task)} if due else {})}


def experience_of(
    policy: Policy, task: Task, replay: ExperienceReplay, drawn: Draw, step: int
) -> tuple[Rows, dict[str, float]]:
    """What a step trains on, and its metrics: rollouts, the trajectories that join them, and what
    the pool keeps.
    """
    config = replay.config
    # A replayed question gets K - 1 rollouts, a fresh one K.
    asked = [question for question in drawn.replayed for _ in range(config.rollout_n - 1)]
    asked += [question for question in drawn.fresh for _ in range(config.rollout_n)]
    # with exp_unit=prefix some of them go on from the beginning of a stored rollout
    begun = [one.tokens if (one := drawn.prefixes.get(q)) else None for q in asked]
    given = [begun] if drawn.prefixes else []
    sampled = zip(asked, policy.sample(asked, step, *given), strict=True)
    fresh = [
        (q, replace(rollout, reward=task.reward(q, policy.decode(rollout))))
        for q, rollout in sampled
    ]

    # 2. Trajectories: for each replayed question the one with the lowest entropy under the current
    # policy; and, if
    # the keys say so, whole past groups, some in place of fresh ones, and a past success where
    # every fresh rollout has failed.
    solved = {
        question for question, rollout in fresh if rollout.reward > config.exp_success_threshold
    }
    rescued = replay.rescuable([question for question in drawn.fresh if question not in solved])
    choice = replay.choose(replay.candidates([*drawn.replayed, *rescued]), policy.views)
    stand_ins = replay.stand_ins(rewards_of(fresh))
    stored = replay.admit([*drawn.stored, *stand_ins.values()], policy.views)
    replaced = [*stand_ins][: len(stored)]
    beside = replay.rehearse(drawn.rehearsed, policy.views)
    rows = Rows(fresh, [*choice.trajectories.items()], stored, [*beside.trajectories.items()])

    # 3. The pool observes the fresh rollouts, once enough of them are right (delayed start).
    noted = choice.metrics(step)
    pool = replay.observe(
        step, groups_of(rows, config.exp_success_threshold, drawn.replayed), noted
    )
    rows = rows._replace(fresh=[row for row in fresh if row[0] not in replaced])
    ages = [step - group.rollouts[0].step for group in rows.stored]
    return rows, {
        "tokens": sum(len(rollout.of_actions(rollout.tokens)) for _, rollout in fresh),
        "asked": len(set(asked)),
        "fresh_score": float(np.mean([rollout.reward for _, rollout in fresh])),
        "entropy": float(np.mean([rollout.entropy for _, rollout in fresh])),
        "replayed": len(rows.past) + len(rows.stored) + len(rows.rehearsed),
        "replay_age": float(np.mean(ages)) if ages else noted["replay_age"],
        "pool_trajectories": pool["pool_trajectories"],
        "retired_questions": pool["retired_questions"],
    }


def rewards_of(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Question -> the rewards of its rows."""
    rewards: dict[str, list[float]] = defaultdict(list)
    for question, rollout in rows:
        rewards[question].append(rollout.reward)
    return rewards


def groups_of(rows: Rows, threshold: float, replayed: Sequence[str]) -> list[RolloutGroup]:
    """What the fresh rows of a step say of each question; a reward above the threshold is a
    success.
    """
    joined = {
        question: trajectory.reward for question, trajectory in rows.past if question in replayed
    }
    rollouts: dict[str, list[Trajectory]] = defaultdict(list)
    for question, rollout in rows.fresh:
        rollouts[question].append(rollout)
    groups = []
    for question, mine in rollouts.items():
        solved = tuple(rollout for rollout in mine if rollout.reward > threshold)
        failures = tuple(rollout for rollout in mine if not rollout.reward > threshold)
        rewards = tuple(rollout.reward for rollout in mine)
        group = RolloutGroup(question, len(mine), solved, failures=failures, rewards=rewards)
        if question in joined:
            group = replace(group, replayed=1, replayed_reward=joined[question])
        if mine[0].loss_mask is not None:  # the prefix, which all of them continue
            group = replace(group, prefix=int(mine[0].loss_mask.argmax()))
        groups.append(group)
    return groups


def objective(
    policy: Policy, rows: Rows, replay: ExperienceReplay, loss: LossSettings
) -> tuple[Tensor, Any]:
    """The mixed-policy loss (equation 4) of a step's groups, and its metrics."""
    joined = [*rows.fresh, *rows.past]
    stored = [(group, rollout) for group in rows.stored for rollout in group.rollouts]
    every = [*joined, *((group.question, rollout) for group, rollout in stored), *rows.rehearsed]
    now = policy.look(every)
    batch = {
        "log_prob": now.log_prob,
        "old_log_prob": now.past if replay.config.exp_is_correct else now.log_prob.detach(),
        "response_mask": now.mask,
        "group": [
            *(question for question, _ in joined),
            *((group.rollouts[0].step, group.question) for group, _ in stored),
            *(("alone", question) for question, _ in rows.rehearsed),
        ],
        "is_replayed": torch.arange(len(every)) >= len(rows.fresh),
    }
    rewards = torch.tensor([rollout.reward for _, rollout in every])
    value = compute_grpo_loss(batch, rewards, length=policy.max_tokens, settings=loss)
    return value, value.metrics


def update(policy: Policy, optimizer: torch.optim.Optimizer, value: Tensor) -> None:
    optimizer.zero_grad()
    value.backward()
    torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
    optimizer.step()


def epochs(train: Sequence[str], rng: np.random.Generator) -> Iterator[tuple[str, bool]]:
    """The questions epoch after epoch, shuffled, and whether an epoch other than the first begins
    with one.
    """
    for epoch in range(sys.maxsize):
        for position, question in enumerate(rng.permutation(train).tolist()):
            yield question, epoch > 0 and position == 0


class Look(NamedTuple):
    """Values of each row's tokens under the current policy, [B, T]; T includes the prompts."""

    log_prob: Tensor  # with gradient
    past: Tensor  # the recorded log-probs
    entropy: Tensor  # in nats
    mask: Tensor  # 1 at response tokens


class Policy:
    """A causal language model that samples trajectories and scores recorded ones."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_tokens: int
    ) -> None:
        self.model, self.tokenizer, self.max_tokens = model, tokenizer, max_tokens

    def encode(self, question: str) -> list[int]:
        """The prompt's tokens, by the model's chat template."""
        message = [{"role": "user", "content": question}]
        return self.tokenizer.apply_chat_template(
            message, add_generation_prompt=True, return_dict=True
        )["input_ids"]

    @torch.no_grad()
    def sample(
        self, questions: Sequence[str], step: int, given: Sequence[Given] | None = None
    ) -> list[Trajectory]:
        """One sampled response per question, with its log-probs and its mean entropy.

        Args:
            given: for each question the tokens, int32 [P], with which its response begins, or None.
        """
        prefixes = given or [None] * len(questions)
        heads = self.heads(questions, prefixes)
        heads_BP = pad_sequence(heads, True, self.tokenizer.pad_token_id, padding_side="left")
        seen_BP = pad_sequence([torch.ones_like(head) for head in heads], True, padding_side="left")
        sampling = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
        limits = {
            "max_new_tokens": self.max_tokens,
            "output_logits": True,
            "return_dict_in_generate": True,
        }
        output = self.model.generate(heads_BP, attention_mask=seen_BP, **sampling, **limits)
        tokens_BT, logits_BTV = (
            output.sequences[:, heads_BP.shape[1] :],
            torch.stack(output.logits, dim=1),
        )
        log_probs_BT = logits_BTV.log_softmax(-1).gather(-1, tokens_BT[..., None])[..., 0]
        ends_BT = tokens_BT == self.tokenizer.eos_token_id
        mask_BT = ends_BT.cumsum(1) - ends_BT.long() == 0  # the response, including its end token
        entropies_B, lengths_B = compute_entropy(logits_BTV, mask_BT), mask_BT.sum(1)
        rows = zip(
            prefixes,
            tokens_BT.numpy(),
            log_probs_BT.numpy(),
            lengths_B.tolist(),
            entropies_B.tolist(),
            strict=True,
        )
        return [
            self.behind(prefix, Trajectory(tokens[:n], log_probs[:n], step, entropy))
            for prefix, tokens, log_probs, n, entropy in rows
        ]

    def heads(self, questions: Sequence[str], prefixes: Sequence[Given]) -> list[Tensor]:
        """What the model reads before it samples: prompt and prefix."""
        each = zip(questions, prefixes, strict=True)
        return [torch.tensor([*self.encode(q), *([] if p is None else p)]) for q, p in each]

    def behind(self, prefix: Given, sampled: Trajectory) -> Trajectory:
        """The whole response, the prefix masked; no longer than `max_tokens`."""
        if prefix is None:
            return sampled
        room = self.max_tokens - len(prefix)
        return Trajectory(
            np.concatenate([prefix, sampled.tokens[:room]]),
            np.concatenate([np.zeros(len(prefix)), sampled.log_probs[:room]]),
            sampled.step,
            sampled.entropy,
            np.arange(len(prefix) + len(sampled.tokens[:room])) >= len(prefix),
        )

    def decode(self, trajectory: Trajectory) -> str:
        return self.tokenizer.decode(trajectory.tokens, skip_special_tokens=True)

    def look(self, rows: Sequence[Row]) -> Look:
        """Score these responses to these questions under the current policy."""
        heads = [self.encode(question) for question, _ in rows]
        tokens = [
            torch.tensor(head + row.tokens.tolist())
            for head, (_, row) in zip(heads, rows, strict=True)
        ]
        tokens_BT = pad_sequence(tokens, True)
        past_BT, mask_BT = torch.zeros(2, len(rows), tokens_BT.shape[1] - 1)
        for row, (head, (_, trajectory)) in enumerate(zip(heads, rows, strict=True)):
            response = slice(len(head) - 1, len(head) - 1 + len(trajectory))
            past_BT[row, response] = torch.tensor(trajectory.log_probs)
            mask_BT[row, response] = own_tokens(trajectory)
        seen_BT = pad_sequence([torch.ones_like(row) for row in tokens], True)
        logits_BTV = self.model(tokens_BT, attention_mask=seen_BT).logits[:, :-1]
        log_prob_BT = logits_BTV.log_softmax(-1).gather(-1, tokens_BT[:, 1:, None])[..., 0]
        return Look(log_prob_BT, past_BT, compute_entropy(logits_BTV.detach()), mask_BT)

    @torch.no_grad()
    def views(self, rows: Sequence[Row]) -> list[TokenScores]:
        """Entropies and log-probs [T] of each response, in the form that replay requires."""
        now = self.look(rows)
        masks = now.mask.bool()
        return [
            TokenScores(now.entropy[row, mask].numpy(), now.log_prob[row, mask].numpy())
            for row, mask in enumerate(masks)
        ]


def own_tokens(trajectory: Trajectory) -> Tensor:
    """[T], 1 at the tokens that the policy sampled."""
    if trajectory.loss_mask is None:
        return torch.ones(len(trajectory))
    return torch.tensor(trajectory.loss_mask).float()


@torch.no_grad()
def accuracy(policy: Policy, task: Task) -> float:
    """Share of right answers to the test questions, with one sample each."""
    replies = map(policy.decode, policy.sample(task.test, 0))
    return float(
        np.mean(
            [
                task.reward(question, reply)
                for question, reply in zip(task.test, replies, strict=True)
            ]
        )
    )


def five_numbers() -> tuple[Policy, Task]:
    """The quickstart's model and questions: sums of five numbers, the answer in a box."""
    tasks = importlib.import_module("quickstart.tasks")
    base, questions = HERE / "quickstart" / "base_model", tasks.split_questions()
    policy = Policy(
        AutoModelForCausalLM.from_pretrained(base).eval(), AutoTokenizer.from_pretrained(base), 48
    )
    right = lambda question, reply: float(reply.endswith(f"\\boxed{{{tasks.answer(question)}}}"))  # noqa: E731
    return policy, Task(questions["train"], questions["test"], right)


def settings(
    overrides: Sequence[str], kind: type[Loop] = Loop
) -> tuple[ExperienceConfig, LossSettings, Any]:
    """Parse group.key=value into the trainer's and the loop's settings; ValueError names a wrong
    one.
    """
    loop_keys = {field.name: type(field.default) for field in fields(kind)}
    known = {
        "trainer": ExperienceConfig.meanings(),
        "policy_loss": LossSettings.__annotations__,
        "loop": loop_keys,
    }
    groups: dict[str, dict[str, Any]] = {group: {} for group in known}
    for override in overrides:
        key, equals, value = override.partition("=")
        group, _, name = key.partition(".")
        if not equals or group not in known:
            allowed = ", ".join(f"{each}.<key>=<value>" for each in known)
            raise ValueError(f"{override}: must be one of {allowed}")
        if group == "trainer" and name in REFUSED:
            raise ValueError(f"{override}: {REFUSED[name]}")
        if name not in known[group]:
            raise ValueError(f"{override}: no such key; known are {', '.join(known[group])}")
        try:
            groups[group][name] = loop_keys[name](value) if group == "loop" else value
        except ValueError:
            raise ValueError(f"{override}: must be an {loop_keys[name].__name__}") from None
    loop = kind(**groups["loop"])
    experience = ExperienceConfig.from_mapping(groups["trainer"], loop.rollout_n)
    return experience, LossSettings.from_mapping(groups["policy_loss"]), loop


def main() -> None:
    """Train, print a line per step, write curve.png."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("outputs/minimal_loop"))
    parser.add_argument("overrides", nargs="*", help="key=value")
    arguments = parser.parse_intermixed_args()
    try:
        experience, loss, loop = settings(arguments.overrides)
    except ValueError as error:
        parser.error(str(error))
    curve = []
    for row in train(*five_numbers(), experience, loss, loop):
        curve.append(row)
        print("  ".join(f"{name} {value:.6g}" for name, value in row.items()), flush=True)
    from curves import draw

    arguments.output.mkdir(parents=True, exist_ok=True)
    draw({"test questions": [curve]}, " ".join(arguments.overrides), arguments.output / "curve.png")
    print(f"curve in {arguments.output / 'curve.png'}")


if __name__ == "__main__":
    with in_one_line("minimal_loop.py"):
        main()
