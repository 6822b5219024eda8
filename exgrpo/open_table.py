"""Extensible rules: a key takes a name from its table, ``pkg://module:name`` or
``path/file.py:name``.

A reference is a string, so that it reaches every process that needs the rule, the driver as well as
the actors.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from exgrpo.refusal import refuse

REFERENCES = "pkg://module:name or path/file.py:name"
_PACKAGE = "pkg://"
Rule = TypeVar("Rule", bound=Callable[..., Any])


class OpenTable(Generic[Rule]):
    """Named functions of one signature.

    Args:
        parameters: names of the arguments, in order; a user-defined rule must accept as many.
        named: name -> function.
        more: names of further arguments that a rule may take, all or none (`takes_more`).
        with_memory: whether a rule may also be a class, made without arguments and then called.
    """

    def __init__(
        self,
        parameters: tuple[str, ...],
        named: Mapping[str, Rule],
        more: tuple[str, ...] = (),
        with_memory: bool = False,
    ) -> None:
        self.parameters, self.more, self.with_memory = parameters, more, with_memory
        self._named = dict(named)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._named)

    def load(self, key: str, name: str, others: tuple[str, ...] = ()) -> Rule:
        """The rule of that name or reference.

        Args:
            key: of the setting, for the message.
            others: values that the setting takes beside the table's, for the message.

        Raises:
            ValueError: one line with key, value and what is allowed.
        """
        if name in self._named:
            return self._named[name]
        if not is_reference(name):
            refuse(key, name, f"one of {', '.join((*self._named, *others))}, or {REFERENCES}")
        rule: Rule = load_reference(key, name, self.parameters, self.more, self.with_memory)
        return rule

    def takes_more(self, rule: Rule) -> bool:
        """Whether a rule of the table takes the further arguments."""
        return bool(self.more) and _takes(rule, self.parameters + self.more)


def is_reference(name: object) -> bool:
    """Whether `name` has the form of a reference; nothing is imported."""
    if not isinstance(name, str) or ":" not in name.removeprefix(_PACKAGE):
        return False
    return _is_file(name) or name.startswith(_PACKAGE)


def file_of(reference: str) -> str | None:
    """The file of ``path/file.py:name``; None for any other reference or name."""
    if is_reference(reference) and _is_file(reference):
        return reference.rpartition(":")[0]
    return None


def _is_file(name: str) -> bool:
    return not name.startswith(_PACKAGE) and name.rpartition(":")[0].endswith(".py")


@functools.cache
def load_reference(
    key: str,
    reference: str,
    parameters: tuple[str, ...],
    more: tuple[str, ...] = (),
    with_memory: bool = False,
) -> Any:
    """Import the function that a reference names, or with `with_memory` make one of its class.

    Raises:
        ValueError: as :func:`load_function`, or it does not take these arguments; in one line.
    """
    rule = load_function(key, reference)
    called = rule.__call__ if with_memory and inspect.isclass(rule) else rule
    given = ("self", *parameters) if called is not rule else parameters
    if not _takes(called, given) and not _takes(called, given + more):
        allowed = f"must take the arguments ({', '.join(parameters)})"
        raise ValueError(f"{key}={reference}: {allowed}")
    return rule


def _takes(rule: Callable[..., Any], arguments: tuple[str, ...]) -> bool:
    try:
        inspect.signature(rule).bind(*arguments)
    except TypeError:
        return False
    return True


def load_function(key: str, reference: str) -> Any:
    """The function that a reference names, whatever its arguments.

    Raises:
        ValueError: it cannot be imported or is not a function; in one line.
    """
    where, _, name = reference.removeprefix(_PACKAGE).rpartition(":")
    try:
        module = (
            _module_of_file(Path(where)) if _is_file(reference) else importlib.import_module(where)
        )
    except Exception as error:  # a user's module may raise any error
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(f"{key}={reference}: {where} cannot be imported ({reason})") from error
    rule = getattr(module, name, None)
    if not callable(rule):
        raise ValueError(f"{key}={reference}: {where} has no function {name!r}")
    return rule


def _module_of_file(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError("no such file")
    name = f"exgrpo_rules_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None  # the name ends in .py
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # before it runs: dataclasses look their module up
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
