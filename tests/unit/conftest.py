"""What several files of unit tests need."""

import shutil
from pathlib import Path

import pytest

QUICKSTART = Path(__file__).parents[2] / "exp_scripts" / "quickstart"


@pytest.fixture
def files(tmp_path):
    """A folder with data.parquet, 16 questions, and the quickstart's model."""
    import pandas as pd

    gold = {"ground_truth": "1", "style": "rule"}
    rows = [
        {"prompt": [{"role": "user", "content": f"q{i}"}], "data_source": "t", "reward_model": gold}
        for i in range(16)
    ]
    pd.DataFrame(rows).to_parquet(tmp_path / "data.parquet")
    shutil.copytree(QUICKSTART / "base_model", tmp_path / "model")
    return tmp_path
