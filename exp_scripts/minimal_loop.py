"""ExGRPO (arXiv 2510.02245) on a transformers model and a CPU: no trainer, no Ray, no vLLM.

    python exp_scripts/minimal_loop.py [--output outputs/minimal_loop] [key=value ...]

Keys are those of the trainer, such as trainer.experience_ratio=0.25, trainer.experience=False for plain GRPO, or
policy_loss.off_policy_reshape=no_reshape, and those of `Loop`, such as loop.steps=60 or loop.seed=1. Model and
questions are the quickstart's: sums of five numbers. Read `train` and `experience_of` first: they
are the algorithm; loop_budget.py counts steps and deals questions.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from loop_budget import Loop, Progress, Rows, Task, deal, parts
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from exgrpo import ExperienceConfig, ExperienceReplay, RolloutGroup, Trajectory, compute_entropy, compute_grpo_loss
from exgrpo.experience.choice import View
from exgrpo.experience.replay import Draw
from exgrpo.loss_settings import LossSettings

QUICKSTART = Path(__file__).resolve().parent / "quickstart"
# keys of the trainer that this loop cannot honour, and why
REFUSED = {
    "exp_seed": "loop.seed seeds everything",
    "experience_import": "this loop starts with an empty pool",
    "exp_missing_log_probs": "every trajectory of this loop has its log-probs",
}


def objective(policy: Policy, rows: Rows, replay: ExperienceReplay, loss: LossSettings) -> tuple[Tensor, Any]:
    """The mixed-policy loss (equation 4) of a step's groups, and its metrics."""
    stored = [(group.question, rollout) for group in rows.stored for rollout in group.rollouts]
    now = policy.look([*zip(rows.asked, rows.rollouts, strict=True), *rows.past.items(), *stored])
    batch = {
        "log_prob": now.log_prob,
        "old_log_prob": now.past if replay.config.exp_is_correct else now.log_prob.detach(),
        "response_mask": now.mask,
        "group": [
            *rows.asked,
            *rows.past,
            *((group.step, group.question) for group in rows.stored for _ in group.rollouts),
        ],
        "is_replayed": torch.arange(len(now.log_prob)) >= len(rows.rollouts),
    }
    past = [*(trajectory.reward for trajectory in rows.past.values()), *(rollout.reward for _, rollout in stored)]
    rewards = torch.tensor([*rows.rewards, *past])
    return compute_grpo_loss(batch, rewards, length=policy.max_tokens, settings=loss)


def train(
    policy: Policy,
    task: Task,
    experience: ExperienceConfig,
    loss: LossSettings,
    loop: Loop,
    objective: Callable[[Policy, Rows, ExperienceReplay, LossSettings], tuple[Tensor, Any]] = objective,
    test: Callable[[Policy, Task], float | Mapping[str, float]] | None = None,
) -> Iterator[dict[str, float]]:
    """The algorithm, on the policy's model in place. Yields the metrics of each step, and of step 0 before any.

    Args:
        test: of the policy, one number or several by name; default: the accuracy of one answer a test question.
    """
    torch.manual_seed(loop.seed)
    rng = np.random.default_rng(loop.seed)
    replay = ExperienceReplay(experience, [*task.train, *task.later], rng=rng)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=loop.lr)
    progress = Progress(loop)
    questions = deal(task, rng, progress)
    yield {"step": 0, "generated": 0, **tested(policy, task, test)}
    while not progress.over:
        # 1. Questions: some of medium difficulty from the pool, the others fresh.
        step = progress.step + 1
        drawn = replay.draw(step, loop.questions, lambda: next(questions))
        rows, report = experience_of(policy, task, replay, drawn, step)

        # 4. One update on groups of one replayed and K - 1 fresh rollouts.
        for part in parts(rows, loop):
            value, metrics = objective(policy, part, replay, loss)
            optimizer.zero_grad()
            value.backward()
            torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
            optimizer.step()

        due = progress.advance(sum(map(len, rows.rollouts)))
        measured = {"generated": progress.generated, **report, "ratio_mean": float(metrics["replayed_ratio_mean"])}
        yield {"step": step, **measured, **(tested(policy, task, test) if due else {})}


