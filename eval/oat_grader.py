"""The process of Oat's grader, started by its path: eval/grade/oat_grader.py says what it judges."""

if not __package__:  # started by its path: only this folder is on the import path
    import on_path  # noqa: F401

from eval.grade.oat_grader import main

if __name__ == "__main__":
    main()
