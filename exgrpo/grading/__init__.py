"""Judge answers that Math-Verify rejects again, by stated rules: see docs/grading.md.

The order of the work: ``boxes`` finds the answer in a response, ``repair`` mends its LaTeX, ``reading`` makes a tree of
it (lists, tuples, intervals, relations, expressions), ``rules`` compares two trees, ``cascade`` puts it together.
Nothing here imports SymPy: expressions are compared by their values, in exact or 50-digit arithmetic, within bounds.
"""
