"""verl's RLHFDataset with a stable identity for each question."""

from __future__ import annotations

import glob
from typing import Any

from verl.utils.dataset.rl_dataset import RLHFDataset

from exgrpo.experience.question_id import row_question_id


class RLHFDatasetWithExperience(RLHFDataset):
    """Adds ``question_id`` to each row, the key of the question in the experience pool across runs.

    verl's own ``index`` is not an identity: it is 0 for every row of a file without one.
    """

    data_files: list[str]

    def _read_files_and_tokenize(self) -> None:
        files: list[str] = self.data_files  # type: ignore[has-type]  # verl's own attribute
        # verl hands them to a function that takes a path for a pattern
        self.data_files = [glob.escape(file) for file in files]
        super()._read_files_and_tokenize()
        self.data_files = files

    def __getitem__(self, item: int) -> dict[str, Any]:
        row = super().__getitem__(item)
        row["question_id"] = row_question_id(row["extra_info"], row[self.prompt_key])
        return row

    def question_ids(self) -> list[str]:
        """The id of every row that passed verl's length filter, in order."""
        prompts = self.dataframe[self.prompt_key]
        extras = [None] * len(self)
        if "extra_info" in self.dataframe.column_names:
            extras = self.dataframe["extra_info"]
        return [row_question_id(*row) for row in zip(extras, prompts, strict=True)]
