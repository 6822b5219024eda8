#!/usr/bin/env bash
# ExGRPO with the released settings (128 prompts per step, 8 rollouts each) on N_NODES x N_GPUS GPUs; docs/recipe.md
# compares each with the release. MODEL_PATH must be a model whose chat template opens <think> and whose window fits
# prompt and response: the released Elliott/Qwen2.5-Math-7B-16k-think, or a copy of any model made by
#
#   exgrpo-data thinking-copy MODEL_FOLDER OUTPUT_FOLDER
#
#   MODEL_PATH=... DATA_DIR=... SAVE_PATH=... bash exp_scripts/run_exgrpo.sh [key=value ...]
#   bash exp_scripts/run_exgrpo.sh --cfg job     prints the resolved configuration; needs no GPU and no model
#
# Environment variables: MODEL_PATH (folder or hub name), DATA_DIR (with openr1.parquet and valid.parquet, which
# data.train_files= and data.val_files= replace), SAVE_PATH (checkpoints), N_GPUS (per node, default 8), N_NODES
# (default 1), PYTHON (default python3).
# Later arguments win: trainer.experience_ratio=0.25, trainer.experience=False, ...
set -euo pipefail
. "$(dirname "$0")/quoted.sh"

# Hydra accepts its own options only before the overrides; here they may be anywhere.
options=() overrides=() dry=""
while [ $# -gt 0 ]; do
    case $1 in
        --cfg | -c) options+=("$1" "${2:-}" --resolve); dry=yes; shift ;;
        --info | -i | --package | -p) options+=("$1" "${2:-}"); dry=yes; shift ;;
        --cfg=*) options+=("$1" --resolve); dry=yes ;;
        --info=*) options+=("$1"); dry=yes ;;
        --help | -h) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; exit ;;
        -*) options+=("$1") ;;
        *) overrides+=("$1") ;;
    esac
    shift
done

if [ -z "$dry" ]; then
    missing=""
    [ -n "${MODEL_PATH:-}" ] || missing+=$'\n  MODEL_PATH: the model to train, a folder or a hub name'
    [ -n "${SAVE_PATH:-}" ] || missing+=$'\n  SAVE_PATH: the folder for checkpoints'
    files="" given=" ${overrides[*]-} "
    [[ $given == *" data.train_files="* ]] || files+=" openr1.parquet"
    [[ $given == *" data.val_files="* ]] || files+=" valid.parquet"
    if [ -n "$files" ] && [ -z "${DATA_DIR:-}" ]; then
        missing+=$'\n  DATA_DIR: the folder with openr1.parquet and valid.parquet, which exgrpo-data train and\n    exgrpo-data eval --validation make; not needed with data.train_files= and data.val_files='
    else
        for file in $files; do
            [ -f "$DATA_DIR/$file" ] || missing+=$'\n  '"$DATA_DIR/$file: no such file"
        done
    fi
    if [ -n "$missing" ]; then
        echo "exgrpo: missing:$missing" >&2
        exit 2
    fi
fi

exec "${PYTHON:-python3}" -m exgrpo.main_mix_ppo ${options[@]+"${options[@]}"} \
    data.train_files="$(quoted "${DATA_DIR:-DATA_DIR}/openr1.parquet")" \
    data.val_files="$(quoted "${DATA_DIR:-DATA_DIR}/valid.parquet")" \
    data.train_batch_size=128 \
    data.val_batch_size=512 \
    data.max_prompt_length=1024 \
    data.max_response_length=8192 \
    data.filter_overlong_prompts=True \
    data.shuffle=True \
    data.seed=42 \
    actor_rollout_ref.model.path="$(quoted "${MODEL_PATH:-MODEL_PATH}")" \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.model.enable_gradient_checkpointing=True \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.optim.skip_grad_bound=500 \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=32768 \
    actor_rollout_ref.actor.entropy_coeff=0.001 \
    actor_rollout_ref.actor.use_kl_loss=False \
    'actor_rollout_ref.actor.loss_scale_factor=${exgrpo.released_scale:}' \
    actor_rollout_ref.actor.policy_loss.entropy_agg=released \
    actor_rollout_ref.actor.policy_loss.off_policy_reshape=p_div_p_0.1 \
    actor_rollout_ref.actor.policy_loss.loss_remove_clip=True \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.temperature=1.0 \
    actor_rollout_ref.rollout.val_kwargs.temperature=0.6 \
    actor_rollout_ref.rollout.val_kwargs.do_sample=True \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.8 \
    actor_rollout_ref.rollout.max_num_seqs=1024 \
    trainer.experience=True \
    trainer.exp_metric=ent \
    trainer.exp_select_mode=argmin \
    trainer.exp_sample_range=all \
    trainer.exp_bucket_manager=normal \
    trainer.experience_ratio=0.5 \
    trainer.experience_start_sratio=0.35 \
    trainer.exp_is_correct=True \
    trainer.experience_lbound=0 \
    trainer.experience_skip_retired=True \
    trainer.logger='[console,tensorboard]' \
    trainer.project_name=exgrpo \
    trainer.experiment_name=exgrpo \
    trainer.default_local_dir="$(quoted "${SAVE_PATH:-SAVE_PATH}")" \
    trainer.n_gpus_per_node="${N_GPUS:-8}" \
    trainer.nnodes="${N_NODES:-1}" \
    trainer.val_before_train=False \
    trainer.save_freq=50 \
    trainer.test_freq=10 \
    trainer.max_optim_to_keep=2 \
    trainer.total_training_steps=701 \
    ${overrides[@]+"${overrides[@]}"}
