"""How the trainer tells the loss which tokens are replayed: one code per token, in the only channel verl offers."""

ON_POLICY = 0.0  # before mixing begins: every token is fresh, with the clipped objective
FRESH = 1.0  # a fresh token of a mixed step
REPLAYED = 2.0  # a token of a replayed trajectory
