#!/usr/bin/env bash
# ExGRPO as a job of a Ray cluster that runs already, in which the checkout with .venv-gpu is at the same path on each node:
#
#   RAY_API_SERVER_ADDRESS=http://HEAD:8265 N_NODES=2 MODEL_PATH=... DATA_DIR=... SAVE_PATH=... \
#       bash exp_scripts/cluster/ray_job.sh [key=value ...]
#
# The cluster needs RAY_JOB_STOP_WAIT_TIME_S=600 in its environment, or `ray job stop` kills the command after 3 s.
set -euo pipefail
checkout=$(cd "$(dirname "$0")/../.." && pwd)
exec ray job submit --no-wait --entrypoint-num-cpus 1 -- env \
    PYTHON="$checkout/.venv-gpu/bin/python" MODEL_PATH="$MODEL_PATH" DATA_DIR="$DATA_DIR" SAVE_PATH="$SAVE_PATH" \
    N_NODES="${N_NODES:-1}" N_GPUS="${N_GPUS:-8}" \
    bash "$checkout/exp_scripts/run_exgrpo.sh" ray_kwargs.ray_init.address=auto "$@"
