"""Sample a model's answers to benchmark questions, judge them, report and compare: start with
generate/command.py.

The command `exgrpo-eval` starts them, or their paths in a checkout. This folder is imported as
`exgrpo_eval`.
"""
