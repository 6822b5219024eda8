#!/usr/bin/env bash
# The tests of the studies, on the CPU: bash lab/run_tests.sh (arguments of pytest instead: these tests alone).
set -euo pipefail
cd "$(dirname "$0")/.."
. exp_scripts/environment.sh
bash exp_scripts/setup_cpu.sh requirements/cpu-tests.txt
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
"$python" -m pytest -c lab/pytest.ini -n 2 --dist loadfile --durations=5 "${@:-lab/tests}"
