"""What exgrpo uses of verl, and whether an installed verl has it: ``python -m exgrpo.verl_contract
[FOLDER]``, where FOLDER holds another source tree of verl.

``verl_names.toml`` has the names: what each is ``for`` and, where that matters,

- ``takes``: parameters that are passed; any other has a default;
- ``calls``: methods, with the parameters that are passed;
- ``overrides``: methods that verl calls, with all their parameters (*: any);
- ``attributes``: what its methods assign to ``self``.

verl's source is read, not run: less than a second, without torch.
"""

from __future__ import annotations

import ast
import functools
import logging
import os
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any, TypeAlias

_logger = logging.getLogger(__name__)
TABLE = Path(__file__).with_name("verl_names.toml")
TESTED = ("0.9.1",)  # also the least that setup.py takes; a test compares the lock files
STRICT = "EXGRPO_STRICT_VERL"  # environment variable; 1: a version that is not tested is refused
Names: TypeAlias = dict[str, dict[str, Any]]  # module:name -> its entry
Found: TypeAlias = tuple[str, ast.stmt]  # a module, and a definition in it
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def read_names(table: Path = TABLE) -> Names:
    return tomllib.loads(table.read_text(encoding="utf-8"))


def verify(tree: Path | None = None) -> None:
    """ValueError, in one line, if a name is missing; a warning where the version is not tested."""
    (version, gone), tested = look(tree), ", ".join(TESTED)
    if gone:
        raise ValueError(f"verl {version}: {gone[0]}; exgrpo is tested with {tested}")
    if version not in TESTED:
        if os.environ.get(STRICT) == "1":
            raise ValueError(f"verl {version}: must be {tested} with {STRICT}=1")
        _logger.warning("exgrpo: verl %s is untested (%s is tested)", version, tested)


@functools.cache
def look(tree: Path | None = None) -> tuple[str, list[str]]:
    """verl's version and what is :func:`missing`; FileNotFoundError without verl or its queue."""
    source = Source(tree)
    return source.version, missing(source, read_names())


def missing(source: Source, names: Names) -> list[str]:
    """For each name that is gone or has other parameters a line that says what it is for."""
    return [
        f"{problem}, which is for {entry['for']}"
        for name, entry in names.items()
        for problem in _problems(source, name, entry)
    ]


class Source:
    """Definitions in the source of libraries: those in the folder `tree`, or else installed."""

    def __init__(self, tree: Path | None = None) -> None:
        self._tree = tree
        self._statements = functools.cache(self._read)

    @property
    def version(self) -> str:
        return (self._folder("verl") / "version" / "version").read_text().strip()

    def find(self, module: str, name: str) -> Found | None:
        """The definition of a module's name, also behind imports of the same library."""
        for node in self._statements(module):
            if name in _defined(node):
                return module, node
            if isinstance(node, ast.ImportFrom) and (origin := self._origin(module, node)):
                for alias in node.names:
                    here = alias.asname or alias.name
                    wanted = {"*": name, name: alias.name}.get(here)
                    if wanted and (found := self.find(origin, wanted)):
                        return found
        return None

    def family(self, found: Found) -> Iterator[ast.ClassDef]:
        """A class, then its bases in the same library."""
        module, node = found
        if isinstance(node, ast.ClassDef):
            yield node
            for base in node.bases:
                if isinstance(base, ast.Name) and (parent := self.find(module, base.id)):
                    yield from self.family(parent)

    def _folder(self, library: str) -> Path:
        if self._tree is not None and (self._tree / library).is_dir():
            return self._tree / library
        spec = find_spec(library)
        if spec is None or not spec.submodule_search_locations:
            raise FileNotFoundError(f"{library}: not installed")
        return Path(spec.submodule_search_locations[0])

    def _file(self, module: str) -> Path:
        library, *rest = module.split(".")
        path = self._folder(library).joinpath(*rest)
        return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")

    def _origin(self, module: str, node: ast.ImportFrom) -> str | None:
        package = module if self._file(module).name == "__init__.py" else module.rpartition(".")[0]
        origin = resolve_name("." * node.level + (node.module or ""), package)
        return origin if origin.partition(".")[0] == module.partition(".")[0] else None

    def _read(self, module: str) -> list[ast.stmt]:
        file = self._file(module)
        return list(_flat(ast.parse(file.read_bytes()).body)) if file.is_file() else []


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements, also those below `if` and `try`."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _flat([*node.body, *node.orelse])


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.ClassDef, *FUNCTIONS)):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {each.id for each in targets if isinstance(each, ast.Name)}


def _problems(source: Source, name: str, entry: dict[str, Any]) -> Iterator[str]:
    found = source.find(*name.split(":"))
    if found is None:
        yield f"{name} is gone"
        return
    family = list(source.family(found))
    members = {
        each.name: each
        for cls in reversed(family)
        for each in _flat(cls.body)
        if isinstance(each, FUNCTIONS)
    }
    used: list[tuple[str, Any, str, bool]] = []
    if "takes" in entry:
        used.append((name, members.get("__init__", found[1]), entry["takes"], False))
    for kind in ("calls", "overrides"):
        for key, parameters in entry.get(kind, {}).items():
            used.append((f"{name}.{key}", members.get(key), parameters, kind == "overrides"))
    for shown, function, parameters, exact in used:
        if function is None:
            yield f"{shown} is gone"
        elif parameters != "*" and not _fits(function, parameters.split(), exact):
            yield f"{shown} takes ({ast.unparse(function.args)}), not ({parameters})"
    assigned = {
        node.attr
        for cls in family
        for node in ast.walk(cls)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    for attribute in sorted(set(entry.get("attributes", "").split()) - assigned):
        yield f"{name}.{attribute} is assigned nowhere"


def _fits(function: Any, wanted: list[str], exact: bool) -> bool:
    """Whether its parameters, without self, are these; or take these, any other having defaults."""
    given = function.args
    placed = [
        each.arg for each in (*given.posonlyargs, *given.args) if each.arg not in ("self", "cls")
    ]
    needed = placed[: max(0, len(placed) - len(given.defaults))]
    named = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    needed += [each.arg for each, value in named if value is None]
    more = [given.vararg, *given.kwonlyargs, given.kwarg]
    taken = [*placed, *(each.arg for each in more if each)]
    return taken == wanted if exact else set(needed) <= set(wanted) <= set(taken)


def main() -> None:
    """Print what is missing, with status 1, or that nothing is."""
    try:
        version, gone = look(Path(sys.argv[1]) if sys.argv[1:] else None)
    except FileNotFoundError as error:
        sys.exit(f"exgrpo: {error}")
    print(*gone, f"verl {version}: {len(read_names())} names, {len(gone)} missing", sep="\n")
    sys.exit(bool(gone))


if __name__ == "__main__":
    main()
