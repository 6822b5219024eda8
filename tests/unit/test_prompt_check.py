"""What a run would show its model, checked on tiny model folders: refused where it would train on
nothing.
"""

import json
import logging
import shutil
from pathlib import Path

import pandas as pd
import pytest
from composed import job

from exgrpo.preflight.checks import verify
from exgrpo.prompts import load_tokenizer

ROOT = Path(__file__).parents[2]
BASE_MODEL = ROOT / "exp_scripts" / "quickstart" / "base_model"
CONTENTS = "{% for message in messages %}{{ message['content'] + '\n' }}{% endfor %}"
THINKING = CONTENTS + "{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}"


@pytest.fixture
def files(tmp_path):
    """A model of window 512 whose template opens a thought, and 16 questions of 13 to 15 tokens
    with it.
    """
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BASE_MODEL / name, model)
    (model / "chat_template.jinja").write_text(THINKING)
    write_questions(tmp_path, [f"{i}+{i}" for i in range(16)])
    return tmp_path


def write_questions(folder, questions):
    gold = {"ground_truth": "1"}
    rows = [
        {
            "prompt": [{"role": "user", "content": question}],
            "data_source": "t",
            "reward_model": gold,
        }
        for question in questions
    ]
    pd.DataFrame(rows).to_parquet(folder / "data.parquet")


def configuration(files, *more):
    overrides = [
        f"data.train_files={files}/data.parquet",
        f"data.val_files={files}/data.parquet",
        "data.train_batch_size=8",
        "actor_rollout_ref.actor.ppo_mini_batch_size=8",
        "data.max_prompt_length=64",
        "data.max_response_length=192",
        "data.filter_overlong_prompts=True",
        f"actor_rollout_ref.model.path={files}/model",
        "actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "actor_rollout_ref.rollout.n=8",
        f"trainer.default_local_dir={files}/checkpoints",
    ]
    return job(*overrides, *more)


def refusal(files, *more):
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        verify(configuration(files, *more))
    line = str(caught.value)
    assert "\n" not in line
    return line


def set_window(files, window):
    path = files / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": window}))


def test_a_thinking_model_with_room_passes(files):
    verify(configuration(files))
    verify(configuration(files, "actor_rollout_ref.rollout.max_model_len=256"))


def test_a_window_below_prompt_and_response(files):
    set_window(files, 255)
    for more in ([], ["trainer.experience=False"]):
        said = refusal(files, *more)
        assert f"model.path={files}/model: its max_position_embeddings is 255, below 256" in said
        assert "data.max_prompt_length=64 + 192 of response" in said
        assert f"exgrpo-data thinking-copy {files}/model OUTPUT" in said
    set_window(files, 256)
    verify(configuration(files))


def test_a_limit_of_the_rollouts_below_it_or_above_the_window(files):
    assert "max_model_len=255: must be at least 256" in refusal(
        files, "actor_rollout_ref.rollout.max_model_len=255"
    )
    assert "max_model_len=513: must be at most 512" in refusal(
        files, "actor_rollout_ref.rollout.max_model_len=513"
    )


@pytest.mark.parametrize("key", ["max_position_embeddings", "rope_theta"])
def test_a_context_that_would_reach_the_actor_alone(files, key):
    said = refusal(files, f"+actor_rollout_ref.model.override_config.{key}=16384")
    assert f"override_config.{key}=16384: must not be set" in said and "not vLLM" in said


def test_no_configuration_in_the_folder(files):
    (files / "model" / "config.json").unlink()
    assert "no config.json" in refusal(files)


def test_no_chat_template(files):
    (files / "model" / "chat_template.jinja").unlink()
    said = refusal(files)
    assert (
        "model.path=" in said and "no chat template" in said and "exgrpo-data thinking-copy" in said
    )


def test_a_tokenizer_or_template_of_another_place_is_the_one_that_counts(files):
    other = shutil.copytree(files / "model", files / "other")
    (files / "model" / "chat_template.jinja").unlink()
    verify(configuration(files, f"actor_rollout_ref.model.tokenizer_path={other}"))
    config = configuration(files)
    config.actor_rollout_ref.model.custom_chat_template = THINKING
    verify(config)
    (other / "chat_template.jinja").write_text(CONTENTS)
    assert "require_think=True" in refusal(files, f"actor_rollout_ref.model.tokenizer_path={other}")


def test_a_tokenizer_that_cannot_be_loaded(files):
    (files / "model" / "tokenizer.json").write_text("{")
    assert "its tokenizer cannot be loaded" in refusal(files)


