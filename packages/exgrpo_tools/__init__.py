"""Commands for pools and trainings, and what their pages draw with. exgrpo imports nothing
of it.
"""
