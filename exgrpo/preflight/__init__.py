"""Checks and completion of the configuration before Ray starts."""
