"""Graded runs in other tools' formats: ``exgrpo-eval export``."""
