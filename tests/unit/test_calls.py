"""A call says by name what its arguments are where there are many: read from the source."""

import ast

import pytest
from source_code import PACKAGE, dotted, shown, tree

MOST = 5
ANY_NUMBER = {"HEADER.pack", "itertools.chain", "_all"}  # of one kind


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=shown)
def test_six_arguments_or_more_are_given_by_name(path):
    calls = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
    many = [call for call in calls if len(call.args) > MOST and dotted(call.func) not in ANY_NUMBER]
    assert not [f"{shown(path)}:{call.lineno}: {ast.unparse(call)}" for call in many]
