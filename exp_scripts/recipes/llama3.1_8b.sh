#!/usr/bin/env bash
# Llama-3.1-8B base, 500 steps, no delayed start: its first successes are too few to wait for
# (paper: 3.4 -> 6.1). Its prompt is that of the paper's E.1 and G.1 and nothing else,
#   User: QUESTION
#   Answer: Let's think step by step.
# so the reward judges whole responses. One command makes a copy of the model with that template,
# which leaves out the system messages of the data, here where MODEL_PATH looks for it:
#   exgrpo-data thinking-copy --template step_by_step \
#       "$(hf download meta-llama/Llama-3.1-8B)" models/Llama-3.1-8B-step-by-step
# Evaluation: its checkpoints have the template; the base model is asked likewise with
#   exgrpo-eval generate --template step_by_step
# DATA_DIR and SAVE_PATH from the environment, see ../run_exgrpo.sh.
export MODEL_PATH=${MODEL_PATH:-$PWD/models/Llama-3.1-8B-step-by-step}
exec bash "$(dirname "$0")/../run_exgrpo.sh" \
    trainer.experiment_name=exgrpo_llama3.1_8b \
    trainer.total_training_steps=500 \
    trainer.experience_start_sratio=0 \
    reward.custom_reward_function.reward_kwargs.require_think=False \
    "$@"
