"""Exit 0 if this environment has everything that `pip install -c constraints.txt -e .[EXTRAS]` would bring."""

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

root = Path(__file__).parents[1]
project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
pins = dict(line.split("==") for line in (root / "constraints.txt").read_text().lower().split())


def names(requirements: list[str]) -> set[str]:
    """Names of the packages, extras of this project followed."""
    found = set()
    for requirement in requirements:
        own = re.fullmatch(rf"{project['name']}\[(.*)\]", requirement)
        if own:
            found |= names([r for extra in own[1].split(",") for r in project["optional-dependencies"][extra]])
        else:
            found.add(re.match(r"[\w.-]+", requirement)[0].lower())
    return found


def installed(name: str) -> str | None:
    """Installed version without its local part, or None."""
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return None


wanted = {project["name"], *names([*project["dependencies"], f"{project['name']}[{sys.argv[1]}]"])}
wrong = sorted(name for name in wanted if installed(name) is None or installed(name) != pins.get(name, installed(name)))
sys.exit(f"to install: {', '.join(wrong)}" if wrong else 0)
