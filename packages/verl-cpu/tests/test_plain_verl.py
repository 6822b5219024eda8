"""verl's own program and trainers on a CPU, as the README shows them, with nothing of exgrpo.

A tiny untrained model answers; each worker is a fork of the prepared process.
"""

import json
import os
import signal
import subprocess
import sys

import pandas as pd
import psutil
import pytest

MODES = {
    "sync": ["+stack=cpu"],
    "colocate_async": ["+stack=cpu"],
    "separate_async": ["+stack=cpu_separate", "trainer.v1.separate_async.parameter_sync_step=2"],
}
REWARD = """import sys
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float("verl_cpu.worker_imports" in sys.modules)  # as in a fork
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """questions.parquet, reward.py, model/, and an exgrpo that cannot be imported."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("plain")
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{i}+{i}="}],
            "data_source": "sums",
            "reward_model": {"style": "rule", "ground_truth": str(2 * i)},
        }
        for i in range(16)
    ]
    pd.DataFrame(rows).to_parquet(folder / "questions.parquet")
    (folder / "reward.py").write_text(REWARD)
    (folder / "exgrpo.py").write_text("raise ModuleNotFoundError('exgrpo is not needed')")
    letters = ["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<end>",
        pad_token="<end>",
        chat_template="{% for message in messages %}{{ message.content }}{% endfor %}",
    ).save_pretrained(folder / "model")
    config = Qwen2Config(
        vocab_size=len(letters),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder / "model")
    return folder


@pytest.mark.parametrize("mode", MODES)
def test_verls_own_trainers_train_two_steps(folder, tmp_path, mode):
    environment = os.environ | {
        "VERL_PLATFORM": "cpu",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(folder),
        "RAY_worker_niceness": "0",
        "VERL_FILE_LOGGER_PATH": str(tmp_path / "metrics.jsonl"),
    }
    imports = {"args": [sys.executable, "-c", "import exgrpo"], "cwd": tmp_path, "env": environment}
    blocked = subprocess.run(**imports, capture_output=True)
    assert b"exgrpo is not needed" in blocked.stderr
    arguments = [
        *MODES[mode],
        f"trainer.v1.trainer_mode={mode}",
        "algorithm.adv_estimator=grpo",
        f"actor_rollout_ref.model.path={folder}/model",
        f"data.train_files={folder}/questions.parquet",
        f"data.val_files={folder}/questions.parquet",
        "data.train_batch_size=8",
        "data.max_prompt_length=64",
        "data.max_response_length=64",
        "actor_rollout_ref.rollout.n=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=2048",
        f"reward.custom_reward_function.path={folder}/reward.py",
        "trainer.total_training_steps=2",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        f"trainer.default_local_dir={tmp_path}/checkpoints",
        "trainer.logger=[console,file]",
    ]
    for _ in range(3):
        code = train(arguments, environment, tmp_path)
        if "node timed out during startup" not in (tmp_path / "log").read_text():
            break  # Ray has 30 s, which a busy machine exceeds
    assert code == 0, (tmp_path / "log").read_text()[-3000:]
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    steps = {entry["step"]: entry["data"] for entry in map(json.loads, lines)}
    assert sorted(steps) == [1, 2]
    assert steps[1]["critic/score/mean"] == steps[2]["critic/score/mean"] == 1


def train(arguments, environment, folder):
    """The exit code of a training whose output is in `log`; nothing is left of it."""
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "verl.trainer.main_ppo", *arguments],
            env=environment,
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            return process.wait(timeout=400)
        finally:
            if process.poll() is None:
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
