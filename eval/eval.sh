#!/usr/bin/env bash
# Checkpoint in, report out: sample the benchmarks' answers, judge them, write OUTPUT_DIR/responses.report.md, .json, .html.
#
#   bash eval/eval.sh CHECKPOINT OUTPUT_DIR [flags of exgrpo-eval generate]
#
# CHECKPOINT: a model in the Hugging Face format (a folder, or its name on the hub); or a checkpoint of verl,
# global_step_N or its actor/, which verl's own merger first writes to OUTPUT_DIR/merged (in bfloat16). Questions:
# DATA_DIR/valid.id.parquet and valid.ood.parquet (default DATA_DIR: data), see exgrpo-data eval; or those of
# --input_file. The same command continues an interrupted run. With --add_oat_evaluate True the last figure is the paper's.
# A model that was trained from a copy by exgrpo-data thinking-copy is asked with the files' system message, as in training,
# any other without it, as in the release; --remove_system True or False overrides. The first line says which.
set -euo pipefail
fail() { echo "eval.sh: error: $1" >&2; exit 2; }
[ $# -ge 2 ] || fail "usage: eval.sh CHECKPOINT OUTPUT_DIR [flags]"
checkpoint=${1%/} output=${2%/}
shift 2
here=$(cd "$(dirname "$0")" && pwd)
data=${DATA_DIR:-$here/../data}
. "$here/../exp_scripts/environment.sh"
[ -x "$python" ] || python=python3
python=${PYTHON:-$python}

[ -d "$checkpoint/actor" ] && checkpoint=$checkpoint/actor
model=$checkpoint
if [ -f "$checkpoint/fsdp_config.json" ]; then
    model=$output/merged
    mkdir -p "$output"
    # records the source: a continued run must not merge again, another checkpoint must
    source=$(cd "$checkpoint" && stat -c "$PWD/%n %s %Y" model_world_size_*.pt) || fail "$checkpoint: has no model_world_size_*.pt"
    if [ ! -d "$model" ] || [ "$(cat "$output/merged.from" 2>/dev/null)" != "$source" ]; then
        rm -rf "$model" "$model.part" "$output/merged.from"
        echo "merging $checkpoint"
        "$python" -m verl.model_merger merge --backend fsdp --local_dir "$checkpoint" --target_dir "$model.part" \
            > "$output/merge.log" 2>&1 || fail "$checkpoint: cannot be merged, see $output/merge.log"
        mv "$model.part" "$model"
        echo "$source" > "$output/merged.from"
    fi
fi
reward=() # that judged the run's pool, where it says so; a --reward of the command line comes later, and wins
grep -qs '"judged_by"' "$checkpoint/../experience/manifest.json" && reward=(--reward "$checkpoint/..")
exec "$python" "$here/generate_vllm.py" --model_path "$model" \
    --input_file "$data/valid.id.parquet" "$data/valid.ood.parquet" --output_file "$output/responses.jsonl" ${reward[@]+"${reward[@]}"} "$@"
