"""Graded rows as evaluation writes them, for tests of what reads them."""

import json

HOSTILE = (
    '</script><script>alert(1)</script><img src="https://example.org/x" onerror=alert(2)> {{ '
    "7*7 }} | `a` \x00 \ud800"
)


def row(benchmark, question, sample, correct, **more):
    extracted = (
        None if more.get("finish_reason") == "length" else f"{question if correct else 'no'}"
    )
    return {
        "benchmark": benchmark,
        "question": question,
        "question_id": f"{question:032x}",
        "sample": sample,
        "prompt": "What is it?",
        "response": HOSTILE,
        "tokens": 100 + question,
        "finish_reason": "stop",
        "answer": str(question),
        "correct": correct,
        "extracted": extracted,
        "vote": extracted,
        "timed_out": False,
        **more,
    }


def two_benchmarks():
    """Rows of one benchmark with four samples a question, one of them cut off, and of one with a
    hostile name.
    """
    mixed = [row("aime", q, s, (q + s) % 2 == 0) for q in range(4) for s in range(4)]
    mixed[1] |= {"finish_reason": "length", "extracted": None, "vote": None, "tokens": 400}
    return mixed + [row(HOSTILE[:40], q, 0, q < 3) for q in range(6)]


def save(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
