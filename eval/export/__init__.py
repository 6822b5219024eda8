"""Graded runs in other tools' formats: ``python -m eval.export``."""
