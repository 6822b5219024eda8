"""exp_scripts/pip_settings.py: uv is told what pip is configured with, by pip's own list of it."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def uv_settings(tmp_path, configuration, **environment):
    """What exp_scripts/pip_settings.py exports where pip has this configuration file and these
    variables.
    """
    (tmp_path / "pip.conf").write_text(configuration)
    base = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PIP_", "UV_", "SSL_"))
    }
    there = {
        "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"),
        "HOME": str(tmp_path),
        "XDG_CONFIG_DIRS": str(tmp_path),
    }
    command = [sys.executable, str(ROOT / "exp_scripts" / "pip_settings.py")]
    done = subprocess.run(command, env=base | there | environment, capture_output=True, text=True)
    exports = (shlex.split(line)[1].split("=", 1) for line in done.stdout.splitlines())
    return done.returncode, dict(exports)


def test_uv_is_told_what_pip_is_configured_with(tmp_path):
    configuration = (
        "[global]\nindex-url = file:///one\nextra-index-url =\n    file:///two\n    file:///three\n"
        "find-links = /a /b\n[install]\nindex-url = file:///of-install\n"
    )
    code, settings = uv_settings(
        tmp_path, configuration, PIP_FIND_LINKS="/c /d", PIP_CERT="/certificates"
    )
    wanted = {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_DEFAULT_INDEX": "file:///of-install",
        "UV_INDEX": "file:///two file:///three",
        "UV_FIND_LINKS": "/c,/d",
        "SSL_CERT_FILE": "/certificates",
    }
    assert code == 0 and settings.items() >= wanted.items()


def test_settings_of_uv_stay_and_what_uv_cannot_be_told_is_left_to_pip(tmp_path):
    configuration = "[global]\nindex-url = file:///one\n"
    assert (
        "UV_DEFAULT_INDEX"
        not in uv_settings(tmp_path, configuration, UV_DEFAULT_INDEX="file:///mine")[1]
    )
    assert uv_settings(tmp_path, configuration, PIP_NO_INDEX="1") == (3, {})
