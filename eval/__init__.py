"""Sample a model's answers to benchmark questions, judge them, report and compare: start with generate/command.py.

The command `exgrpo-eval` starts them. Started by their paths, as in ``python PATH/eval/generate_vllm.py``, they add the
checkout's root to the import path themselves.
"""
