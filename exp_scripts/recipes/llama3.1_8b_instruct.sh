#!/usr/bin/env bash
# Llama-3.1-8B-Instruct, 500 steps (paper: 19.9 on-policy, 23.0 ExGRPO, in-distribution average).
# Its chat template must open <think>. One command makes a copy that does, here where MODEL_PATH looks for it:
#   exgrpo-data thinking-copy "$(hf download meta-llama/Llama-3.1-8B-Instruct)" models/Llama-3.1-8B-Instruct-think
# Evaluation (eval/eval.sh) keeps the training's system message for it, since the copy's chat template says so.
# DATA_DIR and SAVE_PATH from the environment, see ../run_exgrpo.sh.
export MODEL_PATH=${MODEL_PATH:-$PWD/models/Llama-3.1-8B-Instruct-think}
exec bash "$(dirname "$0")/../run_exgrpo.sh" \
    trainer.experiment_name=exgrpo_llama3.1_8b_instruct \
    trainer.total_training_steps=500 \
    "$@"