def experience_of(
    policy: Policy, task: Task, replay: ExperienceReplay, drawn: Draw, step: int
) -> tuple[Rows, dict[str, float]]:
    """What a step trains on, and its metrics: rollouts, the trajectories that join them, and what the pool keeps."""
    config = replay.config
    # A replayed question gets K - 1 rollouts, a fresh one K.
    asked = [question for question in drawn.replayed for _ in range(config.rollout_n - 1)]
    asked += [question for question in drawn.fresh for _ in range(config.rollout_n)]
    rollouts = policy.sample(asked, step)
    rewards = [task.reward(q, policy.decode(rollout)) for q, rollout in zip(asked, rollouts, strict=True)]

    # 2. Trajectories: for each replayed question the one with the lowest entropy under the current policy; and, if
    # the keys say so, whole past groups, and a past success where every fresh rollout has failed.
    joined = [*drawn.replayed, *replay.rescuable(failed(asked, rewards, drawn.fresh, config))]
    choice = replay.choose(replay.candidates(joined), policy.views)
    stored = replay.admit(drawn.stored, policy.views)

    # 3. The pool observes the fresh rollouts, once enough of them are right (delayed start).
    rows = Rows(asked, rollouts, rewards, choice.trajectories, stored)
    noted = choice.metrics(step)
    pool = replay.observe(step, groups_of(rows, config.exp_success_threshold, drawn.replayed), noted)
    return rows, {
        "asked": len(set(asked)),
        "fresh_score": float(np.mean(rewards)),
        "entropy": float(np.mean([rollout.entropy for rollout in rollouts])),
        "replayed": len(choice.trajectories) + len(stored),
        "replay_age": float(np.mean([step - group.step for group in stored])) if stored else noted["replay_age"],
        "pool_trajectories": pool["pool_trajectories"],
        "retired_questions": pool["retired_questions"],
    }


def tested(policy: Policy, task: Task, test: Callable[..., Any] | None) -> dict[str, float]:
    found = accuracy(policy, task, task.test) if test is None else test(policy, task)
    return dict(found) if isinstance(found, Mapping) else {"test": found}


def failed(
    asked: Sequence[str], rewards: Sequence[float], questions: Sequence[str], experience: ExperienceConfig
) -> list[str]:
    """Those of the questions none of whose fresh rollouts is a success."""
    solved = {q for q, reward in zip(asked, rewards, strict=True) if reward > experience.exp_success_threshold}
    return [question for question in questions if question not in solved]


def groups_of(rows: Rows, threshold: float, replayed: Sequence[str]) -> list[RolloutGroup]:
    """What the fresh rows of a step say of each question; a reward above the threshold is a success."""
    groups = []
    for question in dict.fromkeys(rows.asked):
        mine = [row for row, other in enumerate(rows.asked) if other == question]
        rated = [(rows.rewards[row], replace(rows.rollouts[row], reward=rows.rewards[row])) for row in mine]
        solved = tuple(rollout for reward, rollout in rated if reward > threshold)
        others = tuple(rollout for reward, rollout in rated if not reward > threshold)
        joined = int(question in replayed and question in rows.past)
        rewards = tuple(reward for reward, _ in rated)
        groups.append(RolloutGroup(question, len(mine), solved, joined, failures=others, rewards=rewards))
    return groups


class Look(NamedTuple):
    """Values of each row's tokens under the current policy, [B, T]; T includes the prompts.

    Attributes:
        log_prob: with gradient.
        past: the recorded log-probs.
        entropy: in nats.
        mask: 1 at response tokens.
    """

    log_prob: Tensor
    past: Tensor
    entropy: Tensor
    mask: Tensor


class Policy:
    """A causal language model that samples trajectories and scores recorded ones."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_tokens: int) -> None:
        self.model, self.tokenizer, self.max_tokens = model, tokenizer, max_tokens

    def encode(self, question: str) -> list[int]:
        """The prompt's tokens, by the model's chat template."""
        message = [{"role": "user", "content": question}]
        return self.tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True)["input_ids"]

    @torch.no_grad()
    def sample(self, questions: Sequence[str], step: int) -> list[Trajectory]:
        """One sampled response per question, with its log-probs and its mean entropy."""
        heads = [torch.tensor(self.encode(question)) for question in questions]
        heads_BP = pad_sequence(heads, True, self.tokenizer.pad_token_id, padding_side="left")
        seen_BP = pad_sequence([torch.ones_like(head) for head in heads], True, padding_side="left")
        sampling = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
        limits = {"max_new_tokens": self.max_tokens, "output_logits": True, "return_dict_in_generate": True}
        output = self.model.generate(heads_BP, attention_mask=seen_BP, **sampling, **limits)
        tokens_BT, logits_BTV = output.sequences[:, heads_BP.shape[1] :], torch.stack(output.logits, dim=1)
        log_probs_BT = logits_BTV.log_softmax(-1).gather(-1, tokens_BT[..., None])[..., 0]
        ends_BT = tokens_BT == self.tokenizer.eos_token_id
        mask_BT = ends_BT.cumsum(1) - ends_BT.long() == 0  # the response, including its end token
        entropies_B, lengths_B = compute_entropy(logits_BTV, mask_BT), mask_BT.sum(1)
        rows = zip(tokens_BT.numpy(), log_probs_BT.numpy(), lengths_B.tolist(), entropies_B.tolist(), strict=True)
        return [Trajectory(tokens[:n], log_probs[:n], step, entropy) for tokens, log_probs, n, entropy in rows]

    def decode(self, trajectory: Trajectory) -> str:
        return self.tokenizer.decode(trajectory.tokens, skip_special_tokens=True)

    def look(self, rows: Sequence[tuple[str, Trajectory]]) -> Look:
        """Score these responses to these questions under the current policy."""
        heads = [self.encode(question) for question, _ in rows]
        tokens = [torch.tensor(head + row.tokens.tolist()) for head, (_, row) in zip(heads, rows, strict=True)]
        tokens_BT = pad_sequence(tokens, True)
        past_BT, mask_BT = torch.zeros(2, len(rows), tokens_BT.shape[1] - 1)
        for row, (head, (_, trajectory)) in enumerate(zip(heads, rows, strict=True)):
            response = slice(len(head) - 1, len(head) - 1 + len(trajectory))
            past_BT[row, response], mask_BT[row, response] = torch.tensor(trajectory.log_probs), 1.0
        seen_BT = pad_sequence([torch.ones_like(row) for row in tokens], True)
        logits_BTV = self.model(tokens_BT, attention_mask=seen_BT).logits[:, :-1]
        log_prob_BT = logits_BTV.log_softmax(-1).gather(-1, tokens_BT[:, 1:, None])[..., 0]
        return Look(log_prob_BT, past_BT, compute_entropy(logits_BTV.detach()), mask_BT)

    @torch.no_grad()
    def views(self, rows: Sequence[tuple[str, Trajectory]]) -> list[View]:
        """Entropies and log-probs [T] of each response, in the form that replay requires."""
        now = self.look(rows)
        masks = now.mask.bool()
        return [View(now.entropy[row, mask].numpy(), now.log_prob[row, mask].numpy()) for row, mask in enumerate(masks)]


@torch.no_grad()
def accuracy(policy: Policy, task: Task, questions: Sequence[str]) -> float:
    """Share of right answers, with one sample per question."""
    replies = policy.sample(questions, 0)
    return float(np.mean([task.reward(q, policy.decode(reply)) for q, reply in zip(questions, replies, strict=True)]))


def five_numbers() -> tuple[Policy, Task]:
    """The quickstart's model and questions: sums of five numbers, the answer in a box."""
    sys.path.insert(0, str(QUICKSTART))
    from tasks import answer, split_questions

    questions = split_questions()
    model = AutoModelForCausalLM.from_pretrained(QUICKSTART / "base_model")
    policy = Policy(model.eval(), AutoTokenizer.from_pretrained(QUICKSTART / "base_model"), max_tokens=48)
    return policy, Task(
        questions["train"], questions["test"], lambda q, reply: reply.endswith(f"\\boxed{{{answer(q)}}}")
    )


