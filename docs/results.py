"""Put comparisons into `docs/results.md`: each table with its command and machine, and its records beside it.

Usage: `python docs/results.py runs/fashion-mnist runs/topics-text …`

A block is what stands between `<!-- NAME -->` and `<!-- end -->`, NAME being the folder's; what is around it stays. The
records of the runs go to `docs/results/NAME.json`, from which the site's page is drawn when it is built. Then the table
of all published numbers in `docs/published.md` is written anew from all records that are kept.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path

from hooks import unpack

from wellcond.lab.analysis.outcome import read_outcomes
from wellcond.lab.analysis.statistics import compare_outcomes
from wellcond.lab.analysis.summary import table_text
from wellcond.reproduce.results import results, results_text

DOCS = Path(__file__).parent
MARK = "<!-- table -->"

BLOCK = """\
<!-- {name} -->
<!-- not run: trains for minutes -->
```console
$ {command}
{table}
```

{runs} runs, {minutes:.3g} minutes of training in all; {machine}. [The page]({page}).
<!-- end -->"""


def records(folder: Path) -> dict[str, str]:
    """The files of a comparison that its page is drawn from, by their paths."""
    paths = [folder / "comparison.json", folder / "recipe.toml", *sorted(folder.glob("runs/*/*/*.json*"))]
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def block(folder: Path) -> str:
    about = json.loads((folder / "comparison.json").read_text())
    outcomes = read_outcomes(folder)
    machine = about["machine"]
    return BLOCK.format(
        name=folder.name,
        command=about["command"],
        table=table_text(compare_outcomes(outcomes, about["baseline"])),
        runs=len(outcomes),
        minutes=sum(outcome.seconds for outcome in outcomes) / 60,
        machine=f"{machine['processor']}, {machine['cores']} cores, torch {about['versions']['torch']}",
        page=f"results/{folder.name}.html",
    )


def published(page: str) -> str:
    """The page of published numbers with the table that `wellcond reproduce --results` prints of what is kept."""
    with tempfile.TemporaryDirectory() as folder:
        for kept in (DOCS / "results").glob("*.json"):
            unpack(kept, Path(folder) / kept.stem)
        table = results_text(results(Path(folder)))
    return f"{page.partition(MARK)[0]}{MARK}\n\n{table}\n"


def main(folders: list[Path]) -> None:
    page = DOCS / "results.md"
    text = page.read_text()
    (DOCS / "results").mkdir(exist_ok=True)
    for folder in folders:
        mark = f"<!-- {re.escape(folder.name)} -->"
        pattern = re.compile(rf"{mark}\n<!-- not run.*?<!-- end -->|{mark}", re.S)  # a block, or the place for one
        if not pattern.search(text):
            sys.exit(f"{page} has no place for it: write <!-- {folder.name} --> where the block is to be")
        made = block(folder)
        text = pattern.sub(lambda _, made=made: made, text, count=1)
        (DOCS / "results" / f"{folder.name}.json").write_text(json.dumps(records(folder), indent=0) + "\n")
    page.write_text(text)
    listed = DOCS / "published.md"
    listed.write_text(published(listed.read_text()))


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
