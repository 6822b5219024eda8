"""Sample a model's answers to benchmark questions, judge them, report and compare: start with generate/command.py.

The scripts generate_vllm, report, compare and sample_size run as ``python -m eval.NAME`` in the repository's root, and
as ``python PATH/eval/NAME.py`` anywhere; run that way they add the root to the import path themselves.
"""
