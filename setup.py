"""exgrpo: ExGRPO experience replay (arXiv 2510.02245) as a plug-in for verl."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "([^"]+)"', (ROOT / "exgrpo" / "__init__.py").read_text()).group(1)

setup(
    name="exgrpo",
    version=VERSION,
    description="ExGRPO experience replay (arXiv 2510.02245) as a plug-in for stock verl",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["exgrpo", "exgrpo.*"]),
    package_data={
        "exgrpo": [
            "config/*.yaml",
            "config/stack/*.yaml",
            "charts/*.js",
            "charts/chartjs-4.6.1/*",
            "inspect/*.html",
            "inspect/*.css",
            "inspect/*.js",
            "py.typed",
        ]
    },
    install_requires=["numpy"],
    extras_require={
        # without verl's extra fsdp, whose flash-attn no resolver can install: exp_scripts/setup_gpu.sh
        "verl": ["verl[vllm]==0.9.1", "math-verify==0.9.0"],
        "torch": ["torch"],
        "trl": ["trl==1.10.0", "torch"],
    },
    entry_points={
        "verl.plugins": ["exgrpo = exgrpo.plugin"],
        "vllm.general_plugins": ["exgrpo = exgrpo.on_verl.cpu.vllm_on_cpu:install"],
    },
)
