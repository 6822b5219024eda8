"""Everything that knows verl, beside the trainer and the command: rows, queue, loss, checkpoints, start-up, a CPU."""
