"""Hydra finds a folder of configurations by a package: ``pkg://exgrpo.config``."""
