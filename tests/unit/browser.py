"""A page as a real browser sees it, for tests that are skipped where there is none."""

import html
import json
import re
import shutil

import pytest
import watched

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on PATH")
# what the page asked for in vain stands in `refused`, errors of its scripts in `errors`; frames are
# timers, since the browser's --dump-dom waits for timers only
WATCH = """
const refused = [], errors = [];
addEventListener("securitypolicyviolation", (event) => refused.push(event.blockedURI));
addEventListener("error", (event) => errors.push(event.message));
requestAnimationFrame = (draw) => setTimeout(draw);
"""
# of each chart in `part` of the page: datasets, number of colours in the picture, and the tip when
# the pointer is at these shares of its width and height
CHARTS = """
async function seen(part, [right, down]) {
  const canvases = [...document.querySelectorAll(`${part} canvas`)];
  for (const canvas of canvases) {
    const { left, top } = canvas.getBoundingClientRect(), area = Chart.getChart(canvas).chartArea;
    const place = { clientX: left + area.left + area.width * right, clientY: top + area.top + area.height * down };
    canvas.dispatchEvent(new MouseEvent("mousemove", { ...place, bubbles: true }));
  }
  await new Promise(requestAnimationFrame); // tips follow with the next frame
  return canvases.map(look);
}

function look(canvas) {
  const chart = Chart.getChart(canvas), { title, body } = chart.tooltip;
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return {
    label: canvas.getAttribute("aria-label"),
    sets: chart.data.datasets.map(({ label, data }) => [label ?? "", data]),
    colours: new Set(new Uint32Array(pixels.buffer)).size,
    tip: [...title, ...body.flatMap(({ lines }) => lines)],
  };
}
"""  # noqa: E501
# in a function, whose names are not the page's; the browser waits for it
ASK = (
    CHARTS
    + """
(async () => {
  const found = {};
  try { SCRIPT } catch (error) { errors.push(String(error)); }
  document.body.replaceChildren(JSON.stringify({ found, refused, errors }));
})();
"""
)


def dump(page, path, script="", before=""):
    """The document a browser makes of the page, with a script before all others and one at
    its end.
    """
    page = page.replace("<head>", f"<head><script>{before}</script>").replace(
        "</body>", f"<script>{script}</script></body>"
    )
    path.write_text(page, encoding="utf-8")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=5000",
        f"--user-data-dir={path.parent / 'profile'}",
    ]
    done = watched.run([BROWSER, *flags, "--dump-dom", path.as_uri()])
    assert done.returncode == 0, done.stderr
    return done.stdout


def ask(page, path, script, before=""):
    """What the script puts into `found`; nothing was asked for and no script failed."""
    script = ASK.replace("SCRIPT", script)
    body = re.search(r"<body>(.*)</body>", dump(page, path, script, WATCH + before), re.S).group(1)
    answer = json.loads(html.unescape(body))
    assert not answer["refused"] + answer["errors"], answer
    return answer["found"]
