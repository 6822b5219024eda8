"""What tests of evaluation's inputs share: rows and files in verl's schema, and a command line."""

import pyarrow as pa
import pyarrow.parquet as pq

from exgrpo_eval.generate import arguments


def row(text, answer="1", benchmark="math", system="Think.", **extra):
    turns = [{"role": "system", "content": system}] if system else []
    reward = {"ground_truth": answer, "style": "rule"}
    prompt = [*turns, {"role": "user", "content": text}]
    return {
        "data_source": benchmark,
        "prompt": prompt,
        "reward_model": reward,
        "extra_info": {"index": 0, **extra},
    }


def parquet(folder, rows, name="in.parquet"):
    pq.write_table(pa.Table.from_pylist(rows), folder / name)
    return folder / name


def settings(*flags):
    return arguments.read(
        ["--model_path", "m", "--input_file", "f", "--output_file", "o.jsonl", *flags], ""
    )
