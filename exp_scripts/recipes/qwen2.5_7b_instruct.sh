#!/usr/bin/env bash
# Qwen2.5-7B-Instruct, 500 steps (paper: 35.2 on-policy, 39.3 ExGRPO, in-distribution average).
# DATA_DIR and SAVE_PATH from the environment; MODEL_PATH may point to a local copy. See ../run_exgrpo.sh.
export MODEL_PATH=${MODEL_PATH:-Qwen/Qwen2.5-7B-Instruct}
exec bash "$(dirname "$0")/../run_exgrpo.sh" \
    trainer.experiment_name=exgrpo_qwen2.5_7b_instruct \
    "$@"
