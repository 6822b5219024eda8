r"""Parse repaired LaTeX of one expression into a tree (math_verify_rules.trees); anything else is
`Unreadable`.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from math_verify_rules.trees import FUNCTIONS, GREEK, UNKNOWN_FUNCTIONS, Tree, Unreadable, tokens

MAX_DEPTH = 40
_NO_FACTOR = frozenset(
    ("+", "-", "*", "/", "^", "_", ")", "]", "}", "!", "°", "%", "'", ",")
    + ("\\}", "\\%", "\\rfloor", "\\rceil", "\\mid", "\\in")
)
_THOUSANDS = re.compile(r"(?<![\d.,])([1-9]\d{0,2}(?:,\d{3})+)(?![\d,])")


@lru_cache(maxsize=1024)
def parse(latex: str) -> Tree:
    """The tree of an expression. Raises: Unreadable."""
    reader = _Reader(tokens(_THOUSANDS.sub(lambda number: number[1].replace(",", ""), latex)))
    tree = reader.sum(0)
    if reader.here is not None:
        raise Unreadable(latex)
    return tree


class _Reader:
    """Recursive descent over tokens; every method reads one grammatical form at the current
    position.
    """

    def __init__(self, tokens: list[str]) -> None:
        self._tokens, self._at, self._bars = tokens, 0, 0

    @property
    def here(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self) -> str:
        token = self.here
        if token is None:
            raise Unreadable("ends too soon")
        self._at += 1
        return token

    def _expect(self, token: str) -> None:
        if self._next() != token:
            raise Unreadable(f"no {token}")

    def sum(self, depth: int) -> Tree:
        if depth > MAX_DEPTH:
            raise Unreadable("too deep")
        tree = self._product(depth)
        while self.here in ("+", "-"):
            sign = self._next()
            term = self._product(depth)
            tree = ("+", tree, term if sign == "+" else ("neg", term))
        return tree

    def _product(self, depth: int) -> Tree:
        if self.here in ("+", "-"):
            return self._product(depth) if self._next() == "+" else ("neg", self._product(depth))
        tree = self._power(depth)
        while True:
            if self.here in ("*", "/"):
                sign = self._next()
                negative = self.here == "-"
                if negative:
                    self._next()
                factor = self._power(depth)
                tree = (sign, tree, ("neg", factor) if negative else factor)
            elif self._starts_factor():
                tree = self._beside(tree, self._power(depth))
            else:
                return tree

    def _starts_factor(self) -> bool:
        token = self.here
        if token is None or token in _NO_FACTOR:
            return False
        return not (token == "|" and self._bars)

    def _beside(self, left: Tree, right: Tree) -> Tree:
        """Two adjacent factors: a mixed number, or a product; never two numbers."""
        if left[0] == "num" and left[1].denominator == 1:
            if right[0] == "num" and self.here == "/":  # 7 3/4
                self._next()
                below = self._power(0)
                right = ("/", right, below)
                return self._mixed(left, right)
            if right[0] == "/" and right[1][0] == right[2][0] == "num":
                return self._mixed(left, right)
        if right[0] == "num":
            raise Unreadable("two numbers side by side")
        return ("*", left, right)

    def _mixed(self, whole: Tree, part: Tree) -> Tree:
        above, below = part[1][1], part[2][1] if part[2][0] == "num" else Fraction(0)
        if not 0 < above < below or above.denominator * below.denominator != 1:
            raise Unreadable("a number beside a fraction that is no part of one")
        return ("+", whole, part)

    def _power(self, depth: int) -> Tree:
        tree = self._marks(self._atom(depth + 1))
        if self.here == "^":
            self._next()
            tree = self._marks(("^", tree, self._argument(depth)))
        return tree

    def _marks(self, tree: Tree) -> Tree:
        while self.here in ("!", "°", "%", "\\%"):
            mark = self._next()
            tree = (
                ("call", "factorial", tree)
                if mark == "!"
                else ("deg" if mark == "°" else "pct", tree)
            )
        return tree

    def _argument(self, depth: int, digits: bool = False) -> Tree:
        r"""What follows ^ or \frac: a group, one command or number, or one of the `digits`:
        \frac12, but x^10.
        """
        if self.here == "-":
            self._next()
            return ("neg", self._argument(depth, digits))
        token = self.here
        if digits and token is not None and token.isdigit() and len(token) > 1:
            self._tokens[self._at : self._at + 1] = list(token)
        return self._atom(depth + 1)

    def _group(self, closing: str, depth: int) -> Tree:
        tree = self.sum(depth + 1)
        self._expect(closing)
        return tree

    def _atom(self, depth: int) -> Tree:
        if depth > MAX_DEPTH:
            raise Unreadable("too deep")
        token = self._next()
        if token[0].isdigit() or token[0] == ".":
            return ("num", Fraction(token))
        if token in ("(", "[", "{"):
            return self._group({"(": ")", "[": "]", "{": "}"}[token], depth)
        if token == "|":
            return self._absolute(depth)
        if token.isalpha():
            return self._variable(token, depth)
        if token.startswith("\\"):
            return self._command(token[1:], depth)
        raise Unreadable(token)

    def _absolute(self, depth: int) -> Tree:
        self._bars += 1
        tree = self.sum(depth + 1)
        self._bars -= 1
        self._expect("|")
        return ("call", "abs", tree)

    def _variable(self, name: str, depth: int) -> Tree:
        if name == "e" and self.here != "_":
            return ("const", "e")
        name += self._subscript()
        while self.here == "'":
            name += self._next()
        if name[0] in UNKNOWN_FUNCTIONS and self.here == "(":
            self._next()
            return ("call", "?" + name, *self._arguments(")", depth))
        return ("var", name)

    def _subscript(self) -> str:
        if self.here != "_":
            return ""
        self._next()
        token = self._next()
        if token != "{":
            return "_" + token
        inside = ""
        while self.here != "}":
            inside += self._next()
        self._next()
        return "_" + inside

    def _arguments(self, closing: str, depth: int) -> list[Tree]:
        arguments = [self.sum(depth + 1)]
        while self.here == ",":
            self._next()
            arguments.append(self.sum(depth + 1))
        self._expect(closing)
        return arguments

    def _command(self, name: str, depth: int) -> Tree:
        if name in ("pi", "infty"):
            return ("const", name)
        if name in GREEK:
            return self._variable("\\" + name, depth)
        if name in ("frac", "repeating", "binom"):
            above, below = self._argument(depth, True), self._argument(depth, True)
            return ("call", "binom", above, below) if name == "binom" else ("/", above, below)
        if name == "sqrt":
            return self._root(depth)
        if name in ("lfloor", "lceil"):
            return ("call", name[1:], self._group_until(f"\\r{name[1:]}", depth))
        if name in FUNCTIONS:
            return self._function(name, depth)
        raise Unreadable(name)

    def _group_until(self, closing: str, depth: int) -> Tree:
        tree = self.sum(depth + 1)
        self._expect(closing)
        return tree

    def _root(self, depth: int) -> Tree:
        degree: Tree = ("num", Fraction(2))
        if self.here == "[":
            self._next()
            degree = self._group("]", depth)
        return ("call", "root", self._argument(depth, True), degree)

    def _function(self, name: str, depth: int) -> Tree:
        r"""\sin^2 x, \log_2 8, \sin 2x: without brackets the argument is the product that
        follows.
        """
        base: list[Tree] = []
        power = None
        if self.here == "_":
            self._next()
            base = [self._argument(depth)]
        if self.here == "^":
            self._next()
            power = self._argument(depth)
        if self.here in ("(", "{"):
            arguments = self._arguments({"(": ")", "{": "}"}[self._next()], depth)
        else:
            arguments = [self._bare_argument(depth)]
        if len(arguments) > 1 and name not in ("min", "max", "gcd", "lcm"):
            raise Unreadable(name)
        if power == ("neg", ("num", Fraction(1))) and name in ("sin", "cos", "tan"):
            return ("call", "arc" + name, *arguments)
        tree: Tree = ("call", name, *arguments, *base)
        return tree if power is None else ("^", tree, power)

    def _bare_argument(self, depth: int) -> Tree:
        tree = self._power(depth + 1)
        while (
            self._starts_factor()
            and (self.here or "")[1:] not in FUNCTIONS
            and self.here not in ("(", "[")
        ):
            tree = self._beside(tree, self._power(depth + 1))
        return tree
