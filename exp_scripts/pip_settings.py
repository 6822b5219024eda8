"""Print uv's settings that say what pip's configuration says on this machine, as exports for a
shell.

uv reads no pip.conf and none of pip's variables, so it would ask another index than pip. Settings
of uv that the caller has made stay. Exit status 3: pip is configured in a way that uv cannot be
told.
"""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys

VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
}
SECTIONS = ("global", "install", ":env:")  # a later one overrides an earlier one


def pip_settings(listing: str) -> dict[str, str]:
    """What ``pip install`` uses, from the lines of ``pip config list``; several values are
    separated by white space.
    """
    settings: dict[str, str] = {}
    for section in SECTIONS:
        for line in listing.splitlines():
            name, _, value = line.partition("=")
            if name.startswith(f"{section}."):
                settings[name.removeprefix(f"{section}.")] = str(ast.literal_eval(value))
    return settings


def uv_variables(settings: dict[str, str]) -> dict[str, str]:
    """The same for uv. pip takes the best version of all its indexes, so uv must too."""
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for name, variable in VARIABLES.items():
        if name in settings:
            variables[variable] = ("," if name == "find-links" else " ").join(
                settings[name].split()
            )
    return variables


def main() -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    settings = pip_settings(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout
    )
    if settings.get("no-index", "false").lower() in ("1", "true", "yes", "on"):
        sys.exit(3)
    for variable, value in uv_variables(settings).items():
        if variable not in os.environ:
            print(f"export {variable}={shlex.quote(value)}")


if __name__ == "__main__":
    main()
