"""ExGRPO in TRL's GRPOTrainer: the quickstart's task on a CPU, 20 steps in about a minute.

    bash exp_scripts/setup_cpu.sh requirements/cpu-trl.txt
    python exp_scripts/trl_replay.py [--steps 20] [--questions 8] [--seed 0] [--off]

A replayed group has one recorded trajectory and K - 1 fresh ones. Three public hooks are enough:
`rollout_func` asks replayed questions beside fresh ones and returns recorded tokens with their
log-probs; the reward function lets replay observe what was generated; `compute_loss`, which
transformers documents for subclasses, computes the mixed-policy loss, since TRL has no setting for
replayed rows. Not supported: several processes, evaluation by the trainer, and more than one update
per generated batch. `--off` is plain GRPO through the same program.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import tempfile
from collections import deque
from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
K, LONGEST, RATE = (
    8,
    48,
    5e-5,
)  # rollouts a question, tokens of a response, learning rate: the quickstart's


def arguments() -> argparse.Namespace:
    """The command line; a wrong value prints one line and exits with status 2."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    limits = {"steps": (20, 1), "questions": (8, 2), "seed": (0, 0)}
    for name, (default, _) in limits.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--off", action="store_true", help="no replay")
    options = parser.parse_args()
    for name, (_, low) in limits.items():
        if getattr(options, name) < low:
            parser.exit(
                2, f"trl_replay.py: {name}={getattr(options, name)}: must be at least {low}\n"
            )
    if not importlib.util.find_spec("trl"):
        message = "trl is not installed: bash exp_scripts/setup_cpu.sh requirements/cpu-trl.txt"
        parser.exit(2, f"trl_replay.py: {message}\n")
    return options


if __name__ == "__main__":
    OPTIONS = arguments()  # before torch and TRL are imported
os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from torch.nn.utils.rnn import pad_sequence  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback  # noqa: E402
from transformers.utils import logging  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

from exgrpo import ExperienceConfig, ExperienceReplay, RolloutGroup, Trajectory, compute_entropy  # noqa: E402
from exgrpo.console import in_one_line  # noqa: E402
from exgrpo.experience.trajectory_selector import TokenScores  # noqa: E402
from exgrpo.loss_settings import LossSettings  # noqa: E402
from exgrpo.mix_core_alg import mixed_token_losses  # noqa: E402

tasks = importlib.import_module("quickstart.tasks")


