#!/usr/bin/env bash
# All tests: bash tests/run_tests.sh (--fast: without the real trainer). Makes .venv first where there is none.
#
# 1. tests/unit: five minutes, no Ray.  2. tests/queue: a real TransferQueue.  3. tests/e2e: the real trainer on the
# CPU - verl, Ray, vLLM, FSDP2 - killed, resumed, with and without replay; about twenty minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
bash exp_scripts/setup_cpu.sh
export HF_HUB_OFFLINE=1
folders=(tests/unit tests/queue tests/e2e)
[ "${1:-}" = "--fast" ] && folders=(tests/unit)
.venv/bin/python -m pytest "${folders[@]}" --durations=10
[ "${1:-}" = "--fast" ] && exit
bash exp_scripts/setup_cpu.sh requirements-cpu-trl.txt # last, so that everything else is seen to work without TRL
.venv/bin/python -m pytest tests/e2e/test_trl_replay.py
