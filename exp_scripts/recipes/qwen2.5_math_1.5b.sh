#!/usr/bin/env bash
# Qwen2.5-Math-1.5B, 500 steps (paper: 30.0 on-policy, 35.3 ExGRPO, in-distribution average).
# DATA_DIR and SAVE_PATH from the environment; MODEL_PATH may point to a local copy. See ../run_exgrpo.sh.
export MODEL_PATH=${MODEL_PATH:-Qwen/Qwen2.5-Math-1.5B}
exec bash "$(dirname "$0")/../run_exgrpo.sh" \
    trainer.experiment_name=exgrpo_qwen2.5_math_1.5b \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    "$@"
