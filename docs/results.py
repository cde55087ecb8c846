"""Put comparisons into `docs/results.md`: each table with its command and machine, and its records beside it.

Usage: `python docs/results.py runs/fashion-mnist runs/topics-text …`

A block is what stands between `<!-- NAME -->` and `<!-- end -->`, NAME being the folder's; what is around it stays. The
records of the runs go to `docs/results/NAME.json`, from which the site's page is drawn when it is built. Then the table
of all published numbers in `docs/published.md` is written anew from all records that are kept. Of a folder of
`wellcond sensitivity`, called as its recipe is, the picture goes to `docs/img` and the numbers to
`docs/results/sensitivity`.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import textwrap
from pathlib import Path

from hooks import unpack

from wellcond._core.result_table import Tabular
from wellcond._core.text_tables import table
from wellcond.lab.analysis.outcome import read_outcomes
from wellcond.lab.analysis.sensitivity import sensitivity_of
from wellcond.lab.analysis.statistics import compare_outcomes
from wellcond.lab.analysis.summary import table_text
from wellcond.lab.recipe.recipe import load_recipe
from wellcond.reproduce.results import results, results_text

DOCS = Path(__file__).parent
MARK = "<!-- table -->"
WIDTH = 100

BLOCK = """\
<!-- {name} -->
<!-- not run: trains for minutes -->
```console
$ {command}
{table}
```

{runs} runs, {minutes:.3g} minutes of training in all; {machine}.{more}
<!-- end -->"""


def records(folder: Path) -> dict[str, str]:
    """The files of a comparison that its page is drawn from, by their paths."""
    paths = [folder / "comparison.json", folder / "recipe.toml", *sorted(folder.glob("runs/*/*/*.json*"))]
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def block(folder: Path) -> str:
    """Write what the site keeps of a folder; return its block."""
    about = json.loads((folder / "comparison.json").read_text())
    outcomes = read_outcomes(folder)
    machine = about["machine"]
    numbers = folder / "sensitivity.json"
    if numbers.exists():
        kept = json.loads(numbers.read_text())
        rates = tuple(float(lr) for lr in kept["arms"][0]["rates"])
        found = sensitivity_of(load_recipe(folder.name), rates, outcomes)
        text = f"{fitted(found)}\n\n{fitted(found.early_warnings)}"
        picture = DOCS / "img" / f"{folder.name}.png"
        found.plot(picture)
        (DOCS / "results" / "sensitivity").mkdir(exist_ok=True)
        (DOCS / "results" / "sensitivity" / f"{folder.name}.json").write_text(numbers.read_text())
        more = f"\n\n![{found.metric} against the learning rate, and areas](img/{picture.name})"
    else:
        text = table_text(compare_outcomes(outcomes, about["baseline"]))
        more = f" [The page](results/{folder.name}.html)."
        (DOCS / "results" / f"{folder.name}.json").write_text(json.dumps(records(folder), indent=0) + "\n")
    return BLOCK.format(
        name=folder.name,
        command=about["command"],
        table=text,
        runs=len(outcomes),
        minutes=sum(outcome.seconds for outcome in outcomes) / 60,
        machine=f"{machine['processor']}, {machine['cores']} cores, torch {about['versions']['torch']}",
        more=more,
    )


def fitted(found: Tabular) -> str:
    """A table as a terminal of some width shows it."""
    whole = found._result_table()
    notes = [textwrap.fill(str(note), WIDTH, subsequent_indent="  ") for note in whole.notes]
    return "\n".join([table(whole.header, whole.rows, width=WIDTH, keys=1), *notes])


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
    page.write_text(text)
    listed = DOCS / "published.md"
    listed.write_text(published(listed.read_text()))


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
