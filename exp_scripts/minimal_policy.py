"""What `minimal_loop.py` trains: a small causal language model, its questions, and how it sees a trajectory now."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from exgrpo import Trajectory
from exgrpo.replay.tensors import compute_entropy

QUICKSTART = Path(__file__).resolve().parent / "quickstart"


@dataclass(frozen=True)
class Task:
    """Questions, each a prompt, and the verifiable reward of a response to one: 0 or 1."""

    train: Sequence[str]
    test: Sequence[str]
    reward: Callable[[str, str], float]


class Look(NamedTuple):
    """Rows under the policy of now.

    Attributes:
        log_prob: float[B, T], with gradient.
        past: float[B, T], the log-probs recorded with the rows.
        mask: float[B, T], 1 at response tokens.
        entropy: float[B], mean over the response, in nats.
    """

    log_prob: Tensor
    past: Tensor
    mask: Tensor
    entropy: Tensor


class Policy:
    """A causal language model that samples trajectories and tells how it sees them now."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_tokens: int) -> None:
        self.model, self.tokenizer, self.max_tokens = model, tokenizer, max_tokens

    def encode(self, question: str) -> list[int]:
        """The prompt's tokens, by the model's chat template."""
        message = [{"role": "user", "content": question}]
        return self.tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True)["input_ids"]

    @torch.no_grad()
    def sample(self, questions: Sequence[str], step: int) -> list[Trajectory]:
        """One response to each question, as sampled, with its log-probs and its mean entropy."""
        heads = [torch.tensor(self.encode(question)) for question in questions]
        heads_BP = pad_sequence(heads, True, self.tokenizer.pad_token_id, padding_side="left")
        seen_BP = pad_sequence([torch.ones_like(head) for head in heads], True, padding_side="left")
        sampling = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
        wanted = {"max_new_tokens": self.max_tokens, "output_logits": True, "return_dict_in_generate": True}
        output = self.model.generate(heads_BP, attention_mask=seen_BP, **sampling, **wanted)
        tokens_BT, logits_BTV = output.sequences[:, heads_BP.shape[1] :], torch.stack(output.logits, dim=1)
        log_probs_BT = logits_BTV.log_softmax(-1).gather(-1, tokens_BT[..., None])[..., 0]
        ends_BT = tokens_BT == self.tokenizer.eos_token_id
        mask_BT = ends_BT.cumsum(1) - ends_BT.long() == 0  # the response with its end token
        entropies_B, lengths_B = compute_entropy(logits_BTV, mask_BT), mask_BT.sum(1)
        rows = zip(tokens_BT.numpy(), log_probs_BT.numpy(), lengths_B.tolist(), entropies_B.tolist(), strict=True)
        return [Trajectory(tokens[:n], log_probs[:n], step, entropy) for tokens, log_probs, n, entropy in rows]

    def decode(self, trajectory: Trajectory) -> str:
        return self.tokenizer.decode(trajectory.tokens, skip_special_tokens=True)

    def look(self, rows: Sequence[tuple[str, Trajectory]]) -> Look:
        """How the policy sees these responses to these questions now; T counts the prompts too."""
        heads = [self.encode(question) for question, _ in rows]
        tokens = [torch.tensor(head + one.tokens.tolist()) for head, (_, one) in zip(heads, rows, strict=True)]
        tokens_BT = pad_sequence(tokens, True)
        past_BT, mask_BT = torch.zeros(2, len(rows), tokens_BT.shape[1] - 1)
        for row, (head, (_, one)) in enumerate(zip(heads, rows, strict=True)):
            response = slice(len(head) - 1, len(head) - 1 + len(one))
            past_BT[row, response], mask_BT[row, response] = torch.tensor(one.log_probs), 1.0
        seen_BT = pad_sequence([torch.ones_like(row) for row in tokens], True)
        logits_BTV = self.model(tokens_BT, attention_mask=seen_BT).logits[:, :-1]
        log_prob_BT = logits_BTV.log_softmax(-1).gather(-1, tokens_BT[:, 1:, None])[..., 0]
        return Look(log_prob_BT, past_BT, mask_BT, compute_entropy(logits_BTV.detach(), mask_BT))


@torch.no_grad()
def accuracy(policy: Policy, task: Task, questions: Sequence[str]) -> float:
    """Share of sampled answers, one a question, that are right."""
    replies = policy.sample(questions, 0)
    return float(np.mean([task.reward(q, policy.decode(one)) for q, one in zip(questions, replies, strict=True)]))


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
