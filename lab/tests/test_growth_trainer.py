"""lab/benchmarks/growth_trainer.py starts by its path: it finds what it shares with benchmarks/."""

import subprocess
import sys
from pathlib import Path

TRAINER = Path(__file__).parents[1] / "benchmarks" / "growth_trainer.py"


def test_the_trainer_of_growth_composes_its_configuration(tmp_path):
    done = subprocess.run([sys.executable, TRAINER, "--cfg", "job"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "experience_ratio: 0.5\n" in done.stdout and "total_epochs: " in done.stdout  # ours and verl's
