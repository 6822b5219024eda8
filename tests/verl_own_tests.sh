#!/usr/bin/env bash
# verl's own tests that need no GPU, from a source tree of it, without exgrpo's plug-in and with it: both must pass alike.
#
#   bash tests/verl_own_tests.sh path/to/verl [arguments of pytest ...]
set -uo pipefail
cd "$(dirname "$0")/.."
. exp_scripts/environment.sh
tree=$(cd "${1:?verl_own_tests: give a source tree of verl}" && pwd) || exit
shift
cd "$tree"
# replay buffer, core algorithms, trainer; those of them that this tree has
mapfile -t files < <(find tests/trainer tests/utils -name 'test_*.py' 2>/dev/null |
    grep -E 'on_cpu\.py$|replay_buffer' | grep -E 'tests/trainer/|seqlen|tensordict|config|import_utils' | sort)
[ ${#files[@]} -gt 0 ] || { echo "verl_own_tests: $tree has no tests" >&2; exit 2; }
# What comes out with this value of VERL_USE_EXTERNAL_PLUGINS: a line for each test that failed, and one of counts.
outcome() {
    # where Ray has fewer CPUs than TransferQueue has storage units, it waits for ever (verl #7656)
    PYTHONPATH=$tree HF_HUB_OFFLINE=1 RAY_OVERRIDE_RESOURCES='{"CPU": 16}' VERL_USE_EXTERNAL_PLUGINS=$1 \
        "$python" -m pytest -q -rfE -p no:cacheprovider "${files[@]}" "${@:2}" 2>&1 |
        grep -oE '^(FAILED|ERROR) [^ ]+|^([0-9]+ (passed|failed|skipped|errors?|deselected|xfailed|warnings?)(, )?)+'
}
without=$(outcome none "$@")
with=$(outcome exgrpo "$@")
printf 'verl_own_tests: %s files; without exgrpo:\n%s\nwith it:\n%s\n' "${#files[@]}" "$without" "$with"
[ -n "$with" ] && [ "$without" = "$with" ]
