"""verl's RLHFDataset with a stable identity for each question."""

from __future__ import annotations

import glob
from typing import Any

from verl.utils.dataset.rl_dataset import RLHFDataset

from exgrpo.experience.question_id import row_question_id
from exgrpo.refusal import refuse


class QuestionIds:
    """Adds ``question_id`` to each row, the key of the question in the experience pool across runs.

    verl's own ``index`` is not an identity: it is 0 for every row of a file without one.
    """

    dataframe: Any  # verl's: the rows that passed its length filter
    prompt_key: str

    def __getitem__(self, item: int) -> dict[str, Any]:
        row: dict[str, Any] = super().__getitem__(item)  # type: ignore[misc]
        row["question_id"] = row_question_id(row.get("extra_info"), row[self.prompt_key])
        return row

    def question_ids(self) -> list[str]:
        """The id of every row that passed verl's length filter, in order."""
        prompts = self.dataframe[self.prompt_key]
        extras = [None] * len(self.dataframe)
        if "extra_info" in self.dataframe.column_names:
            extras = self.dataframe["extra_info"]
        return [row_question_id(*row) for row in zip(extras, prompts, strict=True)]


class RLHFDatasetWithExperience(QuestionIds, RLHFDataset):
    """verl's data set with ids."""

    data_files: list[str]

    def _read_files_and_tokenize(self) -> None:
        files: list[str] = self.data_files  # type: ignore[has-type]  # verl's own attribute
        # verl hands them to a function that takes a path for a pattern
        self.data_files = [glob.escape(file) for file in files]
        super()._read_files_and_tokenize()
        self.data_files = files


def with_ids(dataset: Any) -> Any:
    """A user's data set (``data.custom_cls``), its rows with ids from now on.

    Raises:
        ValueError: its class does not extend verl's, by whose attributes the ids are read.
    """
    own = type(dataset)
    if not hasattr(dataset, "question_ids"):
        if not isinstance(dataset, RLHFDataset):
            refuse("data.custom_cls.name", own.__name__, "a class that extends verl's RLHFDataset")
        dataset.__class__ = type(own.__name__, (QuestionIds, own), {"__module__": own.__module__})
    return dataset
