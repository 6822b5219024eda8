"""ExGRPO in TRL's GRPOTrainer: the quickstart's task on a CPU, 20 steps in about a minute.

    bash exp_scripts/setup_cpu.sh requirements-cpu-trl.txt
    python exp_scripts/trl_replay.py [--steps 20] [--questions 8] [--seed 0] [--off]

A group that replays holds one recorded trajectory and K - 1 fresh ones. Three hooks are all of it, none private:
`rollout_func` asks replayed questions beside fresh ones and hands out recorded tokens with their log-probs; the reward
function puts what was generated into the buffer; `compute_loss`, which transformers documents for subclasses, takes the
mixed-policy loss, since no setting of TRL's own knows replayed rows. Left out: several processes, evaluation by the
trainer, and more than one update for each generated batch. `--off` is plain GRPO through the same program.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "quickstart")]
K, LONGEST, RATE = 8, 48, 5e-5  # rollouts a question, tokens of a response, learning rate: the quickstart's


def arguments() -> argparse.Namespace:
    """The command line; one line and exit code 2 for what cannot be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    limits = {"steps": (20, 1), "questions": (8, 2), "seed": (0, 0)}
    for name, (default, _) in limits.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--off", action="store_true", help="no replay")
    options = parser.parse_args()
    found = {name: getattr(options, name) for name in limits}
    wrong = [f"{name}={found[name]}: must be at least {low}" for name, (_, low) in limits.items() if found[name] < low]
    if not importlib.util.find_spec("trl"):
        wrong.append("trl is not installed: bash exp_scripts/setup_cpu.sh requirements-cpu-trl.txt")
    if wrong:
        print(f"trl_replay.py: {wrong[0]}", file=sys.stderr)
        raise SystemExit(2)
    return options


if __name__ == "__main__":
    OPTIONS = arguments()  # before torch and TRL are imported
os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}

import tasks  # noqa: E402
import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from torch.nn.utils.rnn import pad_sequence  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback  # noqa: E402
from transformers.utils import logging  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

from exgrpo import DifficultyBucketer, ReplayBatch, SelectiveReplay, TrajectoryBuffer, compute_entropy  # noqa: E402
from exgrpo.loss_settings import LossSettings  # noqa: E402
from exgrpo.mix_core_alg import mixed_token_losses  # noqa: E402


def logits_and_log_probs(model: Any, prompts: Any, responses: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, T, V] and [B, T] of responses (ids, mask), padded right, to prompts (ids, mask), padded left."""
    ids, mask = (torch.cat(pair, dim=1) for pair in zip(prompts, responses, strict=True))
    length = responses[0].shape[1]
    logits = model(input_ids=ids, attention_mask=mask).logits[:, -length - 1 : -1]
    return logits, logits.log_softmax(dim=-1).gather(2, responses[0][..., None])[..., 0]


def padded(rows: Sequence[Any], side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask [B, longest]."""
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    masks = [torch.ones_like(tensor) for tensor in tensors]
    return pad_sequence(tensors, True, 0, side), pad_sequence(masks, True, 0, side)


