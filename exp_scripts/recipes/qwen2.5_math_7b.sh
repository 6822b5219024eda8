#!/usr/bin/env bash
# Qwen2.5-Math-7B, the released run (paper: 45.3 on-policy, 48.3 ExGRPO, in-distribution average): the released copy of
# the model, whose window is 16,384 and whose chat template opens <think>.
# DATA_DIR and SAVE_PATH from the environment; MODEL_PATH may name a local copy. See ../run_exgrpo.sh.
export MODEL_PATH=${MODEL_PATH:-Elliott/Qwen2.5-Math-7B-16k-think}
exec bash "$(dirname "$0")/../run_exgrpo.sh" \
    trainer.experiment_name=exgrpo_qwen2.5_math_7b \
    "$@"
