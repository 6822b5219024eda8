"""A copy of a model folder whose prompts open a thought: ``python -m exgrpo.thinking_copy``."""
