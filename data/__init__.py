"""Training and benchmark files in verl's parquet schema.

The scripts make_tasks, prepare_train and prepare_eval run as ``python -m data.NAME`` in the repository's root, and as
``python PATH/data/NAME.py`` anywhere; run that way they add the root to the import path themselves.
"""
