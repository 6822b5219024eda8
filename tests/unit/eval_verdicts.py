"""What tests of evaluation's grading share: a response to judge, and a key of what comes of it."""

from exgrpo_eval.grade.grading import grade


def row(response, answer="5", benchmark="math", **more):
    return {
        "benchmark": benchmark,
        "response": response,
        "answer": answer,
        "finish_reason": "stop",
        **more,
    }


def verdicts(rows, key="correct", **options):
    return [graded[key] for graded in grade(rows, **options)]