class Replay:
    """TRL's `rollout_func` and reward function, over one buffer."""

    def __init__(self, tokenizer: Any, seed: int, off: bool) -> None:
        # The latest groups of a question say how difficult it is, as in the paper.
        self.buffer = TrajectoryBuffer(bucketer=DifficultyBucketer(window_size=K), difficulty_tiers=K - 1, seed=seed)
        self.policy = SelectiveReplay(replay_probability=0.0 if off else 1.0, medium_difficulty_range=(0.05, 0.95))
        self.tokenizer = tokenizer
        self.waiting: deque[str] = deque()  # questions TRL has dealt and whose place a replayed one has taken
        self.replayed = 0
        self.fresh_reward = 0.0

    def rollout(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """K rows for each question. TRL's extra fields: what was asked, and what the buffer has to know of each row."""
        self.waiting.extend(prompts[::K])
        groups, model = len(prompts) // K, trainer.accelerator.unwrap_model(trainer.model)
        self.buffer.policy_snapshot = trainer.state.global_step
        batch = self.policy.choose(self.buffer, groups // 2, lambda candidates: self.entropies(model, candidates))
        replayed = batch.prompts if batch else []
        self.replayed = len(replayed)
        fresh = self.next_fresh(groups - len(replayed), replayed)
        asked = [prompt for prompt in fresh for _ in range(K)] + [prompt for prompt in replayed for _ in range(K - 1)]
        rows = self.generate(model, asked)
        for prompt, tokens, log_probs in zip(replayed, batch.tokens, batch.log_probs, strict=True) if batch else []:
            rows.append({"asked": prompt, "tokens": tokens.tolist(), "logprobs": log_probs.tolist(), "recorded": None})
        # To TRL, K rows in succession are a group.
        rows.sort(key=lambda row: (fresh + replayed).index(row["asked"]))
        return {
            "prompt_ids": self.tokenizer([row["asked"] for row in rows])["input_ids"],
            "completion_ids": [row["tokens"] for row in rows],
            "logprobs": [row["logprobs"] for row in rows],
            "asked": [row["asked"] for row in rows],
            "recorded": [row["recorded"] for row in rows],
        }

    def next_fresh(self, count: int, replayed: list[str]) -> list[str]:
        """The questions that have waited longest; one that is replayed in this step goes on waiting."""
        fresh = list(dict.fromkeys(prompt for prompt in self.waiting if prompt not in replayed))[:count]
        for prompt in fresh:
            self.waiting.remove(prompt)
        return fresh

    @torch.no_grad()
    def generate(self, model: Any, asked: list[str]) -> list[dict[str, Any]]:
        """A sampled response to each. NaN for log-probs marks a fresh row: it is this step's own."""
        ids, mask = padded(self.tokenizer(asked)["input_ids"], "left")
        sampled = model.generate(
            input_ids=ids, attention_mask=mask, do_sample=True, top_k=0, top_p=1.0, max_new_tokens=LONGEST
        )[:, ids.shape[1] :]
        ended = (sampled == self.tokenizer.eos_token_id).int()
        kept = (ended.cumsum(dim=1) - ended == 0).long()  # up to the first end of the text, which belongs to it
        logits, log_probs = logits_and_log_probs(model, (ids, mask), (sampled, kept))
        entropies = compute_entropy(logits, kept).tolist()
        rows = []
        for row, prompt in enumerate(asked):
            tokens, past = sampled[row, kept[row].bool()].tolist(), log_probs[row, kept[row].bool()].tolist()
            recorded = {"tokens": tokens, "log_probs": past, "entropy": entropies[row]}
            rows.append({"asked": prompt, "tokens": tokens, "logprobs": [nan] * len(tokens), "recorded": recorded})
        return rows

    @torch.no_grad()
    def entropies(self, model: Any, candidates: ReplayBatch) -> list[float]:
        """Mean token entropies under the policy of now, which choose among a question's trajectories (section 3.2)."""
        prompts = padded(self.tokenizer(candidates.prompts)["input_ids"], "left")
        responses = padded(candidates.tokens, "right")
        logits, _ = logits_and_log_probs(model, prompts, responses)
        return compute_entropy(logits, responses[1]).tolist()

    def reward(self, completions: list[str], asked: list[str], recorded: list[Any], **_: Any) -> list[float]:
        """1 for the right sum in a box, else 0. What is fresh goes into the buffer, failures included."""
        rewards = [right(prompt, completion) for prompt, completion in zip(asked, completions, strict=True)]
        fresh = [row for row in range(len(asked)) if recorded[row] is not None]
        self.fresh_reward = sum(rewards[row] for row in fresh) / len(fresh)
        for row in fresh:
            texts = {"prompt": asked[row], "rollout": completions[row]}
            self.buffer.add(texts | {"reward": rewards[row], "is_correct": rewards[row] == 1} | recorded[row])
        return rewards


def right(prompt: str, completion: str) -> float:
    """1 if the last box holds the answer."""
    boxes = re.findall(r"\\boxed\{(\d+)\}", completion)
    return float(bool(boxes) and int(boxes[-1]) == tasks.answer(prompt.strip()))


class ReplayTrainer(GRPOTrainer):
    """GRPOTrainer with the mixed-policy loss (equation 4) in the place of its own."""

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Token losses over rows and the longest response; a row whose log-probs are recorded is a replayed one."""
        prompts, responses = ((inputs[f"{name}_ids"], inputs[f"{name}_mask"]) for name in ("prompt", "completion"))
        _, log_prob = logits_and_log_probs(model, prompts, responses)
        recorded = inputs["sampling_per_token_logps"]
        fresh = recorded.isnan()
        old = torch.where(fresh, log_prob.detach(), recorded)
        advantages = inputs["advantages"][:, None].expand_as(log_prob)
        losses, _ = mixed_token_losses(log_prob, old, advantages, ~fresh[:, 0], responses[1], LossSettings())
        return losses.sum() / (len(losses) * LONGEST)


class Line(TrainerCallback):
    """Prints a line a step."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if logs and "reward" in logs:
            replay = self.replay
            print(
                f"step {state.global_step:3d}  reward {logs['reward']:.3f}  fresh {replay.fresh_reward:.3f}  "
                f"replayed {replay.replayed}  pool {len(replay.buffer)}",
                flush=True,
            )


def accuracy(replay: Replay, model: Any, questions: list[str]) -> float:
    """Share of right answers, one sampled for each question."""
    rows = replay.generate(model, [f"{question}\n" for question in questions])
    texts = replay.tokenizer.batch_decode([row["tokens"] for row in rows], skip_special_tokens=True)
    return sum(right(row["asked"], text) for row, text in zip(rows, texts, strict=True)) / len(rows)


def main(options: argparse.Namespace) -> None:
    """Train, with the accuracy on held-out questions before and after."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(options.seed)
    split, base = tasks.split_questions(), HERE / "quickstart" / "base_model"
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    replay = Replay(tokenizer, options.seed, options.off)
    print(f"before: accuracy {accuracy(replay, model, split['test']):.3f} on {len(split['test'])} held-out questions")
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            folder,
            max_steps=options.steps,
            per_device_train_batch_size=options.questions * K,
            num_generations=K,
            max_completion_length=LONGEST,
            learning_rate=RATE,
            lr_scheduler_type="constant",
            scale_rewards="none",
            beta=0.0,
            seed=options.seed,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        data = Dataset.from_dict({"prompt": [f"{question}\n" for question in split["train"]]})
        trainer = ReplayTrainer(model, replay.reward, config, data, None, tokenizer, rollout_func=replay.rollout)
        trainer.add_callback(Line(replay))
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print(f"after: accuracy {accuracy(replay, model, split['test']):.3f}")


if __name__ == "__main__":
    main(OPTIONS)
