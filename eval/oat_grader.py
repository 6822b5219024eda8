"""The process of Oat's grader, started by its path: eval/grade/oat_grader.py says what it
judges.
"""

from exgrpo_eval.grade.oat_grader import main

if __name__ == "__main__":
    main()
