"""Shared parts of the self-contained pages: the script of their charts, and their data as JSON.

Chart.js draws the charts (chartjs-4.6.1/, third-party, unchanged); charts.js defines the charts and
their colours.
"""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).parent
LIBRARY = FOLDER / "chartjs-4.6.1"


def script() -> str:
    """Chart.js with its licences, then charts.js, as the content of a script element."""
    licences = [path.read_text(encoding="utf-8") for path in sorted(LIBRARY.glob("LICENSE.*"))]
    library = (LIBRARY / "chart.umd.min.js").read_text(encoding="utf-8")
    # a browser's developer tools would request the source map
    library = library.partition("//# sourceMappingURL=")[0]
    own = (FOLDER / "charts.js").read_text(encoding="utf-8")
    return "\n".join(["/*", *licences, "*/", library, own])


def embedded(value: object) -> str:
    """JSON that is safe inside a script element: it has no tag, comment or entity.

    Raises:
        ValueError: a number in it is not finite.
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
