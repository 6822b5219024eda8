"""Log-probs under a model: the same in chunks as token by token, and those of a model whose answer
is known.
"""

import json
import math
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

from exgrpo.experience.question_id import question_id
from exgrpo.saved.pool_files import read_saved
from exgrpo_tools.inspect import __main__ as inspect
from exgrpo_tools.inspect import recompute
from exgrpo_tools.inspect.recompute import LogProbScorer, prompt_tokens
from exgrpo_tools.inspect.text import load_tokenizer

BASE_MODEL = Path(__file__).parents[2] / "exp_scripts" / "quickstart" / "base_model"
PROMPT, RESPONSE = [3, 1, 4, 1, 5, 9], np.array([2, 6, 5, 3, 5, 8, 9, 7], np.int32)


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(str(BASE_MODEL))


@pytest.fixture(scope="module")
def scorer(tokenizer):
    return LogProbScorer(str(BASE_MODEL), len(tokenizer))


@pytest.mark.parametrize("chunk", [1, 3, 5, 6, 256])
def test_a_response_scored_in_chunks_is_one_scored_token_by_token(scorer, monkeypatch, chunk):
    monkeypatch.setattr(recompute, "CHUNK", chunk)
    log_probs, entropies = scorer.score(PROMPT, RESPONSE)
    for position, token in enumerate(RESPONSE):
        prefix = torch.tensor([PROMPT + RESPONSE[:position].tolist()])
        with torch.no_grad():
            logs = torch.log_softmax(scorer._model(prefix).logits[0, -1].double(), -1)
        assert log_probs[position] == pytest.approx(float(logs[token]), abs=2e-5)
        assert entropies[position] == pytest.approx(float(-(logs.exp() * logs).sum()), abs=2e-5)
    assert log_probs.shape == entropies.shape == (8,) and log_probs.dtype == np.float32


def test_a_model_that_knows_nothing_gives_each_token_one_of_its_vocabulary(tmp_path):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    }
    model = Qwen2ForCausalLM(
        Qwen2Config(vocab_size=10, num_key_value_heads=1, tie_word_embeddings=False, **sizes)
    )
    torch.nn.init.zeros_(model.lm_head.weight)
    model.save_pretrained(tmp_path)
    log_probs, entropies = LogProbScorer(str(tmp_path), 10).score(PROMPT, RESPONSE)
    assert log_probs == pytest.approx(np.full(8, -math.log(10)), abs=1e-6)
    assert entropies == pytest.approx(np.full(8, math.log(10)), abs=1e-6)
    with pytest.raises(ValueError, match=r"knows 10 tokens, the tokenizer 11"):
        LogProbScorer(str(tmp_path), 11)
    with pytest.raises(ValueError, match="cannot be loaded"):
        LogProbScorer(str(tmp_path / "none"), 10)


def test_a_prompt_is_what_the_chat_template_makes_of_it(tokenizer):
    tokens = prompt_tokens(tokenizer, [{"role": "user", "content": "1+2"}])
    assert tokens == tokenizer("1+2\n", add_special_tokens=False)["input_ids"]
    with pytest.raises(ValueError, match="the chat template refuses the prompt"):
        prompt_tokens(tokenizer, [{"role": "user"}])


def test_imported_rows_get_the_log_probs_and_the_entropy_of_the_model(tmp_path, scorer, tokenizer):
    messages = [{"role": "user", "content": "1+2+3"}]
    pandas.DataFrame([{"prompt": messages}]).to_parquet(tmp_path / "train.parquet")
    (tmp_path / "rows.jsonl").write_text(
        json.dumps({"question": "1+2+3", "response": "1+2=3;", "log_probs": None})
    )
    files = ["--import", str(tmp_path / "rows.jsonl"), "--output", str(tmp_path / "pool")]
    files += ["--train_files", str(tmp_path / "train.parquet"), "--tokenizer", str(BASE_MODEL)]
    inspect.main([*files, "--trust", "--log_probs", "model", "--model", str(BASE_MODEL)])
    ((name, trajectory),) = read_saved(tmp_path / "pool").trajectories()
    log_probs, entropies = scorer.score(prompt_tokens(tokenizer, messages), trajectory.tokens)
    assert name == question_id("1+2+3") and trajectory.tokens[-1] == tokenizer.eos_token_id
    assert trajectory.log_probs.tolist() == log_probs.tolist()
    assert trajectory.entropy == pytest.approx(entropies.mean(), abs=1e-7)
