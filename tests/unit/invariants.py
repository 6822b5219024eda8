"""What holds of a pool after every call."""

from collections import Counter

from exgrpo.experience import packing


def check(pool):
    """Questions and trajectories agree, counts are those of what is held, and the bounds hold."""
    buckets, store = pool._buckets, pool._store
    buckets.check_invariants()
    assert set(buckets) == set(store.questions())
    entries = [entry for held in store._held.values() for entry in held]
    for held in store._held.values():
        assert held and held == sorted(held, key=packing.serial)
    owners = {
        packing.serial(entry): question for question, held in store._held.items() for entry in held
    }
    order = store._order
    assert owners == {
        n: owner for n, owner in enumerate(order._owner, order._base) if owner is not None
    }
    assert min(owners, default=order._oldest) >= order._oldest
    assert store._bytes == sum(map(len, entries))
    assert (store._count, store._tokens) == (len(entries), sum(map(packing.length, entries)))
    assert store._steps == Counter(map(packing.step, entries))
    assert len(entries) <= store._max_trajectories and store.memory_bytes <= store._max_bytes
    assert max(map(len, store._held.values()), default=0) <= store._max_per_question
