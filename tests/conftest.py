"""Files whose tests take longest begin first, so that the last ones do not wait for one of them."""

LONGEST_FIRST = [
    *("test_exact_resume.py", "test_training.py", "test_evaluation.py", "test_two_nodes.py"),
    *("test_crash_sweep.py",),
]


def pytest_collection_modifyitems(items):
    def place(item):
        name = item.path.name
        return LONGEST_FIRST.index(name) if name in LONGEST_FIRST else len(LONGEST_FIRST)

    items.sort(key=place)  # stable
