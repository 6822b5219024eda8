#!/usr/bin/env bash
# All tests: bash tests/run_tests.sh (--fast: unit tests that are not slow, tests/conftest.py). Makes the environment first
# where there is none.
#
# tests/unit: no Ray. tests/queue: a real TransferQueue. tests/e2e: the real trainer on the CPU - verl, Ray, vLLM, FSDP2 -
# killed, resumed, with and without replay, on two nodes. packages/*/tests: those of the packages beside exgrpo. Two files
# at a time, each file's tests in one process, since they share what their fixtures make, and the longest first; a run of
# the trainer takes up to 7 GB.
set -euo pipefail
cd "$(dirname "$0")/.."
. exp_scripts/environment.sh
bash exp_scripts/setup_cpu.sh requirements/cpu-tests.txt
export HF_HUB_OFFLINE=1
export OMP_NUM_THREADS=1 # two processes of two threads each would hold each other up
# files in the order of tests/conftest.py, the slow ones first; the ten slowest tests are printed
run() { "$python" -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=10 "$@"; }
[ "${1:-}" = "--fast" ] && { run tests/unit packages/*/tests --fast; exit; }
run tests/e2e tests/queue tests/unit packages/*/tests # the short ones last: they fill the time until the last training has ended
bash exp_scripts/setup_cpu.sh requirements/cpu-trl.txt # last, so that everything else is seen to work without TRL
"$python" -m pytest -n 2 tests/e2e/test_trl_replay.py
