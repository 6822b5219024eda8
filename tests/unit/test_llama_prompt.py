"""Llama-3.1-8B base as in the paper's E.1 and G.1: the prompt of its rollouts and its evaluation.

From the file that data/prepare_train.py writes, through verl's data set and its agent loop, to the
tokens that a server is asked to continue.
"""

import asyncio
import json
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf
from test_thinking_copy import BASE_MODEL, LLAMA, WEIGHTS

from exgrpo.prompts import load_tokenizer, opens_thought
from exgrpo_data import prepare_train
from exgrpo_data.thinking_copy import thinking_copy
from exgrpo_eval.generate.templates import TEMPLATES

pytest.importorskip("verl")
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.workers.rollout.replica import TokenOutput

from exgrpo.experience.rl_dataset_with_experience import RLHFDatasetWithExperience
from exgrpo.on_verl.agent_loop import SeededAgentLoop

FIRST = "<|begin_of_text|>"
QUESTION = "What is $\\frac{1}{2}$ of\n{question} {{ 6 }}?"
PROMPT = f"User: {QUESTION}\nAnswer: Let's think step by step.\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A copy of a base model; as Llama's, its tokenizer puts a first token before a text."""
    folder = tmp_path_factory.mktemp("llama") / "base"
    folder.mkdir()
    text = (BASE_MODEL / "tokenizer.json").read_text().replace("<|endoftext|>", FIRST)
    tokenizer = json.loads(text)
    single = [
        {"SpecialToken": {"id": FIRST, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ]
    first = {"id": FIRST, "ids": [0], "tokens": [FIRST]}
    tokenizer["post_processor"] |= {"single": single, "special_tokens": {FIRST: first}}
    settings = json.loads((BASE_MODEL / "tokenizer_config.json").read_text())
    settings |= {"bos_token": FIRST, "pad_token": FIRST}
    for name, content in (
        ("tokenizer", tokenizer),
        ("tokenizer_config", settings),
        ("config", LLAMA),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / WEIGHTS).write_bytes(b"weights")
    thinking_copy(folder, folder.parent / "copy", template="step_by_step")
    return folder.parent / "copy"


def prepared(folder, *options):
    """The training file of two questions: one with a system message of its own, one without."""
    chat = [
        {"role": "system", "content": "Think in <think>."},
        {"role": "user", "content": QUESTION},
    ]
    rows = [{"prompt": chat, "answer": "3"}, {"prompt": QUESTION + " Again.", "answer": "3"}]
    (folder / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    arguments = [
        "--input_file",
        str(folder / "in.jsonl"),
        "--output_file",
        str(folder / "train.parquet"),
    ]
    prepare_train.main([*arguments, *options])
    return folder / "train.parquet"


def asked(data, model, folder):
    """The tokens that verl's rollout sends to the server for each row of a training file."""
    config = OmegaConf.create(
        {"max_prompt_length": 256, "cache_dir": str(folder), "filter_overlong_prompts_workers": 1}
    )
    tokenizer, sent = load_tokenizer(model), []
    rows = RLHFDatasetWithExperience([str(data)], tokenizer, config)

    class Server:
        async def generate(self, request_id, prompt_ids, **_):
            sent.append(prompt_ids)
            return TokenOutput(token_ids=[3, 4], log_probs=[-0.1, -0.2], num_preempted=0)

    async def roll_out():
        rollout = {"prompt_length": 256, "response_length": 8, "seed": 0}
        actor = {"rollout": rollout, "model": {}}
        whole = OmegaConf.create({"actor_rollout_ref": actor, "data": config})
        loop = SeededAgentLoop(
            trainer_config=DictConfigWrap(whole),
            server_manager=Server(),
            tokenizer=tokenizer,
            processor=None,
            dataset_cls=RLHFDatasetWithExperience,
            data_config=DictConfigWrap(whole.data),
            hf_model_type="llama",
        )
        for row in range(len(rows)):
            await loop.run({}, raw_prompt=rows[row]["raw_prompt"], uid=f"1q{row}", session_id=0)

    asyncio.run(roll_out())
    return sent


def test_a_prepared_row_is_asked_in_the_papers_words_and_in_no_other(model, tmp_path):
    data = prepared(tmp_path)
    systems = [row["prompt"][0] for row in pq.read_table(data).to_pylist()]
    assert [system["role"] for system in systems] == ["system", "system"]
    assert all("<think>" in system["content"] for system in systems)
    tokenizer = load_tokenizer(model)
    prompts = [tokenizer.decode(tokens) for tokens in asked(data, model, tmp_path)]
    assert prompts == [FIRST + PROMPT, FIRST + PROMPT.replace("?\n", "? Again.\n")]
    assert not any("<think>" in prompt or opens_thought(prompt) for prompt in prompts)


def test_data_without_a_system_message_give_the_same_prompt(model, tmp_path):
    with_message = asked(prepared(tmp_path), model, tmp_path)
    without = prepared(tmp_path, "--system_prompt_file", "none")
    assert asked(without, model, tmp_path / "other") == with_message


def test_the_evaluation_asks_in_the_same_tokens(model, tmp_path):
    """By the template of its name on any model, and by a trained copy's own."""
    from exgrpo_eval.generate.command import plan

    (trained, _) = asked(prepared(tmp_path), model, tmp_path)
    question = SimpleNamespace(
        messages=[{"role": "user", "content": QUESTION}],
        benchmark="math",
        repeats=1,
        question_id="q",
        index=0,
    )
    for name in ("step_by_step", "own"):
        settings = SimpleNamespace(template=name, samples=lambda *_: 1, seed=0)
        (request,) = plan(settings, [question], load_tokenizer(model))
        assert list(request.prompt.token_ids) == trained, name
    assert TEMPLATES["step_by_step"].text.replace("{question}", QUESTION) == PROMPT
