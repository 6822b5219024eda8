#!/usr/bin/env bash
# Llama-3.1-8B base, 500 steps, no delayed start: its first successes are too few to wait for (paper: 3.4 -> 6.1).
# DATA_DIR and SAVE_PATH from the environment; MODEL_PATH may point to a local copy. See ../run_exgrpo.sh.
export MODEL_PATH=${MODEL_PATH:-meta-llama/Llama-3.1-8B}
exec bash "$(dirname "$0")/../run_exgrpo.sh" \
    trainer.experiment_name=exgrpo_llama3.1_8b \
    trainer.experience_start_sratio=0 \
    "$@"
