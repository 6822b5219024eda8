"""What of replay is on disk: pools, trajectories as files, and how a file is replaced as a whole."""
