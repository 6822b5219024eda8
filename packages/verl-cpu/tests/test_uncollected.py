"""What is made while the collector is paused."""

import gc
import weakref

import pytest

from verl_cpu.prepared.uncollected import uncollected


class Cycle:
    def __init__(self):
        self.itself = self


def test_nothing_is_collected_within_and_the_collector_is_left_as_it_was():
    with uncollected():
        assert not gc.isenabled()
        within = weakref.ref(Cycle())
    gc.collect()
    assert gc.isenabled() and within() is not None
    after = weakref.ref(Cycle())
    gc.collect()
    assert after() is None
    with pytest.raises(ValueError), uncollected():
        raise ValueError
    assert gc.isenabled()
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
