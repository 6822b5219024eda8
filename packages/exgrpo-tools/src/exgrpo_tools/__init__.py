"""Tools beside exgrpo: what looks at a pool and what the pages draw with. exgrpo imports nothing of it."""
