"""`python -m exgrpo.inspect`: looks into a saved pool, exports it, and makes one of a file of trajectories."""
