"""exgrpo: ExGRPO experience replay (arXiv 2510.02245) as a plug-in for verl."""

import os
import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERL = re.search(r'TESTED = \("([^"]+)"', (ROOT / "exgrpo" / "verl_contract.py").read_text()).group(
    1
)
VERSION = re.search(
    r'__version__ = "([^"]+)"', (ROOT / "exgrpo" / "__init__.py").read_text()
).group(1)
# Where this copy of the project lives; the maintainer's release sets it, and the site's build
URL = os.environ.get("EXGRPO_URL", "")
# package -> its folder: the model card's names for eval/ and data/, which no package on the path
# may have
FOLDERS = {
    "exgrpo": "exgrpo",
    "exgrpo_tools": "packages/exgrpo_tools",
    "exgrpo_eval": "eval",
    "exgrpo_data": "data",
}

setup(
    name="exgrpo",
    version=VERSION,
    description="ExGRPO experience replay (arXiv 2510.02245) as a plug-in for stock verl",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The exgrpo developers",
    license="Apache-2.0",
    project_urls={
        "Source": URL,
        "Changelog": f"{URL}/blob/main/CHANGELOG.md",
        "Issues": f"{URL}/issues",
    }
    if URL
    else {},
    license_files=["LICENSE"],
    keywords=[
        "reinforcement learning",
        "large language models",
        "experience replay",
        "GRPO",
        "ExGRPO",
        "verifiable rewards",
        "verl",
    ],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Intended Audience :: Developers",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    # verl excludes 3.13; pool, buffer, sampler and loss run there
    python_requires=">=3.11",
    packages=[
        name
        for top, folder in FOLDERS.items()
        for name in (top, *(f"{top}.{below}" for below in find_packages(folder)))
    ],
    package_dir=FOLDERS,
    package_data={
        "exgrpo_data": ["system_prompt.txt"],
        "exgrpo_eval": ["benchmarks/*.yaml", "reports/*.jinja"],
        "exgrpo_tools": ["inspect/page.*", "inspect/*.js", "charts/*.js", "charts/chartjs-4.6.1/*"],
        "exgrpo": [
            "config/*.yaml",
            "config/method/*.yaml",
            "config/stack/*.yaml",
            "preflight/*.yaml",
            "py.typed",
            "verl_names.toml",
        ],
    },
    install_requires=["numpy"],
    extras_require={
        # without verl's extra fsdp, whose flash-attn no resolver can install:
        # exp_scripts/setup_gpu.sh
        "verl": [f"verl[vllm]>={VERL},<0.11", "math-verify==0.9.0"],
        "torch": ["torch"],
        "save": ["pyarrow"],
        # of exgrpo-data, exgrpo-eval and exgrpo-inspect; vLLM and torch are the training stack's
        "tools": [
            "datasets",
            "jinja2",
            "math-verify==0.9.0",
            "matplotlib",
            "psutil",
            "pyarrow",
            "pyyaml",
            "rich",
            "tqdm",
            "transformers",
        ],
        "trl": ["trl==1.10.0", "torch"],
        # the newest beside vLLM 0.24, which pins apache-tvm-ffi 0.1.9: b20 asks for 0.1.12
        "flash-attn-4": ["flash-attn-4==4.0.0b19"],
        "inspect-log": ["inspect-ai"],
        "docs": ["mkdocs==1.6.1", "mkdocs-material==9.8.1"],
    },
    entry_points={
        "console_scripts": [
            "exgrpo-data = exgrpo_data.__main__:main",
            "exgrpo-eval = exgrpo_eval.__main__:main",
            "exgrpo-inspect = exgrpo_tools.inspect.__main__:main",
            "exgrpo-sizing = exgrpo_tools.sizing:main",
            "exgrpo-train = exgrpo.commands:train",
        ],
        "verl.plugins": [
            "exgrpo = exgrpo.verl_plugin",
        ],
    },
)
