"""verl's RLHFDataset with a stable identity for each question."""

from __future__ import annotations

import glob
from typing import Any

from verl.utils.dataset.rl_dataset import RLHFDataset

from exgrpo.experience.question_id import row_question_id
from exgrpo.refusal import refuse


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
        return _with_id(super().__getitem__(item), self.prompt_key)

    def question_ids(self) -> list[str]:
        """The id of every row that passed verl's length filter, in order."""
        prompts = self.dataframe[self.prompt_key]
        extras = [None] * len(self)
        if "extra_info" in self.dataframe.column_names:
            extras = self.dataframe["extra_info"]
        return [row_question_id(*row) for row in zip(extras, prompts, strict=True)]


def with_ids(dataset: Any) -> Any:
    """A user's data set (``data.custom_cls``), its rows with ids from now on.

    Raises:
        ValueError: its class does not extend verl's, by whose attributes the ids are read.
    """
    own = type(dataset)
    if hasattr(dataset, "question_ids"):
        return dataset
    if not isinstance(dataset, RLHFDataset):
        refuse("data.custom_cls.name", own.__name__, "a class that extends verl's RLHFDataset")

    class WithIds(own):  # type: ignore[valid-type]
        question_ids = RLHFDatasetWithExperience.question_ids

        def __getitem__(self, item: int) -> dict[str, Any]:
            return _with_id(super().__getitem__(item), self.prompt_key)

    dataset.__class__ = WithIds  # verl's loader has the object already
    return dataset


def _with_id(row: dict[str, Any], prompt_key: str) -> dict[str, Any]:
    return row | {"question_id": row_question_id(row.get("extra_info"), row[prompt_key])}
