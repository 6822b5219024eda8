r"""Parse a repaired answer into its tree of nodes; anything else is `Unreadable`."""

from __future__ import annotations

import itertools
import re
from fractions import Fraction
from functools import lru_cache

from math_verify_rules import matrices
from math_verify_rules.changing import CHANGING
from math_verify_rules.expressions import parse
from math_verify_rules.nodes import (
    GREATER,
    LESS,
    Cases,
    Chain,
    Equation,
    Expression,
    Many,
    Node,
    Quantity,
    Region,
)
from math_verify_rules.numerals import fraction, in_digits, whole_number
from math_verify_rules.ratios import residues
from math_verify_rules.splitting import enclosed, split
from math_verify_rules.trees import Tree, Unreadable
from math_verify_rules.wording import has_words, quantity

MAX_ITEMS, MAX_NESTING, MAX_SIGNS = 64, 8, 4
_BRACKETS = (("\\{", "\\}"), ("(", ")"), ("(", "]"), ("[", "]"), ("[", ")"))
_SIGN = r"\\le(?![a-z])|\\ge(?![a-z])|\\ne(?![a-z])|<=|>=|<|>"
_SIGNS = {"\\le": "<=", "\\ge": ">=", "\\ne": "!="}
_ENVIRONMENT = re.compile(r"\\begin\s*\{(\w+)\}((?:(?!\\(?:begin|end)).)*)\\end\s*\{\1\}")
_TRANSPOSED = re.compile(r"(.+)\^\s*\{?\s*(?:T|\\top|\\mathsf\s*\{?T\}?)\s*\}?", re.DOTALL)
_THOUSANDS = re.compile(
    r"(?:\\\$)?\s*-?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?(?:\s*[\"a-z%][^,\d]*)?"
)  # \$16,386.20
_PERCENT = re.compile(r'([^,;=<>]+?)\s*"?\b(?:percents?|per cent|pct)\b\.?"?')
_FRENCH = re.compile(r"([\[\]])([^\[\]]+)([\[\]])")  # ]0, 1[
_POINT = re.compile(
    r"([ABD-EI-OQ-Z]|[PCFGH](?=\(\s*-?[\d.]+\s*[,|]\s*-?[\d.]+\s*\)))'?\s*=?\s*(\(.*\))"
)
_WITH = re.compile(
    r"(?:all|any|every)\s+(?:real\s+)?(?:numbers?\s+)?(?:[a-z]\s+)?(?:with|such "
    r"that|satisfying|where|so that)\b(.+)"
)
_ALL_BUT = re.compile(
    r"(?:all|any)\s+(?:reals?|real numbers?)\s*(?:\b[a-z]\s+)?(?:except|but|other "
    r"than)(?:\s+for)?\b(.+)"
)
_REALS = re.compile(
    r"\\mathbb\s*\{?\s*R\s*\}?|\\mathbf\s*\{?\s*R\s*\}?|\(?all (?:real numbers|reals)\)?"
)
_WORD = re.compile(r"(?<![\\\\a-z])[a-z]+")
_NEGATED = re.compile(r"\\(?:ne|not|neg|lnot)(?![a-z])|¬")
_LABEL = re.compile(r"([A-Za-z][A-Za-z ]{0,40}?)\s*:\s*(.+)")
_MATRICES = ("matrix", "smallmatrix", "pmatrix", "bmatrix", "vmatrix", "array")
_ELSE = Many(())  # the condition of a last branch without one


@lru_cache(maxsize=1024)
def read(text: str, nesting: int = 0) -> Node:
    """The node of a repaired text. Raises: Unreadable."""
    text = text.strip().strip(",;").strip()
    if not text or nesting > MAX_NESTING:
        raise Unreadable(text)
    for reader in (
        _residues,
        _percentage,
        _environment,
        _transposed,
        _french,
        _listed,
        _point,
        _region,
        _related,
        _united,
        _signed_tuple,
        _bracketed,
        _signed,
    ):
        node = reader(text, nesting + 1)
        if node is not None:
            return node
    letters_only = text.strip('"').replace(" ", "").replace("-", "").isalpha()
    share = fraction(text) if letters_only else None
    if share is not None:
        return Expression(("num", share), str(share))
    spoken = whole_number(text) if letters_only else None
    if spoken is not None:
        return Quantity(Expression(("num", Fraction(spoken)), str(spoken)), frozenset(("number",)))
    if has_words(text) or (tree := _tree(text)) is None:
        value, words = quantity(text)
        return Quantity(read(value, nesting + 1), words)
    return Expression(tree, text)


def _items(pieces: list[str], nesting: int) -> tuple[Node, ...]:
    kept = [piece for piece in pieces if piece]
    if not kept or len(kept) > MAX_ITEMS:
        raise Unreadable("no list, or a huge one")
    return tuple(read(piece, nesting) for piece in kept)


