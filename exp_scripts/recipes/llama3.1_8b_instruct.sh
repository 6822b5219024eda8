#!/usr/bin/env bash
# Llama-3.1-8B-Instruct, 500 steps (paper: 19.9 on-policy, 23.0 ExGRPO, in-distribution average).
# DATA_DIR and SAVE_PATH from the environment; MODEL_PATH may point to a local copy. See ../run_exgrpo.sh.
export MODEL_PATH=${MODEL_PATH:-meta-llama/Llama-3.1-8B-Instruct}
exec bash "$(dirname "$0")/../run_exgrpo.sh" \
    trainer.experiment_name=exgrpo_llama3.1_8b_instruct \
    "$@"
