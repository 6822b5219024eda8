#!/usr/bin/env bash
# Build the documentation as a site in site/: bash exp_scripts/docs.sh. A broken link or anchor is an error. The build
# makes no requests.
set -euo pipefail
cd "$(dirname "$0")/.."
. exp_scripts/environment.sh
bash exp_scripts/setup_cpu.sh requirements/docs.txt
NO_MKDOCS_2_WARNING=1 "$python" -m mkdocs build --strict --config-file - < docs/mkdocs.yml
echo "docs: site/index.html; its search needs a server: python -m http.server --directory site"
