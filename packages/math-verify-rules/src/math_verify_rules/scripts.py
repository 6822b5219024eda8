"""Characters of other scripts as LaTeX: full-width letters, vulgar fractions, raised digits,
Chinese.
"""

# ruff: noqa: RUF001
from __future__ import annotations

import re
import unicodedata

_SYMBOLS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "⁻": "-", "×": r"\times ", "·": r"\cdot ", "÷": "/",  # noqa: E501
    "⁄": "/", "∕": "/", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ",  # noqa: E501
    "∞": r"\infty ", "π": r"\pi ", "√": r"\sqrt ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "°": r"^\circ ",  # noqa: E501
    "±": r"\pm ", "¬": r"\neg ", "ℤ": r"\mathbb{Z}", "ℝ": r"\mathbb{R}", "ℕ": r"\mathbb{N}", "∅": r"\emptyset ",  # noqa: E501
    "λ": r"\lambda ", "α": r"\alpha ", "β": r"\beta ", "θ": r"\theta ", "“": '"', "”": '"', "’": "'", "，": ", ",  # noqa: E501
    "\u00a0": " ", "\u2007": " ", "\u2009": " ", "\u202f": " ", "、": ",", "。": ".", "或": " or ", "和": " and ",  # noqa: E501
    "且": " and ", "⟨": "(", "⟩": ")", "∖": r"\setminus ", "≡": r"\equiv ", "￥": "¥", "｛": r"\{", "｝": r"\}",  # noqa: E501
}  # fmt: skip
_CIRCLED = {chr(0x2460 + n): f"{n + 1}," for n in range(20)}  # the numbers of propositions: ①③
_RAISED = re.compile("[⁰¹²³⁴-⁹]+")
_DIGITS = {digit: n for n, digit in enumerate("零一二三四五六七八九")} | {"两": 2, "〇": 0}
_TENS = {"十": 10, "百": 100, "千": 1000}
_NUMERAL = rf"[{''.join(_DIGITS)}{''.join(_TENS)}]+"
_SHARE = re.compile(rf"(?<![\w.])(\d+|{_NUMERAL})分之(\d+|{_NUMERAL})(?![\w.])")
_UNITS = {
    "平方厘米": '"cm"^2', "平方千米": '"km"^2', "平方米": '"m"^2', "立方厘米": '"cm"^3', "立方米": '"m"^3',  # noqa: E501
    "千米": '"km"', "公里": '"km"', "厘米": '"cm"', "毫米": '"mm"', "分米": '"dm"', "米": '"m"', "千克": '"kg"',  # noqa: E501
    "公斤": '"kg"', "克": '"g"', "毫升": '"mL"', "升": '"L"', "小时": '"h"', "分钟": '"min"', "秒": '"s"',  # noqa: E501
    "天": '"day"', "周": '"week"', "个月": '"month"', "年": '"year"', "元": '"yuan"', "块": '"yuan"', "度": "°",  # noqa: E501
}  # fmt: skip
# what only says what is counted
_COUNTED = (
    "名学生",
    "名同学",
    "个人",
    *"个只条件本种次人名位张支枝棵朵辆头匹间座组对双盒瓶箱袋页步项岁",
)
_NAMES = "|".join(sorted([*_UNITS, *_COUNTED], key=len, reverse=True))
_UNIT = re.compile(
    rf"(?<=[\d)}}\]])\s*(?:\\text\s*\{{\s*)?({_NAMES})\s*(?:\}}|(?=\s*(?:[$.,;)]|$)))"
)
_INTRODUCED = re.compile(r"^\s*(?:答案|答|选项?)\s*(?:是|为|[:：])?\s*(?=[\w\\($-])")
_LETTER = re.compile("[\u3400-\u9fff]")


def in_latex(text: str) -> str:
    """A text with such characters as LaTeX; what is not known stays."""
    if text.isascii():
        return text
    listed = text.strip()[-1:] in _CIRCLED
    text = _RAISED.sub(lambda run: f"^{{{unicodedata.normalize('NFKC', run[0])}}}", text)
    text = "".join(
        _SYMBOLS.get(letter) or _CIRCLED.get(letter) or _plain(letter) for letter in text
    )
    text = text[:-1] if listed else text
    return _from_chinese(text) if _LETTER.search(text) else text


def _plain(letter: str) -> str:
    """A full-width letter, digit or sign as the usual one; a vulgar fraction as LaTeX."""
    if "！" <= letter <= "～" and letter != "＼":
        return chr(ord(letter) - 0xFEE0)
    if unicodedata.decomposition(letter).startswith("<fraction>"):
        above, _, below = unicodedata.normalize("NFKC", letter).partition("⁄")
        return rf"\frac{{{above}}}{{{below}}}" if below else letter
    return letter


def has_chinese(text: str) -> bool:
    return _LETTER.search(text) is not None


def _from_chinese(text: str) -> str:
    """5厘米, 百分之五十, 八分之三 and 负三."""
    text = _SHARE.sub(lambda share: _as_share(*share.groups()), _INTRODUCED.sub("", text))
    whole = re.fullmatch(rf"\s*(负?)({_NUMERAL})\s*", text)
    if whole:
        text = ("-" if whole[1] else "") + str(_number(whole[2]))
    text = re.sub(r"负(?=[\d\\(])", "-", text)
    return _UNIT.sub(_as_unit, text)


def _as_unit(unit: re.Match[str]) -> str:
    kept = "}" if unit[0].endswith("}") and "{" not in unit[0] else ""
    return f" {_UNITS.get(unit[1], '')} {kept}"


def _as_share(below: str, above: str) -> str:
    if below == "百":
        return f"{_number(above)} percent"
    return rf"\frac{{{_number(above)}}}{{{_number(below)}}}"


def _number(numeral: str) -> int:
    """Digits, or a number below 10,000 in Chinese."""
    if numeral.isdecimal():
        return int(numeral)
    total, digit = 0, None
    for letter in numeral:
        if letter in _DIGITS:
            digit = _DIGITS[letter]
        else:
            total, digit = total + (1 if digit is None else digit) * _TENS[letter], None
    return total + (digit or 0)
