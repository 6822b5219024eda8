"""Means, intervals, paired tests and sample sizes of graded runs."""
