"""Everything that depends on verl besides the trainer, the command and the data set."""
