"""A small model that calls a calculator now and then, made like the quickstart's base, and the
calculator.

    python exp_scripts/quickstart/tool_base.py --output_dir DIR

Its careful habit is to have the tool add the question's numbers, and to repeat what it says; the
careless one is to guess. A call is two tokens around the question, in the format of verl's hermes
parser.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import make_base
import torch
from tasks import answer, split_questions
from transformers import PreTrainedTokenizerFast

BEGIN, END = '<tool_call>{"name": "add", "arguments": {"terms": "', '"}}</tool_call>'
TEMPLATE = "{% for message in messages %}{{ (message['content'] or '') + '\\n' }}{% endfor %}"
STEPS, BATCH, CALLS = 500, 64, 0.35
TOOL = '''from verl.tools.function_tool import function_tool


@function_tool
def add(terms: str) -> str:
    """Add numbers.

    Args:
        terms: such as 1+2+3.
    """
    return str(sum(int(term) for term in terms.split("+")))
'''


def turns(question: str, rng: random.Random) -> list[tuple[str, bool]]:
    """(token text, whether the model wrote it) of one conversation, from the question on."""
    prompt = [(f"{question}\n", False)]
    if rng.random() >= CALLS:
        return [*prompt, (make_base.careless(question, rng), True), ("<|im_end|>", True)]
    reply = [
        (f"\n{answer(question)}\n", False),
        (f"\\boxed{{{answer(question)}}}", True),
        ("<|im_end|>", True),
    ]
    return [*prompt, (f"{BEGIN}{question}{END}", True), ("<|im_end|>", True), *reply]


def batch(
    tokenizer: PreTrainedTokenizerFast, rng: random.Random, questions: list[str]
) -> tuple[torch.Tensor, ...]:
    """input_ids and labels, int64 [BATCH, T]; what others say is masked out of the labels."""
    rows, labels = [], []
    for question in rng.sample(questions, BATCH):
        parts = [(tokenizer.encode(text), own) for text, own in turns(question, rng)]
        rows.append(torch.tensor([token for ids, _ in parts for token in ids]))
        labels.append(torch.tensor([token if own else -100 for ids, own in parts for token in ids]))
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(rows, True, tokenizer.pad_token_id), pad(labels, True, -100)


def make(folder: Path, steps: int = STEPS) -> None:
    """Write the model, fitted in so many steps, and tool.py into the folder."""
    torch.manual_seed(0)
    tokenizer = make_base.build_tokenizer(folder)
    tokenizer.add_tokens([BEGIN, END])
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    model = make_base.build_model(
        len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id, layers=2
    )
    rng, questions = random.Random(0), split_questions()["supervised"]
    make_base.fit(model, lambda: batch(tokenizer, rng, questions), steps, lr=3e-3)
    model.save_pretrained(folder)
    (folder / "tool.py").write_text(TOOL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output_dir", type=Path, required=True)
    make(parser.parse_args().output_dir)
