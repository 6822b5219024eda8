"""Thinking copies of tiny model folders that look like the real ones, read back by transformers, or
refused.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import watched

from exgrpo.prompts import load_tokenizer, render
from exgrpo_data.thinking_copy import main, thinking_copy
from exgrpo_tools.chat_template import keeps_system

BASE_MODEL = Path(__file__).parents[2] / "exp_scripts" / "quickstart" / "base_model"
MESSAGES = [
    {"role": "system", "content": "Think, then \\boxed{}."},
    {"role": "user", "content": "1+1"},
]
QWEN_MATH = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "sliding_window": 4096,
    "use_sliding_window": False,
    "max_window_layers": 28,
}
OLD_ROPE = {"rope_theta": 10000.0}  # as transformers 4 wrote it
NEW_ROPE = {
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}
}  # as transformers 5 does
LLAMA = {key: value for key, value in QWEN_MATH.items() if "window" not in key} | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}
TURNS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' "
    "}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}\n"
)
WEIGHTS = "model-00001-of-00001.safetensors"


def write_model(folder, config, template=None, tokens=None, **tokenizer_config):
    """A folder with weights that nobody reads and the quickstart's tokenizer, with these tokens for
    its ChatML ones.
    """
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": 0, "max_new_tokens": 2048})
    )
    text = (BASE_MODEL / "tokenizer.json").read_text()
    for old, new in zip(("<|im_start|>", "<|im_end|>"), tokens or (), strict=False):
        text = text.replace(old, new)
    (folder / "tokenizer.json").write_text(text)
    settings = json.loads((BASE_MODEL / "tokenizer_config.json").read_text())
    settings |= {"eos_token": "<|endoftext|>", "model_max_length": 4096, **tokenizer_config}
    settings |= {} if template is None else {"chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / WEIGHTS).write_bytes(b"weights")
    (folder / "LICENSE").write_text("free")
    (folder / "original").mkdir()
    (folder / "original" / "consolidated.00.pth").write_bytes(b"weights again")
    return folder


def prompt_of(folder):
    return render(load_tokenizer(folder), MESSAGES)


@pytest.mark.parametrize(
    "rope", [OLD_ROPE, NEW_ROPE, NEW_ROPE | OLD_ROPE], ids=["old", "new", "both"]
)
def test_qwen_math_gets_the_released_context_in_whichever_form_its_rope_is_written(tmp_path, rope):
    from transformers import AutoConfig

    model = write_model(tmp_path / "model", QWEN_MATH | rope, TURNS)
    said = thinking_copy(model, tmp_path / "copy")
    config = AutoConfig.from_pretrained(tmp_path / "copy")
    assert config.rope_parameters["rope_theta"] == 40000 and config.max_position_embeddings == 16384
    assert config.sliding_window is None
    assert AutoConfig.from_pretrained(model).rope_parameters["rope_theta"] == 10000
    assert load_tokenizer(tmp_path / "copy").model_max_length == 16384
    assert said[:2] == ["rope theta: 10000 -> 40000", "window: 4096 -> 16384"]
    generation = json.loads((tmp_path / "copy" / "generation_config.json").read_text())
    assert generation == {
        "eos_token_id": 0
    }  # where it stops stays, the limit of the short window goes


def test_the_models_own_template_opens_a_thought(tmp_path):
    model = write_model(tmp_path / "model", QWEN_MATH | OLD_ROPE, TURNS)
    said = thinking_copy(model, tmp_path / "copy")
    assert prompt_of(model).endswith("<|im_start|>assistant\n")
    assert prompt_of(tmp_path / "copy") == prompt_of(model) + "<think>\n"
    assert "Think, then \\boxed{}." in prompt_of(tmp_path / "copy")
    assert "chat_template" not in json.loads(
        (tmp_path / "copy" / "tokenizer_config.json").read_text()
    )  # one, not two
    assert "generation stops at <|endoftext|>, as before" in said
    # no thought is opened where nothing is to be generated, and a copy of the copy opens no second
    # one
    plain = load_tokenizer(tmp_path / "copy").apply_chat_template(MESSAGES, tokenize=False)
    assert plain.endswith("1+1<|im_end|>\n")
    thinking_copy(tmp_path / "copy", tmp_path / "again")
    assert prompt_of(tmp_path / "again") == prompt_of(tmp_path / "copy")


def test_a_base_model_without_a_template_gets_one_in_tokens_it_knows(tmp_path):
    qwen = write_model(tmp_path / "qwen", QWEN_MATH | OLD_ROPE)
    thinking_copy(qwen, tmp_path / "chatml")
    turns = (
        "<|im_start|>system\nThink, then \\boxed{}.<|im_end|>\n<|im_start|>user\n1+1<|im_end|>\n"
    )
    assert prompt_of(tmp_path / "chatml") == turns + "<|im_start|>assistant\n<think>\n"

    tokens = ("<|begin_of_text|>", "<|start_header_id|>")
    llama = write_model(tmp_path / "llama", LLAMA, tokens=tokens, bos_token="<|begin_of_text|>")
    said = thinking_copy(llama, tmp_path / "plain")
    text = "<|begin_of_text|>Think, then \\boxed{}.\n\nUser:\n1+1\n\nAssistant:\n<think>\n"
    assert prompt_of(tmp_path / "plain") == text
    assert not [line for line in said if "window" in line or "rope" in line]
    assert json.loads((tmp_path / "plain" / "config.json").read_text()) == LLAMA
    assert (
        json.loads((tmp_path / "plain" / "generation_config.json").read_text())["max_new_tokens"]
        == 2048
    )
    no_first_token = write_model(tmp_path / "bare", LLAMA, tokens=tokens)
    thinking_copy(no_first_token, tmp_path / "bare_copy")
    assert prompt_of(tmp_path / "bare_copy") == text.removeprefix("<|begin_of_text|>")


def test_a_copy_says_that_it_is_trained_with_a_system_message_and_its_saved_tokenizer_still_does(
    tmp_path,
):
    model = write_model(tmp_path / "model", QWEN_MATH | OLD_ROPE, TURNS)
    thinking_copy(model, tmp_path / "copy")
    load_tokenizer(tmp_path / "copy").save_pretrained(tmp_path / "checkpoint")  # as verl saves it
    thinking_copy(tmp_path / "copy", tmp_path / "again")
    folders = [tmp_path / name for name in ("model", "copy", "checkpoint", "again")]
    assert [keeps_system(folder) for folder in folders] == [False, True, True, True]
    assert (
        prompt_of(tmp_path / "checkpoint")
        == prompt_of(tmp_path / "again")
        == prompt_of(model) + "<think>\n"
    )
    thinking_copy(model, tmp_path / "kept", window=32768, template="keep")
    assert not keeps_system(tmp_path / "kept")


def test_any_other_model_by_explicit_numbers(tmp_path):
    from transformers import AutoConfig

    model = write_model(tmp_path / "model", LLAMA, TURNS)
    said = thinking_copy(model, tmp_path / "copy", rope_theta=1e6, window=262144, template="keep")
    config = AutoConfig.from_pretrained(tmp_path / "copy")
    assert config.rope_parameters["rope_theta"] == 1e6 and config.max_position_embeddings == 262144
    assert config.rope_parameters["original_max_position_embeddings"] == 8192
    assert prompt_of(tmp_path / "copy") == prompt_of(model)
    assert said[:2] == ["rope theta: 500000 -> 1000000", "window: 131072 -> 262144"]


def test_weights_are_links_and_all_else_is_written_anew_even_from_a_hub_cache(tmp_path):
    blobs = write_model(tmp_path / "hub" / "blobs", QWEN_MATH | OLD_ROPE, TURNS)
    snapshot = tmp_path / "hub" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(os.path.relpath(path, snapshot))
    copy = tmp_path / "elsewhere" / "copy"
    thinking_copy(snapshot, copy)
    assert (copy / WEIGHTS).is_symlink() and os.readlink(copy / WEIGHTS) == str(blobs / WEIGHTS)
    linked = [path.name for path in copy.iterdir() if path.is_symlink()]
    names = {path.name for path in copy.iterdir()}
    assert linked == [WEIGHTS]
    assert names == {path.name for path in blobs.iterdir() if path.is_file()} | {
        "chat_template.jinja"
    }
    assert json.loads((blobs / "config.json").read_text()) == QWEN_MATH | OLD_ROPE
    shutil.rmtree(copy)
    assert (blobs / WEIGHTS).read_bytes() == b"weights"


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ({}, {"window": 2048}, "--window=2048: must be at least 4096"),
        ({}, {"window": 0}, "--window=0: must be at least 4096"),
        ({}, {"rope_theta": -1.0}, "--rope_theta=-1.0: must be a number above 0"),
        ({"max_position_embeddings": None}, {}, "no max_position_embeddings"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            {"window": 32768},
            "rope_scaling has the type yarn",
        ),
        ({"rope_theta": 1e6}, {"template": "keep"}, "--template=keep: nothing to change"),
        ({}, {"template": "own"}, "has no chat template"),
    ],
)
def test_what_cannot_be_made_is_said_in_one_line_and_leaves_nothing(
    tmp_path, change, arguments, message
):
    model = write_model(tmp_path / "model", QWEN_MATH | OLD_ROPE | change)
    with pytest.raises(ValueError) as caught:
        thinking_copy(model, tmp_path / "copy", **arguments)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_template_without_a_place_for_the_system_message_is_refused_with_the_remedy(tmp_path):
    for name, template in (
        ("silent", "{{ messages[-1].content }}"),
        ("raises", "{{ raise_exception('no system') }}"),
    ):
        model = write_model(tmp_path / name, LLAMA, template)
        with pytest.raises(ValueError, match=r"--template=own: .*system message"):
            thinking_copy(model, tmp_path / "copy")
    thinking_copy(model, tmp_path / "copy", template="plain")
    assert prompt_of(tmp_path / "copy").endswith("User:\n1+1\n\nAssistant:\n<think>\n")


def test_folders_that_are_none(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"Qwen/Qwen2\.5-Math-7B: no such folder; .*hf download Qwen/Q"
    ):
        thinking_copy(Path("Qwen/Qwen2.5-Math-7B"), tmp_path / "copy")
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        thinking_copy(tmp_path, tmp_path / "copy")
    model = write_model(tmp_path / "model", LLAMA)
    with pytest.raises(FileExistsError, match="exists already"):
        thinking_copy(model, model)
    (model / WEIGHTS).unlink()
    with pytest.raises(FileNotFoundError, match="model: no weights in it"):
        thinking_copy(model, tmp_path / "copy")
    (model / "model-00002-of-00002.safetensors").symlink_to(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match=r"00002.* a link to a file that is gone"):
        thinking_copy(model, tmp_path / "copy")


def test_the_command_says_what_it_did_or_one_line(tmp_path, monkeypatch, capsys):
    model = write_model(tmp_path / "model", QWEN_MATH | OLD_ROPE, TURNS)
    monkeypatch.setattr(sys, "argv", ["thinking_copy", str(model), str(tmp_path / "copy")])
    main()
    said = capsys.readouterr().out
    assert (
        "rope theta: 10000 -> 40000" in said
        and "weights: 1 linked" in said
        and "<think>\\n'" in said
    )
    with pytest.raises(
        SystemExit,
        match=r"^exgrpo-data thinking-copy: error: .*copy: exists already; must be a new folder$",
    ):
        main()


def test_no_torch_is_needed(tmp_path):
    model = write_model(tmp_path / "model", QWEN_MATH | OLD_ROPE, TURNS)
    code = f"""
import sys
sys.modules["torch"] = None
sys.argv = ["thinking_copy", {str(model)!r}, {str(tmp_path / "copy")!r}]
from exgrpo_data.thinking_copy import main
main()
"""
    done = watched.run([sys.executable, "-c", code])
    assert done.returncode == 0 and (tmp_path / "copy" / "chat_template.jinja").is_file(), (
        done.stderr
    )
