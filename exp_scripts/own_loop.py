"""Replay in a loop of your own: epochs on-policy, some of them followed by an update with replay.
Sorts two digits.
"""

import torch
from torch import Tensor, distributions, nn

from exgrpo import (
    SelectiveReplay,
    TrajectoryBuffer,
    compute_entropy,
    compute_grpo_loss,
    compute_importance_weights,
)
from exgrpo.console import in_one_line

K, ANSWERS = (
    8,
    {f"{first}{second}": sorted([first, second]) for first in range(5) for second in range(5)},
)


class Model(
    nn.Module
):  # a table of logits: prompts, two tokens, five digits; replay asks for `forward` alone
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(len(ANSWERS), 2, 5))

    def forward(self, prompts: list[str], tokens: list[Tensor]) -> Tensor:
        return self.policy(prompts).log_prob(torch.stack(tokens))

    def policy(self, prompts: list[str]) -> distributions.Categorical:
        return distributions.Categorical(
            logits=self.table[[[*ANSWERS].index(prompt) for prompt in prompts]]
        )

    def rollout(self, prompts: list[str]) -> list[dict]:
        policy, tokens = self.policy(prompts), self.policy(prompts).sample()
        columns = zip(
            prompts,
            map(str, tokens.tolist()),
            tokens,
            policy.log_prob(tokens),
            policy.logits,
            strict=True,
        )
        rows = [
            dict(zip(("prompt", "text", "tokens", "log_probs", "logits"), row, strict=True))
            for row in columns
        ]
        return [
            row | {"reward": float(row["tokens"].tolist() == ANSWERS[row["prompt"]])}
            for row in rows
        ]


def train(epochs: int, replay: SelectiveReplay) -> tuple[list[float], int]:
    """The mean reward of each epoch, and the number of updates with replay."""
    model, curve, replayed = Model(), [], 0
    optimizer = torch.optim.Adam(model.parameters(), lr=0.2)
    buffer = TrajectoryBuffer(max_size=2_000, difficulty_tiers=5, entropy_percentiles=[25, 50, 75])
    for turn in range(2 * epochs):
        if turn % 2 == 0:  # an epoch on-policy
            rollouts, weights = model.rollout([*ANSWERS] * K), None
            curve.append(sum(row["reward"] for row in rollouts) / len(rollouts))
        elif batch := replay.choose(
            buffer, size=8
        ):  # past successes join new groups of their questions
            rollouts = model.rollout(batch["prompts"] * (K - 1)) + batch["rollouts"]
            weights = compute_importance_weights(
                old_policy=buffer.policy_snapshot, current_policy=model, rollouts=rollouts
            )
            replayed += 1
        else:
            continue
        loss = compute_grpo_loss(rollouts, [row["reward"] for row in rollouts], weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for row in rollouts:
            outcome = {
                "reward": row["reward"],
                "is_correct": row["reward"] == 1,
                "entropy": compute_entropy(row),
            }
            buffer.add({"prompt": row["prompt"], "rollout": row, **outcome})
        buffer.policy_snapshot += 1
    return curve, replayed


if __name__ == "__main__":
    with in_one_line("own_loop.py"):
        print(train(epochs=40, replay=SelectiveReplay(replay_probability=0.5)))
