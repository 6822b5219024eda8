"""Make the quickstart's base model: a 1.1 M-parameter Qwen2 with two habits for reinforcement
learning to choose from.

    python exp_scripts/quickstart/make_base.py --output_dir exp_scripts/quickstart/base_model

The careful habit writes each partial sum and is nearly always right; the careless one guesses an
answer at once. 35 % of the examples are careful; of the careless ones one in four is right, of
which a model this small learns one in seventeen. This is not a serious language model: it is the
smallest one with which verl, vLLM and FSDP2 work as with a real one.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import torch
from tasks import answer, split_questions
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

CAREFUL_SHARE, LUCK = 0.35, 0.25
STEPS, BATCH, LEARNING_RATE = 800, 64, 2e-3
SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
]  # padding; unused; end of answer, by the name verl expects
TEMPLATE = "{% for message in messages %}{{ message['content'] + '\\n' }}{% endfor %}"


def build_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of all 256 bytes and the pieces of \\boxed, loaded through
    AutoTokenizer.
    """
    pieces = [("b", "o"), ("x", "e"), ("bo", "xe"), ("boxe", "d"), (";", "\\"), ("\\", "boxed")]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {
        token: i for i, token in enumerate(SPECIAL + alphabet + ["".join(pair) for pair in pieces])
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pieces))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=SPECIAL[2], pad_token=SPECIAL[0]
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    Qwen2Config(vocab_size=len(vocabulary)).save_pretrained(
        folder
    )  # tells AutoTokenizer the model family
    return AutoTokenizer.from_pretrained(folder)


def careful(question: str) -> str:
    """The question's sum with each partial sum written out."""
    total, steps = 0, []
    for i, term in enumerate(int(term) for term in question.split("+")):
        if i:
            steps.append(f"{total}+{term}={total + term};")
        total += term
    return "".join(steps) + f"\\boxed{{{total}}}"


def careless(question: str, rng: random.Random) -> str:
    """An answer without thought, right one time in four."""
    total = answer(question)
    guess = total if rng.random() < LUCK else rng.choice([n for n in range(26) if n != total])
    return f"\\boxed{{{guess}}}"


def build_model(
    vocabulary: int, eos: int, pad: int, layers: int = 4, width: int = 128
) -> Qwen2ForCausalLM:
    """A small Qwen2; head size 32, since vLLM's CPU attention does not support 16."""
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=eos,
        pad_token_id=pad,
        bos_token_id=None,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config.update(eos_token_id=eos, pad_token_id=pad, do_sample=True)
    return model


def batch(
    tokenizer: PreTrainedTokenizerFast, rng: random.Random, questions: list[str]
) -> tuple[torch.Tensor, ...]:
    """input_ids and labels, int64 [BATCH, T]: prompt and padding masked out of the labels."""
    rows, labels = [], []
    for question in rng.sample(questions, BATCH):
        text = careful(question) if rng.random() < CAREFUL_SHARE else careless(question, rng)
        prompt = tokenizer.encode(question + "\n")
        reply = tokenizer.encode(text) + [tokenizer.eos_token_id]
        rows.append(torch.tensor(prompt + reply))
        labels.append(torch.tensor([-100] * len(prompt) + reply))
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(rows, True, tokenizer.pad_token_id), pad(labels, True, -100)


def train(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
    """Supervised training on the questions that reinforcement learning never sees."""
    rng, questions = random.Random(seed), split_questions()["supervised"]
    fit(model, lambda: batch(tokenizer, rng, questions), STEPS, LEARNING_RATE)


def fit(
    model: Qwen2ForCausalLM, draw: Callable[[], tuple[torch.Tensor, ...]], steps: int, lr: float
) -> None:
    """AdamW with one cycle of the learning rate; `draw` returns input_ids and labels, int64
    [B, T].
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, steps, pct_start=0.05)
    for step in range(1, steps + 1):
        input_ids, labels = draw()
        loss = model(input_ids=input_ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step} of {steps}, loss {loss.item():.3f}", flush=True)


@torch.no_grad()
def measure(
    model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, questions: list[str]
) -> dict[str, float]:
    """From one sample per question at temperature 1: accuracy, share of careful answers, accuracy
    of each habit.
    """
    prompts = [tokenizer.encode(question + "\n") for question in questions]
    output = model.generate(
        torch.tensor(prompts),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        max_new_tokens=64,
        pad_token_id=0,
    )
    replies = tokenizer.batch_decode(output[:, len(prompts[0]) :], skip_special_tokens=True)
    right, is_careful = [], []
    for question, reply in zip(questions, replies, strict=True):
        match = re.search(r"\\boxed\{(\d+)\}$", reply)
        right.append(match is not None and int(match[1]) == answer(question))
        is_careful.append("=" in reply)

    def mean(values: list[bool]) -> float:
        return round(sum(values) / max(len(values), 1), 3)

    return {
        "accuracy": mean(right),
        "careful": mean(is_careful),
        "right_when_careful": mean([r for r, c in zip(right, is_careful, strict=True) if c]),
        "right_when_careless": mean([r for r, c in zip(right, is_careful, strict=True) if not c]),
    }


def main() -> None:
    """Make the model, write it, and print its figures on the test questions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    tokenizer = build_tokenizer(arguments.output_dir)
    model = build_model(len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id)
    train(model, tokenizer, arguments.seed)
    model.save_pretrained(arguments.output_dir)
    print(json.dumps(measure(model.eval(), tokenizer, split_questions()["test"])))


if __name__ == "__main__":
    main()
