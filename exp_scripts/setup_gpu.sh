#!/usr/bin/env bash
# Install a GPU run's requirements, for Linux x86_64 and Python 3.12: the stack pinned in
# requirements.txt and this checkout.
#
#   bash exp_scripts/setup_gpu.sh [--venv DIR]    into an environment, default .venv-gpu; made if
#                                                 missing
#   bash exp_scripts/setup_gpu.sh --active        into the active environment (venv or conda)
#   bash exp_scripts/setup_gpu.sh --container     with this vLLM and torch already installed, as in
#                                                 verl's container: what is missing, and this checkout
#   --wheelhouse FOLDER   without network: only from this folder, made by exp_scripts/wheelhouse.sh
#   --cuda 12             for a driver older than 580: builds for CUDA 12.9, from the indexes of
#                         PyTorch and vLLM (requirements/cuda12.txt)
#   --flash-attn          also flash-attn, compiled for 20 to 60 minutes where pip finds no wheel
#
# A call that was interrupted is repaired by the next one: an environment of its own is made anew,
# into an active one everything is installed again.
#
# PYTHON selects the interpreter; MAX_JOBS and FLASH_ATTN_CUDA_ARCHS are passed to flash-attn's
# compilation. pip's own configuration determines the index.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/exp_scripts/find_python.sh"
. "$root/exp_scripts/unfinished.sh"

# An installer that failed took back what it had done: only what interrupts it leaves the mark.
fail() {
    changes_end
    echo "exgrpo: $*" >&2
    exit 2
}

mode="" venv="" wheelhouse="" cuda=13 flash_attn=""
choose() { [ -z "$mode" ] || fail "--venv, --active and --container exclude each other"; mode=$1; }
while [ $# -gt 0 ]; do
    case $1 in
        --venv | --wheelhouse)
            [ -n "${2:-}" ] || fail "$1: which folder?"
            if [ "$1" = --venv ]; then choose venv; venv=$(realpath -m "$2"); else wheelhouse=$2; fi
            shift
            ;;
        --active | --container) choose "${1#--}" ;;
        --cuda)
            [[ "${2:-}" =~ ^1[23]$ ]] || fail "--cuda ${2:-}: must be 12 or 13"
            cuda=$2
            shift
            ;;
        --flash-attn) flash_attn=yes ;;
        --no-flash-attn) fail "$1: leave it out; flash-attn is installed with --flash-attn alone" ;;
        *)
            fail "$1: setup_gpu.sh takes --venv DIR, --active, --container, --wheelhouse FOLDER," \
                "--cuda 12 and --flash-attn"
            ;;
    esac
    shift
done
mode=${mode:-venv} venv=${venv:-$root/.venv-gpu} lock=$root/requirements.txt
if [ "$cuda" = 12 ] && { [ "$mode" = container ] || [ -n "$wheelhouse" ]; }; then
    fail "--cuda 12 excludes --container, whose torch stays, and --wheelhouse, which is for CUDA 13"
fi

[ "$(uname -sm)" = "Linux x86_64" ] || fail "$(uname -sm): the GPU stack has wheels for Linux x86_64 only"

# A folder of wheels, or of pieces of a tar of them: pieces are checked and unpacked beside themselves once.
if [ -n "$wheelhouse" ]; then
    [ -d "$wheelhouse" ] || fail "--wheelhouse $wheelhouse: no such folder"
    wheelhouse=$(realpath "$wheelhouse")
    if [ -f "$wheelhouse/wheelhouse.tar.000" ] && [ ! -d "$wheelhouse/wheels" ]; then
        echo "set-up: joining the pieces of $wheelhouse"
        (cd "$wheelhouse" && sha256sum --quiet -c SHA256SUMS) || fail "--wheelhouse $wheelhouse: a piece is missing or damaged"
        mkdir -p "$wheelhouse/wheels.partial"
        cat "$wheelhouse"/wheelhouse.tar.??? | tar -C "$wheelhouse/wheels.partial" -x
        mv "$wheelhouse/wheels.partial" "$wheelhouse/wheels"
    fi
    [ ! -d "$wheelhouse/wheels" ] || wheelhouse=$wheelhouse/wheels
    lock=$wheelhouse/requirements.txt
    [ -f "$lock" ] || fail "--wheelhouse $wheelhouse: no requirements.txt in it; exp_scripts/wheelhouse.sh makes such a folder"
    strange=$(grep "^[^#].*==" "$lock" | grep -vxFf "$root/requirements.txt" || true)
    [ -z "$strange" ] || fail "--wheelhouse $wheelhouse: made for another requirements.txt (${strange//$'\n'/ })"
    unset PIP_FIND_LINKS
    export PIP_CONFIG_FILE=/dev/null PIP_NO_INDEX=1 PIP_FIND_LINKS=$wheelhouse
