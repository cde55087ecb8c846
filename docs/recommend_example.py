"""Put what `wc.recommend` prints for the example of `docs/recommend.md`, given a minute and all schemes, into the page.

Usage: `python docs/recommend_example.py`
"""

from __future__ import annotations

import re
import tempfile
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path

PAGE = Path(__file__).parent / "recommend.md"
EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"<!-- example -->\n.*?<!-- end -->", re.DOTALL)
QUICK, WHOLE = 'seconds=4, schemes=["fan_in"]', "seconds=60"  # as the page's test runs it, and for its reader


def printed(page: str) -> str:
    """What the page's example prints with the longer time."""
    found = EXAMPLE.search(page)
    assert found is not None
    assert QUICK in found[1], f"the example is asked with {QUICK}"
    out = StringIO()
    with tempfile.TemporaryDirectory() as folder, chdir(folder), redirect_stdout(out):
        exec(compile(found[1].replace(QUICK, WHOLE), str(PAGE), "exec"), {"__name__": "__main__"})
    return out.getvalue()


def written(page: str, text: str) -> str:
    """The page with this text as its example's output."""
    return BLOCK.sub(lambda _: f"<!-- example -->\n```text\n{text.rstrip()}\n```\n<!-- end -->", page, count=1)


if __name__ == "__main__":
    before = PAGE.read_text()
    PAGE.write_text(written(before, printed(before)))
