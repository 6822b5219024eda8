#!/usr/bin/env bash
# Llama-3.1-8B base, 500 steps, no delayed start: its first successes are too few to wait for (paper: 3.4 -> 6.1).
# It has no chat template, and without one verl drops every question. One command makes a copy whose template opens
# <think>, here where MODEL_PATH looks for it:
#   python -m exgrpo.thinking_copy "$(hf download meta-llama/Llama-3.1-8B)" models/Llama-3.1-8B-think
# DATA_DIR and SAVE_PATH from the environment, see ../run_exgrpo.sh.
export MODEL_PATH=${MODEL_PATH:-$PWD/models/Llama-3.1-8B-think}
exec bash "$(dirname "$0")/../run_exgrpo.sh" \
    trainer.experiment_name=exgrpo_llama3.1_8b \
    trainer.total_training_steps=500 \
    trainer.experience_start_sratio=0 \
    "$@"
