"""The charts' script: the library as published, nothing that asks for anything; and JSON that
cannot end a script.
"""

import hashlib
import json
import re

import pytest

from exgrpo_tools import charts

# of dist/chart.umd.min.js in npm's package
SHA256 = "87364cc2b2a76a6684929e7d6b80b18a897794db38400caff1fcf1791c6925d2"


def test_the_library_is_the_published_file_with_its_licences():
    content = (charts.LIBRARY / "chart.umd.min.js").read_bytes()
    assert hashlib.sha256(content).hexdigest() == SHA256
    version = re.search(r"Chart\.js v([\d.]+)", content.decode()).group(1)
    assert charts.LIBRARY.name == f"chartjs-{version}"
    script = charts.script()
    for owner in ("Chart.js Contributors", "Jukka Kurkela"):
        assert re.search(rf"Copyright \(c\) [\d-]+ {owner}", script)
    assert (
        script.count("The above copyright notice and this permission notice shall be included") == 2
    )


def test_the_script_asks_for_nothing_and_does_not_end_its_element():
    script = charts.script()
    assert not re.search(r"</script|<script|<!--", script, re.I)
    assert not re.search(
        r"sourceMappingURL|XMLHttpRequest|WebSocket|sendBeacon|\b(fetch|eval|import|Function)\(",
        script,
    )
    # said in comments
    assert set(re.findall(r"\w+://[^\s\"']*", script)) == {
        "https://www.chartjs.org",
        "https://github.com/kurkle/color#readme",
    }
    assert len(script) < 250_000


@pytest.mark.parametrize("text", ["</script><script>", "<!-- &lt;", "\u2028 \ud800 é"])
def test_embedded_json_is_the_value_and_no_markup(text):
    found = charts.embedded({"text": text})
    assert json.loads(found) == {"text": text} and found.isascii() and not re.search("[<>&]", found)


def test_a_number_that_json_has_no_name_for_is_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        charts.embedded([float("nan")])
