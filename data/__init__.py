"""Training and benchmark files in verl's parquet schema.

The command `exgrpo-data` starts them, or their paths in a checkout. This folder is imported as
`exgrpo_data`.
"""
