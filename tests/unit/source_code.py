"""What Python files say, read from their syntax trees without running them: imports, private names,
definitions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "exgrpo"


class Named(NamedTuple):
    """A dotted name and the line it stands in."""

    name: str
    line: int


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[Named]:
    """Full names of what is imported, at the top and in functions: `module.name`, or `module` of a
    plain import.
    """
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (Named(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{shown(path)}:{node.lineno}: a relative import"
            yield from (Named(f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def top(name: str) -> str:
    return name.partition(".")[0]


def dotted(node: ast.expr) -> str | None:
    """`a.b.c` of an expression that is nothing else; None of any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr}"
    return None


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name != "_"


def private_uses(path: Path) -> Iterator[Named]:
    """Private names that the file takes from elsewhere; those that it defines are its own when
    asked of self or cls.

    Looked at: imports, attributes, and getattr and the like with a constant name.
    """
    module = tree(path)
    own = defined(module)
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom):
            yield from (
                Named(alias.name, node.lineno) for alias in node.names if is_private(alias.name)
            )
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            if not (dotted(node.value) in ("self", "cls") and node.attr in own):
                yield Named(node.attr, node.lineno)
        elif isinstance(node, ast.Call) and dotted(node.func) in (
            "getattr",
            "setattr",
            "hasattr",
            "delattr",
        ):
            name = node.args[1]
            if isinstance(name, ast.Constant) and is_private(str(name.value)):
                yield Named(str(name.value), node.lineno)


def overrides(path: Path, library: str) -> Iterator[Named]:
    """Private methods of classes with a base imported from `library`."""
    module = tree(path)
    foreign = {name.name.rpartition(".")[2] for name in imports(path) if top(name.name) == library}
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef) and any(dotted(base) in foreign for base in node.bases):
            methods = (
                each
                for each in node.body
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            )
            yield from (
                Named(method.name, method.lineno) for method in methods if is_private(method.name)
            )


def defined(module: ast.AST) -> set[str]:
    """Functions, and attributes that are assigned to self or annotated in a class."""
    names = set()
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and dotted(node.value) == "self"
        ):
            names.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names