def _environment(text: str, nesting: int) -> Node | None:
    r"""\begin{cases} and matrices, a number before one too."""
    if (
        text[:1] in ("(", "[")
        and text.endswith((")", "]"))
        and _ENVIRONMENT.fullmatch(inside := text[1:-1].strip())
    ):
        text = inside
    start = text.find("\\begin")
    match = _ENVIRONMENT.fullmatch(text, start) if start >= 0 else None
    if match is None or re.search(r"[=&]", text[:start]):
        return None
    lines = [line.strip() for line in match[2].split("\\\\") if line.strip()]
    if match[1] == "cases" and not start:
        return Cases(tuple(_branch(line.strip(" ,;."), nesting) for line in lines))
    if match[1] not in _MATRICES or not lines:
        raise Unreadable(text)
    lines[0] = re.sub(r"^\{[lcr| ]*\}", "", lines[0])
    kind = matrices.DETERMINANT if match[1] == "vmatrix" else matrices.MATRIX
    matrix = _rows([line.split("&") for line in lines], nesting, kind)
    return matrices.scaled(matrix, parse(text[:start].rstrip(" *")), text) if start else matrix


def _rows(rows: list[list[str]], nesting: int, kind: str = matrices.MATRIX) -> Many:
    return Many(
        tuple(Many(_items(row, nesting), matrices.ROW, matrices.ROW) for row in rows), kind, kind
    )


def _residues(text: str, _nesting: int) -> Node | None:
    return residues(text)


def _percentage(text: str, _nesting: int) -> Node | None:
    """ "50 percent" and "fifty percent"."""
    match = _PERCENT.fullmatch(text)
    tree = _tree(in_digits(match[1].strip(' "'))) if match else None
    return (
        None if match is None or tree is None else Expression(("pct", tree), f"{match[1]} percent")
    )


def _transposed(text: str, nesting: int) -> Node | None:
    match = _TRANSPOSED.fullmatch(text)
    if match is None or not re.search(r"[,&]|\\\\", match[1]):
        return None
    return matrices.transposed(read(match[1], nesting))


def _branch(line: str, nesting: int) -> tuple[Node, Node]:
    pieces = line.split("&") if "&" in line else split(line, r"\b(?:if|when|for)\b")[0]
    if len(pieces) != 2:
        raise Unreadable(line)
    when = re.sub(r"\b(?:if|when|for|where)\b", " ", pieces[1]).strip(" ,")
    if re.fullmatch(r'"?(?:otherwise|else)"?', when):
        return read(pieces[0], nesting), _ELSE
    sides, equal = split(when, "=")
    if equal == ["="] and not re.search(r"[<>]|\\(?:le|ge|ne)(?![a-z])", when):
        return read(pieces[0], nesting), Chain(tuple(map(parse, sides)), ("=",))
    condition = read(when, nesting)
    if not isinstance(condition, Chain):
        raise Unreadable(line)
    return read(pieces[0], nesting), condition


def _point(text: str, nesting: int) -> Node | None:
    """P(3, -4): a point's name before its coordinates, of which a function of two numbers has not
    the look.
    """
    match = _POINT.fullmatch(text)
    if match is None or not enclosed(match[2], "(", ")") or not split(match[2][1:-1], r",|\|")[1]:
        return None
    return Equation(match[1], read(match[2], nesting), ("var", match[1]))


def _french(text: str, nesting: int) -> Node | None:
    """]0, 1[ and [0, 1[: a bracket that points away from its number leaves it out."""
    match = _FRENCH.fullmatch(text)
    if match is None or (match[1], match[3]) == ("[", "]"):
        return None
    left, right = "(["[match[1] == "["], ")]"[match[3] == "]"]
    return _bracketed(left + match[2] + right, nesting)


def _listed(text: str, nesting: int) -> Node | None:
    """A bare list: with commas, semicolons, "and", "or"."""
    for separator, joined in ((r"\bor\b", "or"), (r",\s*and\b|;|,|\band\b|\\\\", ",")):
        pieces, separators = split(text, separator)
        if separators and sum(map(bool, pieces)) > 1:
            if _THOUSANDS.fullmatch(text):
                return None
            joined = "and" if separators == ["and"] else joined
            return Many(_items(pieces, nesting), joined=joined)
    return None


def _region(text: str, nesting: int) -> Node | None:
    r"""All real numbers, x \in S, S \setminus T, {x | condition}, the empty set."""
    if _REALS.fullmatch(text):
        return Region(None)
    unquoted = text.replace('"', "")
    if all_but := _ALL_BUT.fullmatch(unquoted):
        return Region(None, except_=read(all_but[1], nesting))
    if with_ := _WITH.fullmatch(unquoted):
        condition = read(with_[1], nesting)
        return condition if isinstance(condition, Chain) else None
    if re.fullmatch(r"\\(?:emptyset|varnothing)|\\\{\s*\\\}", text):
        return Region(Many((), "{", "}"))
    pieces, _signs = split(text, r"\\(?:setminus|backslash)(?![a-z])")
    if len(pieces) == 2:
        return Region(read(pieces[0], nesting), except_=read(pieces[1], nesting))
    pieces, _signs = split(text, r"\\in(?![a-z])")
    if len(pieces) == 2 and re.fullmatch(
        r"\(\s*[a-z](?:_\w)?(?:\s*,\s*[a-z](?:_\w)?)+\s*\)", pieces[0]
    ):
        return Equation(pieces[0].replace(" ", ""), read(pieces[1], nesting), None)
    if len(pieces) == 2 and re.fullmatch(r"\\?[a-zA-Z]+(?:_\w)?", pieces[0]):
        return Region(read(pieces[1], nesting), pieces[0])
    if enclosed(text, "\\{", "\\}"):
        pieces, _signs = split(text[2:-2], r"\\mid(?![a-z])|\||:")
        if len(pieces) == 2:
            variable = split(pieces[0], r"\\in(?![a-z])")[0][0]
            return Region(read(pieces[1], nesting), variable)
    return None


