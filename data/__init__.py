"""Training and benchmark files in verl's parquet schema.

The command `exgrpo-data` starts them. Started by their paths, as in ``python PATH/data/prepare_train.py``, they add the
checkout's root to the import path themselves.
"""