fi
torch=$(grep '^torch==' "$lock" || true)

again="" # packages that an interrupted call left half there are installed once more
case $mode in
    active)
        python=${VIRTUAL_ENV:-${CONDA_PREFIX:-}}/bin/python
        [ -x "$python" ] || fail "--active: no environment is active (VIRTUAL_ENV and CONDA_PREFIX are unset)"
        venv=${VIRTUAL_ENV:-$CONDA_PREFIX}
        ! was_interrupted "$venv" || again=--force-reinstall
        ;;
    container) python=$(command -v "${PYTHON:-python3}") || fail "--container: ${PYTHON:-python3}: no such command" ;;
    venv)
        python=$venv/bin/python
        if was_interrupted "$venv"; then
            echo "set-up: the last one was interrupted; $venv is made anew"
            empty "$venv"
        fi
        if [ ! -x "$python" ]; then
            interpreter=$(find_python 3.12)
            [ -n "$interpreter" ] || fail "${PYTHON:+PYTHON=$PYTHON: }no Python 3.12 that runs; the GPU stack is pinned for it"
            echo "set-up: making $venv with $("$interpreter" --version)"
            changes_begin "$venv" 3.12
            # A wheelhouse without torch is for a machine that has it: the environment must see it.
            visible=""
            [ -z "$wheelhouse" ] || [ -n "$torch" ] || visible=--system-site-packages
            "$interpreter" -m venv $visible "$venv" ||
                fail "$interpreter -m venv $venv failed; some systems have it in a separate package, python3.12-venv"
            [ -z "$visible" ] || "$interpreter" "$root/exp_scripts/outer_packages.py" "$venv"
        fi
        ;;
esac
if [ "$mode" != container ] && [ "$(python_version "$python")" != 3.12 ]; then
    fail "$python is Python $(python_version "$python"); the GPU stack is pinned for 3.12"
fi
"$python" "$root/exp_scripts/check_install.py" --machine "$cuda" || fail "nothing could run on this machine; nothing was installed"
[ "$mode" = container ] || changes_begin "$venv" 3.12
"$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip >/dev/null 2>&1 || fail "$python has no pip"

# --no-compile: pip takes one core for it, compile_all all of them.
install_all() { "$python" -m pip --disable-pip-version-check -qq install --no-compile $again "$@"; }
install() { install_all --no-deps "$@"; }

has_torch() {
    local required installed
    required=$(sed -n 's/^torch==//p' "$root/requirements.txt")
    installed=$("$python" -c 'import torch; print(torch.__version__)' 2>/dev/null || true)
    [ "${installed%%+*}" = "$required" ] ||
        fail "--wheelhouse $wheelhouse has no torch, and $python has ${installed:-none}; it needs torch $required"
}

install_stack() {
    if [ -n "$torch" ]; then
        echo "set-up: installing $torch"
        install "$torch" || fail "$torch could not be installed"
    else
        has_torch
    fi
    echo "set-up: installing $(grep -c '^[^#].*==' "$lock") packages of requirements.txt; a few minutes, 11 GB"
    install -r "$lock" || fail "requirements.txt could not be installed"
}

install_stack_for_cuda_12() {
    local rest
    rest=$(mktemp)
    grep -vE '^(torch|torchvision|torchaudio|vllm|cupy-cuda13x|cuda-.*|nvidia-.*)==' "$lock" >"$rest"
    echo "set-up: installing torch and vLLM for CUDA 12.9"
    install_all -r "$root/requirements/cuda12.txt" -c "$rest" ||
        fail "requirements/cuda12.txt could not be installed"
    echo "set-up: installing $(grep -c '^[^#].*==' "$rest") packages of requirements.txt"
    install -r "$rest" || fail "requirements.txt could not be installed"
    rm "$rest"
}

# verl's images carry torch and vLLM, but neither verl nor the grader, and some packages that are
# older than verl takes. What is installed may ask for more: until nothing is missing.
install_in_container() {
    local lacking wrong
    wrong=$("$python" -c 'import torch, vllm' 2>&1 | tail -1) || true
    [ -z "$wrong" ] ||
        fail "--container: $python needs torch and vLLM, as in verl's container, but: $wrong"
    while true; do
        lacking=$("$python" "$root/exp_scripts/lacking.py" "$lock") || exit 2
        [ -n "$lacking" ] || break
        echo "set-up: installing" $lacking
        install $lacking || fail "not all that verl requires could be installed"
    done
}

# A CUDA toolkit's folder: CUDA_HOME, that of the nvcc on the PATH, or the usual place.
cuda_home() {
    local nvcc home
    nvcc=$(command -v nvcc || true)
    for home in "${CUDA_HOME:-}" ${nvcc:+"$(dirname "$(dirname "$(realpath "$nvcc")")")"} /usr/local/cuda; do
        if [ -x "$home/bin/nvcc" ] && [ -f "$home/include/cuda_runtime.h" ]; then
            echo "$home"
            return
        fi
    done
}

