"""Let a virtual environment see the packages of the one that made it: ``python
exp_scripts/outer_packages.py NEW``.

``python -m venv --system-site-packages`` from inside an environment shows the base interpreter's
packages instead. Run by the outer environment's Python; it writes a .pth file, whose folders come
after the new environment's own.
"""

import os
import site
import sys
from pathlib import Path


def main() -> None:
    """Write the file; nothing where this Python is no virtual environment."""
    if sys.prefix == sys.base_prefix:
        return
    inner = Path(sys.argv[1]) / Path(site.getsitepackages()[0]).relative_to(sys.prefix)
    folders = [os.fspath(folder) for folder in site.getsitepackages() if os.path.isdir(folder)]
    lines = [f"import site; site.addsitedir({folder!r})" for folder in folders]
    (inner / "outer_packages.pth").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
