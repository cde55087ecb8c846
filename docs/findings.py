"""Write the table of findings into the README and the front page, from the records in `docs/results/`.

Usage: `python docs/findings.py`
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from hooks import unpack

from wellcond.lab.analysis.outcome import read_outcomes
from wellcond.lab.analysis.paired_test import PairedTest
from wellcond.lab.analysis.statistics import compare_outcomes

DOCS = Path(__file__).parent
PAGES = (DOCS.parent / "README.md", DOCS / "index.md")
BLOCK = re.compile(r"<!-- findings -->\n.*?<!-- end -->", re.DOTALL)
TASKS = {  # file of records: the words for it
    "fashion-mnist": "ViT, Fashion-MNIST",
    "topics-text": "GPT, Python's documentation",
    "listops": "Nyströmformer, ListOps",
    "shapes": "XCiT + Mask R-CNN, drawn shapes",
    "digits": "ViT, digits",
    "no-layernorm": "ViT without LayerNorm, digits",
}
HEADER = [
    "task",
    "metric",
    "default",
    "conditioned − default",
    "conditioned − control of its scale",
    "shift 10 − default",
]


def findings() -> str:
    """One row a comparison, in Markdown."""
    rows = [HEADER, ["---"] * len(HEADER), *(_row(name, words) for name, words in TASKS.items())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(name: str, words: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        unpack(DOCS / "results" / f"{name}.json", Path(folder))
        found = compare_outcomes(read_outcomes(Path(folder)))
    arms = {arm.arm: arm for arm in found.arms}
    conditioned = arms["conditioned"]
    control = conditioned.to_controls[0] if conditioned.to_controls else None
    shift = arms["shift 10"].to_baseline if "shift 10" in arms else None
    metric = f"{found.metric} {'↑' if found.higher_is_better else '↓'}"
    default = f"{arms['default'].mean:.3g}"
    return [words, metric, default, *(_difference(pair) for pair in (conditioned.to_baseline, control, shift))]


def _difference(pair: PairedTest | None) -> str:
    """A paired difference with its interval, bold where the interval leaves out zero."""
    if pair is None or pair.interval is None:
        return "–"
    low, high = pair.interval
    text = f"{pair.mean:+.2g} [{low:+.2g}, {high:+.2g}]"
    return f"**{text}**" if low > 0 or high < 0 else text


def filled(page: str) -> str:
    """Put the table into a page."""
    return BLOCK.sub(lambda _: f"<!-- findings -->\n{findings()}\n<!-- end -->", page)


def main() -> None:
    """Rewrite both pages."""
    for path in PAGES:
        path.write_text(filled(path.read_text()))


if __name__ == "__main__":
    main()
