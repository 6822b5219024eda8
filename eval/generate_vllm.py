"""Sample, judge and report: eval/generate/command.py says how."""

if not __package__:  # started by its path: only this folder is on the import path
    import on_path  # noqa: F401

from eval.generate.command import main

if __name__ == "__main__":
    main()
