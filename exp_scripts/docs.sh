#!/usr/bin/env bash
# The documentation as a site in site/: bash exp_scripts/docs.sh. Links and anchors are checked; a broken one is an error.
# Building asks for nothing from outside.
set -euo pipefail
cd "$(dirname "$0")/.."
. exp_scripts/environment.sh
bash exp_scripts/setup_cpu.sh requirements-docs.txt
NO_MKDOCS_2_WARNING=1 "$python" -m mkdocs build --strict
echo "docs: site/index.html"