@pytest.mark.parametrize("end", ["", "Assistant:", "<think>\n\n</think>\n\n"])
def test_a_prompt_that_opens_no_thought(files, end):
    (files / "model" / "chat_template.jinja").write_text(CONTENTS + end.replace("\n", "{{ '\n' }}"))
    said = refusal(files)
    assert "reward_kwargs.require_think=True: the prompts end in" in said
    assert "exgrpo-data thinking-copy" in said and "or set it to False" in said
    verify(configuration(files, "reward.custom_reward_function.reward_kwargs.require_think=False"))
    (files / "mine.py").write_text(
        'def compute_score(solution_str, **_):\n    return float("box" in solution_str)\n'
    )
    verify(
        configuration(files, f"reward.custom_reward_function.path={files}/mine.py")
    )  # another reward, other rules


def test_arguments_of_the_template_are_passed_on(files):
    text = CONTENTS + "{% if thinking %}{{ '<think>\n' }}{% endif %}"
    (files / "model" / "chat_template.jinja").write_text(text)
    assert "require_think=True" in refusal(files)
    verify(configuration(files, "+data.apply_chat_template_kwargs.thinking=True"))


def test_questions_that_are_all_too_long(files):
    write_questions(files, ["1+" * 40 + "1", *("1+" * (40 + i) + "1" for i in range(1, 300))])
    said = refusal(files)
    assert (
        said.startswith("data.max_prompt_length=64: must be at least ")
        and "all of its 300 questions" in said
    )
    needed = int(
        said.split("at least ")[1].split(",")[0]
    )  # what it asks for is enough, and one less is not
    question = [{"role": "user", "content": "1+" * 40 + "1"}]
    tokenizer = load_tokenizer(files / "model")
    assert needed == len(
        tokenizer.apply_chat_template(question, add_generation_prompt=True)["input_ids"]
    )  # as verl's
    wide = "data.max_response_length=64"
    verify(configuration(files, f"data.max_prompt_length={needed}", wide))
    assert "must be at least" in refusal(files, f"data.max_prompt_length={needed - 1}", wide)
    assert "would cut off the beginning" in refusal(files, "data.filter_overlong_prompts=False")


def test_one_question_that_fits_is_found_wherever_it_stands(files):
    write_questions(files, [*("1+" * (40 + i) + "1" for i in range(300)), "1+1"])
    verify(configuration(files))


def test_some_questions_that_are_too_long_are_counted(files, caplog):
    write_questions(files, ["1+" * 40 + "1", *(f"{i}+{i}" for i in range(15))])
    with caplog.at_level(logging.WARNING):
        verify(configuration(files))
    assert (
        "data.train_files: 1 of the first 16 prompts are longer than data.max_prompt_length=64"
        in caplog.text
    )


@pytest.mark.parametrize("row", [0, 5])
def test_a_template_that_fails_on_a_row(files, row):
    asked = pd.read_parquet(files / "data.parquet")["prompt"][row][-1]["content"]
    (files / "model" / "chat_template.jinja").write_text(
        f"{{% if messages[-1]['content'] == '{asked}' %}}{{{{ raise_exception('none here') }}}}"
        "{% endif %}{{ messages[-1]['content'] }}<think>"
    )
    said = refusal(files)
    assert f"data.train_files: the chat template fails on row {row} (none here)" in said


def test_a_file_without_prompts(files):
    pd.DataFrame(
        {"question": ["1+1"], "data_source": "t", "reward_model": [{"ground_truth": "2"}]}
    ).to_parquet(files / "bare.parquet")
    assert "no column prompt (data.prompt_key)" in refusal(
        files, f"data.val_files={files}/bare.parquet"
    )


def test_a_hub_name_is_checked_in_the_cache_and_left_to_verl_where_it_is_not(
    files, monkeypatch, caplog
):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(files / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    by_name = "actor_rollout_ref.model.path=someone/base"
    verify(configuration(files, by_name))
    assert "someone/base is no folder here" in caplog.text
    repository = files / "hub" / "models--someone--base"
    snapshot = shutil.copytree(files / "model", repository / "snapshots" / "0123")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123")
    verify(configuration(files, by_name))
    (snapshot / "chat_template.jinja").unlink()
    assert "model.path=someone/base: its tokenizer has no chat template" in refusal(files, by_name)
    (snapshot / "tokenizer_config.json").unlink()  # what is only half there verl will fetch
    verify(configuration(files, by_name))


def test_of_a_hub_name_that_is_not_in_the_cache_the_small_files_are_fetched(files, monkeypatch):
    import huggingface_hub

    asked = []

    def snapshot_download(name, allow_patterns, local_files_only):
        asked.append((name, local_files_only, "*.safetensors" in allow_patterns))
        if local_files_only:
            raise FileNotFoundError(name)
        return str(files / "model")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    said = refusal(
        files, "actor_rollout_ref.model.path=someone/base", "data.max_response_length=8192"
    )
    assert "model.path=someone/base: its max_position_embeddings is" in said
    assert asked == [("someone/base", True, False), ("someone/base", False, False)]
