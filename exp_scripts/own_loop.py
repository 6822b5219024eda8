"""Replay in a loop of your own: epochs on-policy, some followed by an update with replay.
Sorts two digits.
"""

import argparse

import torch
from torch import Tensor, distributions, nn

import exgrpo
from exgrpo.console import in_one_line

K = 8
ANSWERS = {f"{a}{b}": sorted([a, b]) for a in range(5) for b in range(5)}


class Model(nn.Module):
    """A table of logits: prompts, two tokens, five digits; replay asks for `forward` alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(len(ANSWERS), 2, 5))

    def forward(self, prompts: list[str], tokens: list[Tensor]) -> Tensor:
        return self.policy(prompts).log_prob(torch.stack(tokens))

    def policy(self, prompts: list[str]) -> distributions.Categorical:
        rows = [[*ANSWERS].index(prompt) for prompt in prompts]
        return distributions.Categorical(logits=self.table[rows])

    def rollout(self, prompts: list[str]) -> list[dict]:
        policy = self.policy(prompts)
        tokens = policy.sample()
        rows = []
        for row in zip(prompts, tokens, policy.log_prob(tokens), policy.logits, strict=True):
            rows.append(dict(zip(("prompt", "tokens", "log_probs", "logits"), row, strict=True)))
            digits = rows[-1]["tokens"].tolist()
            rows[-1] |= {"text": str(digits), "reward": float(digits == ANSWERS[row[0]])}
        return rows


def train(epochs: int, replay: exgrpo.SelectiveReplay) -> tuple[list[float], int]:
    """The mean reward of each epoch, and the number of updates with replay."""
    model, curve, replayed = Model(), [], 0
    optimizer = torch.optim.Adam(model.parameters(), lr=0.2)
    buffer = exgrpo.TrajectoryBuffer(
        max_size=2_000, difficulty_tiers=5, entropy_percentiles=[25, 50, 75]
    )
    for turn in range(2 * epochs):
        if turn % 2 == 0:  # an epoch on-policy
            rollouts, weights = model.rollout([*ANSWERS] * K), None
            curve.append(sum(row["reward"] for row in rollouts) / len(rollouts))
        elif batch := replay.choose(buffer, size=8):  # past successes join new groups
            rollouts = model.rollout(batch["prompts"] * (K - 1)) + batch["rollouts"]
            weights = exgrpo.compute_importance_weights(
                old_policy=buffer.policy_snapshot, current_policy=model, rollouts=rollouts
            )
            replayed += 1
        else:
            continue
        rewards = [row["reward"] for row in rollouts]
        loss = exgrpo.compute_grpo_loss(rollouts, rewards, weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for row, reward in zip(rollouts, rewards, strict=True):
            entry = {
                "prompt": row["prompt"],
                "rollout": row,
                "entropy": exgrpo.compute_entropy(row),
            }
            buffer.add({**entry, "reward": reward, "is_correct": reward == 1})
        buffer.policy_snapshot += 1
    return curve, replayed


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    with in_one_line("own_loop.py"):
        print(train(epochs=40, replay=exgrpo.SelectiveReplay(replay_probability=0.5)))
