"""The validation's average over data sources, by which the release keeps its best model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from statistics import fmean

_MEAN = re.compile(r"val-core/(?P<source>.+)/(?:acc|reward)/mean@\d+")


def with_averages(metrics: Mapping[str, float]) -> dict[str, float]:
    """verl's validation metrics and the averages of its mean scores, each data source counted once.

    Args:
        metrics: of verl's validation; the mean scores are ``val-core/SOURCE/acc/mean@N``, with
            ``reward`` where the reward function gives no ``acc``.

    Returns:
        A new dictionary with ``val-core/avg_score``, the mean over data sources, and
        ``val-core/avg_score_stable``, that without the sources whose name contains "minerva"; each
        only if it has a source.
    """
    matches = [(_MEAN.fullmatch(key), score) for key, score in metrics.items()]
    found = [(match["source"], score) for match, score in matches if match]
    means = {
        "avg_score": [score for _, score in found],
        "avg_score_stable": [score for source, score in found if "minerva" not in source],
    }
    averages = {f"val-core/{name}": fmean(scores) for name, scores in means.items() if scores}
    return {**metrics, **averages}
