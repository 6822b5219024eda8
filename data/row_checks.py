"""What a training would find out about rows later: how long their prompts are in tokens, and which
answers its reward does not accept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from exgrpo.math_verify_reward import compute_score
from exgrpo.prompts import load_tokenizer, render, small_files, token_count
from exgrpo_tools.reward_option import Reward

SHOWN = 3
JUDGED = 2_000  # answers, spread over all rows: some ten seconds


def lengths(prompts: Sequence[list[dict[str, Any]]], model: str, limit: int) -> str:
    """A line on the prompts' tokens, and on those above `limit`, which a training drops.

    Raises:
        ValueError: no such tokenizer, it has no chat template, or that fails on a prompt.
    """
    folder = small_files(model)
    if folder is None:
        raise ValueError(f"--tokenizer={model}: no such folder, or model of the hub")
    tokenizer = load_tokenizer(Path(folder))
    if tokenizer.chat_template is None:
        raise ValueError(f"--tokenizer={model}: has no chat template, which makes the prompts")
    counts = []
    for row, messages in enumerate(tqdm(prompts, desc="tokens", unit="row", disable=None)):
        try:
            counts.append(token_count(tokenizer, render(tokenizer, messages)))
        except Exception as error:  # a template may raise any error
            why = " ".join(str(error).split())[:200]
            raise ValueError(
                f"--tokenizer={model}: its chat template fails on row {row} of the output ({why})"
            ) from error
    ordered = sorted(counts)
    long = sum(count > limit for count in counts)
    return (
        f"prompts in tokens: half up to {ordered[len(ordered) // 2]}, 95 % up to "
        f"{ordered[len(ordered) * 19 // 20]}, the longest {ordered[-1]}; {long} are longer than "
        f"data.max_prompt_length={limit}, and a training drops them"
    )


def unaccepted(rows: Sequence[Mapping[str, Any]], reward: Reward) -> str:
    """A line on the answers that the reward does not accept as the response to themselves."""
    stride = -(-len(rows) // JUDGED)
    judged = range(0, len(rows), stride)
    wrong = []
    for row in tqdm(judged, desc="answers", unit="row", disable=None):
        if not _accepts(reward, rows[row]):
            wrong.append((row, rows[row]["reward_model"]["ground_truth"]))
    if not wrong:
        return f"answers: {reward.name} takes each of {len(judged)} as its own response"
    shown = "; ".join(f"row {row} {str(gold)[:60]!r}" for row, gold in wrong[:SHOWN])
    return (
        f"answers: {reward.name} does not take {len(wrong)} of {len(judged)} as their own "
        f"response: no rollout can be right there ({shown}); --reward judges as another would"
    )


def _accepts(reward: Reward, row: Mapping[str, Any]) -> bool:
    gold = row["reward_model"]["ground_truth"]
    if reward.is_ours:
        judged = compute_score("", boxed(gold), gold, require_think=False, grader=reward.name)
        return bool(judged["score"])
    handed = {"data_source": row["data_source"], "ground_truth": gold}
    scores = [
        reward.score(text, {**handed, "extra_info": dict(row["extra_info"])})[0]
        for text in (boxed(gold), "")
    ]
    return scores[0] > scores[1]


def boxed(gold: str | Sequence[str]) -> str:
    """A response that is the gold, the first of several."""
    return f"The answer is \\boxed{{{gold if isinstance(gold, str) else gold[0]}}}."