def logits_and_log_probs(
    model: Any, prompts: Any, responses: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, T, V] and [B, T] of responses (ids, mask), padded right, to prompts (ids, mask), padded
    left.
    """
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
    """TRL's `rollout_func` and reward function, over one ExperienceReplay."""

    def __init__(self, tokenizer: Any, questions: Sequence[str], seed: int, off: bool) -> None:
        # TRL shuffles the questions and does not say when an epoch begins, so retired questions
        # cannot be skipped.
        config = ExperienceConfig(
            K,
            experience=not off,
            experience_start_sratio=0,
            experience_skip_retired=False,
            exp_seed=seed,
        )
        self.replay = ExperienceReplay(config, questions)
        self.tokenizer = tokenizer
        self.waiting: deque[str] = (
            deque()
        )  # questions from TRL that were displaced by replayed ones
        self.choice_metrics: dict[str, float] = {}

    def rollout(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """K rows per question; the fields `asked` and `fresh`, None for a replayed row, are passed
        on to `reward`.
        """
        self.waiting.extend(prompts[::K])
        step, model = trainer.state.global_step + 1, trainer.accelerator.unwrap_model(trainer.model)
        drawn = self.replay.draw(step, len(prompts) // K, lambda: (self.waiting.popleft(), False))
        asked = [prompt for prompt in drawn.fresh for _ in range(K)]
        asked += [prompt for prompt in drawn.replayed for _ in range(K - 1)]
        generated = self.generate(model, asked, step)
        choice = self.replay.choose(
            self.replay.candidates(drawn.replayed), lambda candidates: self.views(model, candidates)
        )
        self.choice_metrics = choice.metrics(step)
        # (question, tokens, log-probs, the fresh trajectory's fields)
        rows = [
            (prompt, rollout.tokens.tolist(), [nan] * len(rollout), vars(rollout))
            for prompt, rollout in zip(asked, generated, strict=True)
        ]
        rows += [
            (prompt, past.tokens.tolist(), past.log_probs.tolist(), None)
            for prompt, past in choice.trajectories.items()
        ]
        # TRL takes K consecutive rows as a group
        rows.sort(key=lambda row: (drawn.fresh + drawn.replayed).index(row[0]))
        prompts, tokens, log_probs, fresh = map(list, zip(*rows, strict=True))
        prompt_ids = self.tokenizer(prompts)["input_ids"]
        fields = {"prompt_ids": prompt_ids, "completion_ids": tokens, "logprobs": log_probs}
        return fields | {"asked": prompts, "fresh": fresh}

    @torch.no_grad()
    def generate(self, model: Any, asked: Sequence[str], step: int) -> list[Trajectory]:
        """A sampled response to each question."""
        ids, mask = padded(self.tokenizer(list(asked))["input_ids"], "left")
        sampled = model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            top_p=1.0,
            max_new_tokens=LONGEST,
        )[:, ids.shape[1] :]
        ended = (sampled == self.tokenizer.eos_token_id).int()
        kept = ended.cumsum(dim=1) - ended == 0  # up to and including the first end token
        logits, log_probs = logits_and_log_probs(model, (ids, mask), (sampled, kept.long()))
        entropies = compute_entropy(logits, kept).tolist()
        return [
            Trajectory(
                sampled[row, kept[row]].numpy(),
                log_probs[row, kept[row]].numpy(),
                step,
                entropies[row],
            )
            for row in range(len(asked))
        ]

    @torch.no_grad()
    def views(self, model: Any, candidates: Sequence[tuple[str, Trajectory]]) -> list[TokenScores]:
        """Entropies and log-probs under the current policy, by which trajectories are chosen
        (section 4.1).
        """
        prompts = padded(self.tokenizer([prompt for prompt, _ in candidates])["input_ids"], "left")
        responses = padded([past.tokens for _, past in candidates], "right")
        logits, log_probs = logits_and_log_probs(model, prompts, responses)
        entropies, masks = compute_entropy(logits), responses[1].bool()
        return [
            TokenScores(entropies[row, mask].numpy(), log_probs[row, mask].numpy())
            for row, mask in enumerate(masks)
        ]

    def reward(
        self,
        completions: list[str],
        asked: list[str],
        fresh: list[Any],
        trainer_state: Any,
        **_: Any,
    ) -> list[float]:
        """1 for the right sum in a box, else 0. Replay observes the fresh rows; prints a line."""
        rewards = [
            right(prompt, completion) for prompt, completion in zip(asked, completions, strict=True)
        ]
        groups = []
        for prompt in dict.fromkeys(asked):
            rows = [row for row, question in enumerate(asked) if question == prompt]
            generated = [row for row in rows if fresh[row] is not None]
            solved = tuple(Trajectory(**fresh[row]) for row in generated if rewards[row])
            groups.append(
                RolloutGroup(prompt, len(generated), solved, replayed=len(rows) - len(generated))
            )
        step = trainer_state.global_step + 1
        metrics = self.replay.observe(step, groups, self.choice_metrics) | self.choice_metrics
        print(
            f"step {step:3d}  reward {sum(rewards) / len(rewards):.3f}  fresh "
            f"{metrics['fresh_score']:.3f}  "
            f"replayed {metrics['replayed_groups']:.0f}  pool {metrics['pool_trajectories']:.0f}",
            flush=True,
        )
        return rewards


def right(prompt: str, completion: str) -> float:
    """1 if the last box has the answer."""
    boxes = re.findall(r"\\boxed\{(\d+)\}", completion)
    return float(bool(boxes) and int(boxes[-1]) == tasks.answer(prompt.strip()))


class ReplayTrainer(GRPOTrainer):
    """GRPOTrainer with the mixed-policy loss (equation 4) instead of its own."""

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> torch.Tensor:
        """Token losses divided by rows and LONGEST; a row with recorded log-probs is a replayed
        one.
        """
        prompts, responses = (
            (inputs[f"{name}_ids"], inputs[f"{name}_mask"]) for name in ("prompt", "completion")
        )
        _, log_prob = logits_and_log_probs(model, prompts, responses)
        recorded = inputs["sampling_per_token_logps"]
        fresh = recorded.isnan()
        old = torch.where(fresh, log_prob.detach(), recorded)
        advantages = inputs["advantages"][:, None].expand_as(log_prob)
        losses, _ = mixed_token_losses(
            log_prob, old, advantages, ~fresh[:, 0], responses[1], LossSettings()
        )
        return losses.sum() / (len(losses) * LONGEST)


def accuracy(replay: Replay, model: Any, questions: list[str]) -> float:
    """Share of right answers, with one sample per question."""
    prompts = [f"{question}\n" for question in questions]
    rows = replay.generate(model, prompts, 0)
    texts = replay.tokenizer.batch_decode([row.tokens for row in rows], skip_special_tokens=True)
    return sum(map(right, prompts, texts)) / len(rows)


def main(options: argparse.Namespace) -> None:
    """Train, with the accuracy on held-out questions before and after."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(options.seed)
    split, base = tasks.split_questions(), HERE / "quickstart" / "base_model"
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    prompts = [f"{question}\n" for question in split["train"]]
    replay = Replay(tokenizer, prompts, options.seed, options.off)
    print(
        f"before: accuracy {accuracy(replay, model, split['test']):.3f} on "
        f"{len(split['test'])} held-out questions"
    )
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
        data = Dataset.from_dict({"prompt": prompts})
        trainer = ReplayTrainer(
            model, replay.reward, config, data, None, tokenizer, rollout_func=replay.rollout
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print(f"after: accuracy {accuracy(replay, model, split['test']):.3f}")


if __name__ == "__main__":
    with in_one_line("trl_replay.py"):
        main(OPTIONS)
