"""What the site takes from the code when it is built: the list of schemes, and the pages of kept comparisons."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from mkdocs.structure.files import File

import wellcond as wc
from wellcond.html.comparison_page import comparison_page
from wellcond.html.surface_page import surface_page
from wellcond.lab.analysis.surface_runs import read_surface
from wellcond.lab.figures.compared_runs import read_about
from wellcond.lab.page.comparison_data import comparison_data
from wellcond.lab.page.surface_data import surface_data

torch.set_num_threads(1)  # products are small here: two threads wait for each other more than they compute

SECTION = """\
## `{name}` {{ #{name} }}

{citation}

*Published settings:* {published}

::: {path}
    options:
      show_root_heading: false
      show_root_toc_entry: false
      show_bases: false
      members: false
"""


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the schemes into their page."""
    if page.file.src_uri == "schemes.md":
        markdown = markdown.replace("<!-- table -->", scheme_table()).replace("<!-- sections -->", scheme_sections())
    return markdown


def scheme_table() -> str:
    """One row per scheme."""
    rows = ["| scheme | what it sets | options |", "|---|---|---|"]
    for info in wc.schemes():
        options = "<br>".join(f"`{name}={_shown(value)}`" for name, value in info.options.items()) or "none"
        rows.append(f"| [`{info.name}`](#{info.name}) | {info.summary.replace('|', chr(92) + '|')} | {options} |")
    return "\n".join(rows)


def _shown(value: Any) -> str:
    return "…" if value == "(required)" else repr(value)


def scheme_sections() -> str:
    """One section per scheme, with its class's own documentation."""
    classes = {cls.name: cls for cls in _subclasses(wc.Scheme) if cls.name}
    sections = []
    for info in wc.schemes():
        cls = classes[info.name]
        path = f"{cls.__module__}.{cls.__qualname__}"
        published = info.published or "none"
        sections.append(SECTION.format(name=info.name, citation=info.citation, published=published, path=path))
    return "\n".join(sections)


def _subclasses(cls: type[wc.Scheme]) -> Iterator[type[wc.Scheme]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _subclasses(sub)


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Draw the pages of the comparisons and of the study's surfaces whose records are kept."""
    for kept in (Path(config["docs_dir"]) / "results").glob("*.json"):
        with tempfile.TemporaryDirectory() as folder:
            unpack(kept, Path(folder))
            page = comparison_page(comparison_data(Path(folder)))
        files.append(File.generated(config, f"results/{kept.stem}.html", content=page))
    for kept in (Path(config["docs_dir"]) / "results" / "study").glob("*-surface.json"):
        with tempfile.TemporaryDirectory() as folder:
            unpack(kept, Path(folder))
            page = surface_page(surface_data(read_surface(Path(folder)), read_about(Path(folder))))
        files.append(File.generated(config, f"results/study/{kept.stem}.html", content=page))
    return files


def unpack(kept: Path, folder: Path) -> None:
    """Write the records of a comparison as the folder that they are of."""
    for name, text in json.loads(kept.read_text(encoding="utf-8")).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
