"""Put comparisons into `docs/results.md`: each table with its command and machine, and its page beside it.

Usage: `python docs/results.py runs/fashion-mnist runs/topics-text …`

A block is what stands between `<!-- NAME -->` and `<!-- end -->`, NAME being the folder's; what is around it stays.
The page goes to `docs/results/NAME.html` without plotly's five megabytes, which the site gets when it is built.
"""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime
from pathlib import Path

from plotly.offline import get_plotlyjs

from wellcond.lab.outcome import read_outcomes
from wellcond.lab.statistics import compare
from wellcond.lab.summary import table_text
from wellcond.report.comparison_page import comparison_page

DOCS = Path(__file__).parent
PLOTLY = "/* plotly */"  # see docs/hooks.py

BLOCK = """\
<!-- {name} -->
<!-- not run: trains for minutes -->
```console
$ {command}
{table}
```

{runs} runs, {minutes:.0f} minutes from the first to the last; {machine}. [The page]({page}).
<!-- end -->"""


def block(folder: Path) -> str:
    about = json.loads((folder / "comparison.json").read_text())
    outcomes = read_outcomes(folder)
    times = [path.stat().st_mtime for path in folder.rglob("timings.jsonl")]
    first = datetime.fromisoformat(about["started"]).timestamp()
    page = comparison_page(folder)
    assert get_plotlyjs() in page
    (DOCS / "results").mkdir(exist_ok=True)
    (DOCS / "results" / f"{folder.name}.html").write_text(page.replace(get_plotlyjs(), PLOTLY), encoding="utf-8")
    machine = about["machine"]
    return BLOCK.format(
        name=folder.name,
        command=about["command"],
        table=table_text(compare(outcomes, about["baseline"])),
        runs=len(outcomes),
        minutes=(max(times) - first) / 60,
        machine=f"{machine['processor']}, {machine['cores']} cores, torch {about['versions']['torch']}",
        page=f"results/{folder.name}.html",
    )


def main(folders: list[Path]) -> None:
    page = DOCS / "results.md"
    text = page.read_text()
    for folder in folders:
        pattern = re.compile(
            rf"<!-- {re.escape(folder.name)} -->\n.*?<!-- end -->|<!-- {re.escape(folder.name)} -->", re.S
        )
        if not pattern.search(text):
            sys.exit(f"{page} has no place for it: write <!-- {folder.name} --> where the block is to be")
        made = block(folder)
        text = pattern.sub(lambda _, made=made: made, text, count=1)
    page.write_text(text)


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
