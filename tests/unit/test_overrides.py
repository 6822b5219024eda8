"""Paths of any characters as values of Hydra's: in Python, in a script, and what is said of one
that is not quoted.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
from composed import job
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from exgrpo.experience.rl_dataset_with_experience import RLHFDatasetWithExperience
from exgrpo.overrides import override
from exgrpo.preflight.unknown_keys import explain
from exgrpo.prompts import load_tokenizer

SCRIPTS = Path(__file__).parents[2] / "exp_scripts"
PATHS = [
    "/plain/folder",
    "/a b/ü 数据/x=1 (2),[3]'#%/{y}",
    "~/data",
    "/ends in a backslash\\",
    "/a\\'b\\\\'c\\d",
    "'quoted already'",
    '/$HOME/`x`/"y"',
    "",
]


@pytest.mark.parametrize("path", PATHS)
def test_hydra_reads_what_was_written(path):
    assert (
        OverridesParser.create().parse_override(override("data.train_files", path)).value() == path
    )


@pytest.mark.parametrize("path", [path for path in PATHS if "\\" not in path])
def test_so_does_a_script(path):
    print_it = ["bash", "-c", '. "$1"/quoted.sh; quoted "$2"', "bash", str(SCRIPTS), path]
    assert (
        subprocess.run(print_it, capture_output=True, text=True, check=True).stdout
        == override("", path)[1:]
    )


def test_the_released_script_takes_a_folder_of_any_name(tmp_path):
    data = tmp_path / "a b" / "ü 数据" / "x=1 (2),[3]'#%"
    environment = {
        "DATA_DIR": str(data),
        "SAVE_PATH": f"{data}/save",
        "MODEL_PATH": f"{data}/model",
    }
    script = (SCRIPTS / "run_exgrpo.sh").read_text()
    assert not [
        line for line in script.splitlines() if "=" in line and '="${' in line and "_PATH" in line
    ]
    shown = subprocess.run(
        ["bash", str(SCRIPTS / "run_exgrpo.sh"), "--cfg", "job"],
        env={"PATH": "/usr/bin:/bin", "PYTHON": "echo", **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    given = [part for part in shown.split(" ") if part]
    assert any(part.startswith("data.train_files='") for part in given)
    line = shown.split("data.train_files=")[1].split(" data.val_files=")[0]
    assert OverridesParser.create().parse_override(f"x={line}").value() == f"{data}/openr1.parquet"


@pytest.mark.parametrize("path", ["/tmp/数据/x.parquet", "/a/x=1/y", "/a/(2)/y", "/it's/y"])
def test_one_that_is_not_quoted_is_shown_with_its_quotes(path):
    given = f"data.train_files={path}"
    try:
        OverridesParser.create().parse_override(given)
    except Exception as error:
        (line,) = explain(error, [given], lambda overrides: job(*overrides))
        assert (
            line == f'{given}: Hydra cannot read it; write "{override("data.train_files", path)}"'
        )
    else:
        assert path == "/a/x=1/y", "Hydra reads it as it is"


def test_questions_below_such_a_folder_are_read_and_keep_their_name(files, tmp_path):
    """verl's data set hands its files to a function that takes a path for a pattern."""
    data = tmp_path / "x=1 (2),[3]*'#%" / "data.parquet"
    data.parent.mkdir()
    shutil.copy(files / "data.parquet", data)
    config = OmegaConf.create(
        {"max_prompt_length": 64, "cache_dir": str(tmp_path), "filter_overlong_prompts": False}
    )
    rows = RLHFDatasetWithExperience([str(data)], load_tokenizer(files / "model"), config)
    assert len(rows) == len(set(rows.question_ids())) > 1
    assert rows.data_files == [str(data)]
