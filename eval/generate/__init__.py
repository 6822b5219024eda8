"""Settings, questions, prompts and samplers of eval/generate_vllm.py, and what a run keeps over a
kill.
"""