def settings(overrides: Sequence[str]) -> tuple[ExperienceConfig, LossSettings, Loop]:
    """Parse group.key=value into the trainer's and the loop's settings; ValueError names a wrong one."""
    groups: dict[str, dict[str, str]] = {"trainer": {}, "policy_loss": {}, "loop": {}}
    for override in overrides:
        key, equals, value = override.partition("=")
        group, _, name = key.partition(".")
        if not equals or group not in groups:
            allowed = ", ".join(f"{known}.<key>=<value>" for known in groups)
            raise ValueError(f"{override}: must be one of {allowed}")
        if group == "trainer" and name in REFUSED:
            raise ValueError(f"{override}: {REFUSED[name]}")
        known = {"trainer": ExperienceConfig, "policy_loss": LossSettings, "loop": Loop}[group].__annotations__
        if name not in known:
            raise ValueError(f"{override}: no such key; known are {', '.join(known)}")
        groups[group][name] = value
    loop = Loop(**{name: _number(name, value) for name, value in groups["loop"].items()})
    experience = ExperienceConfig.from_mapping(groups["trainer"], loop.rollout_n)
    return experience, LossSettings.from_mapping(groups["policy_loss"]), loop


def _number(name: str, value: str) -> Any:
    kind = type(getattr(Loop, name))
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"loop.{name}={value}: must be an {kind.__name__}") from None


def main() -> None:
    """Train, print a line per step, write curve.png."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("outputs/minimal_loop"))
    parser.add_argument("overrides", nargs="*", help="key=value")
    arguments = parser.parse_intermixed_args()
    try:
        chosen = settings(arguments.overrides)
    except ValueError as error:
        parser.error(str(error))
    arguments.output.mkdir(parents=True, exist_ok=True)
    curve = []
    experience, loss, loop = chosen
    for row in train(*five_numbers(), experience, loss, loop):
        curve.append(row)
        print("  ".join(f"{name} {value:.6g}" for name, value in row.items()), flush=True)
    draw(curve, arguments.output / "curve.png")
    print(f"curve in {arguments.output / 'curve.png'}")


def draw(curve: Sequence[Mapping[str, float]], path: Path) -> None:
    """Draw the accuracy and the number of replayed groups over steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (top, bottom) = plt.subplots(2, 1, figsize=(7, 5), sharex=True, height_ratios=(3, 1))
    for name, label, style in (("fresh_score", "training questions", "-"), ("test", "test questions", "o-")):
        points = [(row["step"], row[name]) for row in curve if name in row]
        top.plot(*zip(*points, strict=True), style, label=label, markersize=4)
    top.set(ylabel="share of answers right", ylim=(0, 1))
    top.legend(frameon=False)
    bottom.bar([row["step"] for row in curve], [row.get("replayed", 0) for row in curve], color="tab:green")
    bottom.set(xlabel="step", ylabel="replayed")
    figure.savefig(path, dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    main()