def _related(text: str, nesting: int) -> Node | None:
    """One equation, a chain of inequalities in one direction, or a label with its value."""
    pieces, separators = split(text, _SIGN + "|=")
    if separators == ["="]:
        _check_name(pieces[0])
        return Equation(pieces[0].replace(" ", ""), read(pieces[1], nesting), _tree(pieces[0]))
    if separators and "=" not in separators:
        signs = tuple(_SIGNS.get(sign, sign) for sign in separators)
        if len(signs) > 2 or not (
            set(signs) <= set(LESS) or set(signs) <= set(GREATER) or signs == ("!=",)
        ):
            raise Unreadable(text)
        return _without_bars(Chain(tuple(map(parse, pieces)), signs))
    if separators:
        raise Unreadable(text)  # 1 = 2 = 3 is not an answer
    label = _LABEL.fullmatch(text)
    if label is None:
        return None
    _check_name(label[1])
    return Equation(label[1].replace(" ", ""), read(label[2], nesting), None)


def _check_name(text: str) -> None:
    """Raises: Unreadable for "at least x" and "false", which are no names."""
    if _NEGATED.search(text) or CHANGING & set(_WORD.findall(text.lower())):
        raise Unreadable(text)


def _without_bars(chain: Chain) -> Node:
    """|x| < 1 is -1 < x < 1, |x| > 1 is x < -1 or x > 1."""
    inner, bound = chain.parts[0], chain.parts[-1]
    if len(chain.parts) > 2 or inner[:2] != ("call", "abs") or chain.signs == ("!=",):
        return chain
    below: Tree = ("neg", bound)
    if chain.signs[0] in LESS:
        return Chain((below, inner[2], bound), chain.signs * 2)
    less = chain.signs[0].replace(">", "<")
    return Many(
        (Chain((inner[2], below), (less,)), Chain((inner[2], bound), chain.signs)), joined="or"
    )


def _tree(text: str) -> Tree | None:
    try:
        return parse(text)
    except Unreadable:
        return None


def _united(text: str, nesting: int) -> Node | None:
    pieces, separators = split(text, r"\\cup(?![a-z])")
    return Many(_items(pieces, nesting), joined="union") if separators else None


def _bracketed(text: str, nesting: int) -> Node | None:
    for left, right in _BRACKETS:
        if enclosed(text, left, right):
            inside = text[len(left) : -len(right)]
            if left == "[" and ";" in inside and "," in inside:  # [1, 2; 3, 4]
                return _rows([split(row, ",")[0] for row in split(inside, ";")[0]], nesting)
            pieces, separators = split(inside, "[,;]")
            if left == "(" and not separators:
                pieces, separators = split(
                    inside, r"\\mid(?![a-z])|\|"
                )  # (2|5): coordinates in German
                separators = separators if len(pieces) == 2 and all(pieces) else []
            if separators or left == "\\{":
                return Many(_items(pieces, nesting), left[-1], right[-1])
            if re.search(r"[<>=]|\\(?:le|ge|ne)(?![a-z])", text):
                return read(text[1:-1], nesting)
    pieces, separators = split(text, ":")
    return Many(_items(pieces, nesting), ":", ":") if separators and len(pieces) <= 3 else None


def _signed_tuple(text: str, nesting: int) -> Node | None:
    r"""(\pm 1, \pm 2) is four tuples: each sign on its own."""
    count = text.count("\\pm")
    if (
        not 1 <= count <= MAX_SIGNS
        or "\\mp" in text
        or not enclosed(text, "(", ")")
        or not split(text[1:-1], ",")[1]
    ):
        return None
    signed = text.replace("{", "{{").replace("}", "}}").replace("\\pm", "{}")
    return Many(
        tuple(
            read(signed.format(*signs), nesting) for signs in itertools.product("+-", repeat=count)
        )
    )


def _signed(text: str, nesting: int) -> Node | None:
    r"""The two values of \pm."""
    if text.count("\\pm") != 1:
        return None
    both = (("+", "-"), ("-", "+"))
    return Many(
        tuple(
            read(text.replace("\\pm", plus).replace("\\mp", minus), nesting) for plus, minus in both
        )
    )
