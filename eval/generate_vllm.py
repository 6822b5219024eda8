"""Sample, judge and report: eval/generate/command.py says how."""

from exgrpo_eval.generate.command import main

if __name__ == "__main__":
    main()
