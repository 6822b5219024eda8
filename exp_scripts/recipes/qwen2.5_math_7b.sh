#!/usr/bin/env bash
# Qwen2.5-Math-7B, 700 steps (paper: 45.3 on-policy, 48.3 ExGRPO, in-distribution average).
# DATA_DIR and SAVE_PATH from the environment; MODEL_PATH may point to a local copy. See ../run_exgrpo.sh.
export MODEL_PATH=${MODEL_PATH:-Qwen/Qwen2.5-Math-7B}
exec bash "$(dirname "$0")/../run_exgrpo.sh" \
    trainer.experiment_name=exgrpo_qwen2.5_math_7b \
    trainer.total_training_steps=700 \
    "$@"
