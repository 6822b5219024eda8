"""Everything that depends on verl besides the trainer and the command: rows, queue, loss,
checkpoints, start, CPU.
"""
