"""`exgrpo-inspect`: inspects a saved pool, exports it, or makes one from a file of trajectories."""