# Compute capabilities of the visible GPUs in flash-attn's format, such as 80;90; nothing without GPUs.
architectures() {
    nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sed 's/\..*/0/' | sort -un | paste -sd ';' || true
}

# What ninja has compiled, by its last line in a log: "[12/73]".
objects() {
    local last
    last=$(grep -o '\[[0-9]*/[0-9]*\]' "$1" | tail -1 || true)
    last=${last//[\[\]]/}
    last=${last:-0/?}
    echo "${last%/*} of ${last#*/} objects"
}

# A line a minute, as long as the set-up runs. Its sleep outlives it, so that it is a short one.
compiled_so_far() {
    local seconds=0
    exec 9>&-
    while sleep 1 && kill -0 $$ 2>/dev/null; do
        seconds=$((seconds + 1))
        ((seconds % 60)) || echo "set-up: flash-attn: $(objects "$1") in $((seconds / 60)) min"
    done
}

# Uses a wheel if pip finds one. Sets `why` if it cannot be installed.
install_flash_attn() {
    local pin=$root/requirements/flash-attn.txt home log archs torch_cuda nvcc_cuda
    install --only-binary :all: -r "$pin" 2>/dev/null && return
    home=$(cuda_home)
    [ -n "$home" ] || { why="no CUDA compiler, nvcc"; return; }
    command -v "${CXX:-c++}" >/dev/null || { why="no C++ compiler"; return; }
    torch_cuda=$("$python" -c 'import torch; print(str(torch.version.cuda).split(".")[0])')
    nvcc_cuda=$("$home/bin/nvcc" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
    [ "$nvcc_cuda" = "$torch_cuda" ] || { why="$home is CUDA $nvcc_cuda, torch is built for CUDA $torch_cuda"; return; }
    archs=${FLASH_ATTN_CUDA_ARCHS:-$(architectures)}
    log=$(mktemp -t flash-attn.XXXXXX.log)
    echo "set-up: compiling flash-attn with $home/bin/nvcc for ${archs:-every architecture it knows}, some 70 objects," \
        "${MAX_JOBS:-as many as fit} at a time: 20 to 60 minutes; log: $log"
    compiled_so_far "$log" &
    # FORCE_BUILD: its setup.py would else guess the name of a wheel of CUDA 12
    env FLASH_ATTENTION_FORCE_BUILD=TRUE CUDA_HOME="$home" ${archs:+FLASH_ATTN_CUDA_ARCHS="$archs"} \
        "$python" -m pip --disable-pip-version-check -v install --no-deps --no-build-isolation -r "$pin" >"$log" 2>&1 ||
        why="its compilation failed, see $log"
    kill $! 2>/dev/null || true
    echo "set-up: flash-attn: $(objects "$log"), $((SECONDS / 60)) min of set-up so far"
}

# Else each process of the first run compiles what it is first to import. Some packages carry
# templates that are no Python: they are left as they are.
compile_all() {
    local packages
    packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "set-up: compiling the packages to bytecode on all cores"
    "$python" -W ignore -m compileall -qq -j 0 "$packages" || true
}

# Built outside the checkout, so that no deleted module is installed from an old build folder.
install_folder() {
    local build
    echo "set-up: installing $1"
    build=$(mktemp -d)
    printf '[build]\nbuild_base = %s\n[egg_info]\negg_base = %s\n' "$build" "$build" >"$build/folders.cfg"
    DIST_EXTRA_CONFIG=$build/folders.cfg install --no-build-isolation "$2" || fail "$1 could not be installed"
    rm -r "$build"
}

if [ "$mode" = container ]; then
    export PIP_BREAK_SYSTEM_PACKAGES=1 # a container's Python is often marked as externally managed
    install_in_container
elif [ "$cuda" = 12 ]; then
    install_stack_for_cuda_12
else
    install_stack
fi
install_folder exgrpo "$root"
for project in "$root"/packages/*/pyproject.toml; do
    package=$(dirname "$project")
    install_folder "$(basename "$package")" "$package"
done
compile_all
echo "set-up: importing the modules that a run imports"
"$python" -m pip check || true
(cd / && "$python" "$root/exp_scripts/check_install.py") || fail "$python: the import check failed"
why=""
[ -z "$flash_attn" ] || install_flash_attn
[ -z "$why" ] || fail "--flash-attn: $why; the rest is installed, and a run takes torch's own attention"
changes_end
activate=$(dirname "$python")/activate
if [ -f "$activate" ]; then next="source $activate"; else next="PYTHON=$python bash exp_scripts/run_exgrpo.sh ..."; fi
echo "set-up: done. Next: $next"
