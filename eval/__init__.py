"""Sample a model's answers to benchmark questions, judge them, report and compare: eval.generate_vllm is the start.

Its scripts, generate_vllm, report, compare and sample_size, run as ``python -m eval.NAME`` in the repository's root and
as ``python PATH/eval/NAME.py`` anywhere; the latter put the root on the import path themselves.
"""
