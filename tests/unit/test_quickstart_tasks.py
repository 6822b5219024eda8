"""The quickstart's questions and the base model shipped for them: what verl and vLLM ask of the
tokenizer included.
"""

import importlib
import itertools
import random
from pathlib import Path

import pandas as pd
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen2ForCausalLM,
)

from exgrpo.experience.question_id import question_id

QUICKSTART = Path(__file__).parents[2] / "exp_scripts" / "quickstart"
BASE = QUICKSTART / "base_model"


@pytest.fixture(scope="module")
def tasks():
    return importlib.import_module("tasks")


@pytest.fixture(scope="module")
def make_base(tasks):
    return importlib.import_module("make_base")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(BASE)


def test_every_question_is_in_one_split(tasks):
    splits = tasks.split_questions()
    together = list(itertools.chain(*splits.values()))
    assert len(together) == len(set(together)) == 6**5
    assert (len(splits["test"]), len(splits["train"])) == (256, tasks.TRAIN)


def test_splits_do_not_depend_on_anything(tasks):
    random.seed(1)
    first = tasks.split_questions()
    random.seed(2)
    assert tasks.split_questions() == first
    # A shuffle that changed would put test questions into the shipped base's training.
    assert first["test"][:2] == ["0+4+4+5+2", "0+3+5+4+2"]


def test_written_rows(tasks, tmp_path):
    tasks.write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["test.parquet", "train.parquet"]
    for split in ("train", "test"):
        rows = pd.read_parquet(tmp_path / f"{split}.parquet").to_dict("records")
        assert [row["prompt"][0]["content"] for row in rows] == tasks.split_questions()[split]
        for i, row in enumerate(rows):
            text = row["prompt"][0]["content"]
            assert (row["data_source"], row["ability"], row["prompt"][0]["role"]) == (
                "sum5",
                "math",
                "user",
            )
            assert row["reward_model"] == {"ground_truth": str(eval(text)), "style": "rule"}
            assert row["extra_info"] == {
                "index": i,
                "question_id": question_id(text),
                "split": split,
            }


def test_answers(make_base):
    assert make_base.careful("3+5+1+4+4") == "3+5=8;8+1=9;9+4=13;13+4=17;\\boxed{17}"
    rng = random.Random(0)
    right = [make_base.careless("3+5+1+4+4", rng) == "\\boxed{17}" for _ in range(2000)]
    assert 0.2 < sum(right) / 2000 < 0.3


def test_tokenizer_is_what_verl_asks_for(tokenizer):
    assert tokenizer.eos_token == "<|im_end|>" and tokenizer.pad_token == "<|endoftext|>"
    assert len(tokenizer.encode("\n")) == 1
    assert tokenizer.encode("<|im_end|>") == [tokenizer.eos_token_id]
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


def test_prompt_ids_are_those_trained_on(tasks, tokenizer):
    for question in tasks.split_questions()["test"]:
        messages = [{"role": "user", "content": question}]
        templated = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        assert templated == tokenizer.encode(question + "\n")
        assert len(templated) == 10


def test_answers_survive_the_round_trip(tasks, make_base, tokenizer):
    questions = list(itertools.chain(*tasks.split_questions().values()))
    texts = {make_base.careful(question) for question in questions} | {
        f"\\boxed{{{n}}}" for n in range(26)
    }
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    "text", ["Zwölf über 7: ∑ 你好 🙂", "tab\tand  blanks\r\n", "".join(map(chr, range(1, 256)))]
)
def test_any_prompt_can_be_encoded(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text), clean_up_tokenization_spaces=False) == text


def test_base_model_fits_the_tokenizer_and_the_repository(tokenizer):
    assert sum(file.stat().st_size for file in BASE.iterdir()) <= 5_000_000
    model = AutoModelForCausalLM.from_pretrained(BASE)
    assert isinstance(model, Qwen2ForCausalLM) and model.dtype == torch.float32
    assert model.config.vocab_size == len(tokenizer)
    assert (
        model.config.hidden_size // model.config.num_attention_heads == 32
    )  # vLLM's CPU attention refuses 16
    assert (
        model.generation_config.eos_token_id == model.config.eos_token_id == tokenizer.eos_token_id
    )
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id


def test_base_leaves_room_to_learn(tasks, make_base, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(BASE).eval()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = make_base.measure(model, tokenizer, tasks.split_questions()["test"][:64])
    assert 0.15 <= found["accuracy"] <= 0.60
    assert 0.15 <= found["careful"] <= 0.60  # both habits are there to choose from
    assert found["right_when_careful"] > 0.7 > found["right_when_careless"]
