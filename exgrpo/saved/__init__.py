"""Replay on disk: saved pools, trajectories as files, and the atomic replacement of files."""
