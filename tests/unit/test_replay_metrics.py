"""The health metrics of a step, against numbers worked out by hand."""

import numpy as np
import pytest

from exgrpo.experience.replay_metrics import ratio_metrics


def test_ratios_by_hand():
    metrics = ratio_metrics(np.log([0.25, 1.0, 1.0, 1.0, 3.0]).astype(np.float32))
    assert metrics["experience/ratio_mean"] == pytest.approx(1.25, rel=1e-6)
    assert metrics["experience/ratio_median"] == pytest.approx(1)
    assert metrics["experience/ratio_ess"] == pytest.approx(6.25**2 / (5 * 12.0625), rel=1e-6)
    assert metrics["experience/ratio_beyond_2"] == pytest.approx(2 / 5)  # below 1/2 and above 2
    assert 0.25 < metrics["experience/ratio_p05"] < 1 < metrics["experience/ratio_p95"] < 3


def test_nothing_replayed_has_the_same_keys():
    none = ratio_metrics(np.empty(0, np.float32))
    assert list(none) == list(ratio_metrics(np.zeros(3, np.float32)))
    assert none["experience/ratio_mean"] == 1 and none["experience/ratio_beyond_2"] == 0
