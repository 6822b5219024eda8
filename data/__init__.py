"""Training and benchmark files in verl's parquet schema.

Its scripts, make_tasks, prepare_train and prepare_eval, run as ``python -m data.NAME`` in the repository's root and as
``python PATH/data/NAME.py`` anywhere; the latter put the root on the import path themselves.
"""
