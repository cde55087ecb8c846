"""The page of the census: what the library finds and verifies in other people's models, and what it does not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import version

from tests.census.record import LIBRARIES, Record

INTRODUCTION = """\
# Which models are covered

After this page you know what `wc.attention_layers(model, inputs)` finds in other people's models, and where it says
that it does not know. `make census` writes it.

Every model type of transformers {transformers}, tiny and with random weights, and a small member of every family of
timm {timm} that has attention run once. An oracle watches the arithmetic: each softmax over products of two activations
whose result mixes something is a *site*. It shares no code with the library and knows no class by name. Then each view
that the library calls `verified` is put to the test: one head of one role is changed in the parameters, and exactly the
scores, the mixtures and the output that the view says must move.

- **found**: the library names the site: verified, or refused with a reason.
- **verified**: a verified view holds at the site, by the oracle too.
- **refused**: the library names the site and says why it does not stand for a view of it.
- **silently wrong**: verified by the library, and wrong by the oracle.

"""


def page(records: Sequence[Record]) -> str:
    """Return the page in Markdown."""
    parts = [INTRODUCTION.format(**{name: version(name) for name in LIBRARIES}), summary(records)]
    for library in LIBRARIES:
        parts += details(library, [r for r in records if r.library == library])
    return "\n".join(parts)


def row(*cells: object) -> str:
    return "| " + " | ".join(f"{cell}" for cell in cells) + " |\n"


def share(part: int, whole: int) -> str:
    """Return a count with its percentage, cut off, so that 100 % is all of them.

    >>> share(999, 1000), share(0, 0)
    ('999 (99.9 %)', '0')
    """
    return f"{part} ({int(1000 * part / whole) / 10:g} %)" if whole else f"{part}"


def summary(records: Iterable[Record]) -> str:
    heads = ("", "models that run", "with attention", "all verified", "sites", "found", "verified", "refused")
    text = row(*heads, "silently wrong") + "|---|" + "--:|" * len(heads) + "\n"
    records = list(records)
    for library in LIBRARIES:
        run = [r.survey for r in records if r.library == library and r.survey is not None]
        at_work = [s for s in run if s.seen]
        seen = sum(s.seen for s in run)
        counts = [sum(s.found for s in run), sum(s.verified for s in run), sum(sum(s.refused.values()) for s in run)]
        perfect = share(sum(s.perfect for s in at_work), len(at_work))
        wrong = sum(len(s.wrong) for s in run)
        text += row(library, len(run), len(at_work), perfect, seen, *(share(c, seen) for c in counts), wrong)
    return text


def details(library: str, records: Sequence[Record]) -> list[str]:
    """Return one row for each model that is not perfect, the names of the others, and what does not run here."""
    run = [r for r in records if r.survey is not None]
    imperfect = [r for r in run if r.survey and not r.survey.perfect]
    perfect = [r.name for r in run if r.survey and r.survey.perfect and r.survey.seen]
    without = [r.name for r in run if r.survey and r.survey.perfect and not r.survey.seen]
    parts = [f"## {library}: not everything is verified\n"]
    if imperfect:
        head = row("model", "sites", "found", "verified", "what and why") + "|---|--:|--:|--:|---|\n"
        parts.append(head + "".join(one_row(r) for r in imperfect))
    else:
        parts.append("Everything is.\n")
    parts.append(f"## {library}: every site verified\n\n{len(perfect)} models: {names(perfect)}.\n")
    if without:
        parts.append(f"{len(without)} more have no site: {names(without)}.\n")
    if len(run) < len(records):
        parts.append(f"## {library}: not run here\n\n{len(records) - len(run)} models, by reason:\n")
        parts.append(grouped([r for r in records if r.survey is None]))
    return parts


def one_row(record: Record) -> str:
    survey = record.survey
    assert survey is not None
    said = [f"silently wrong: {text}" for text in common(survey.wrong)]
    said += [f"raised {survey.raised}"] if survey.raised else []
    said += [f"refused {count}: {reason}" for reason, count in merged(survey.refused).items()]
    said += [f"not found: {text}" for text in common(survey.missed)] if not survey.raised else []
    return row(f"`{record.name}`", survey.seen, survey.found, survey.verified, "; ".join(map(cell, said)))


def merged(reasons: dict[str, int]) -> Counter[str]:
    """Add up the counts of reasons that differ in numbers alone."""
    found: Counter[str] = Counter()
    first: dict[str, str] = {}
    for reason, count in reasons.items():
        found[first.setdefault(re.sub(r"[\d.e+-]+", "0", reason), reason)] += count
    return found


def common(texts: Sequence[str]) -> list[str]:
    """Return texts that differ in the numbers of layers alone once, with how many there are."""
    counted = Counter(re.sub(r"(?<=\.)\d+(?=\.|:|$)", "*", text) for text in texts)
    return [text if count == 1 else f"{text} ({count} times)" for text, count in counted.items()]


def cell(text: str) -> str:
    """Return a text that a cell of a table can hold."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def names(models: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in models)


def grouped(records: Iterable[Record]) -> str:
    """Return models that do not run by the kind of reason, the most frequent first."""
    kinds: dict[str, list[str]] = {}
    for record in records:
        kinds.setdefault(kind(record.reason), []).append(record.name)
    ordered = sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0]))
    return "".join(f"- {what} ({len(models)}): {names(models)}\n" for what, models in ordered)


KINDS = (
    ("part without a model", "parts of another type, without a model class of their own"),
    ("requires the", "needs a package that is not installed"),
    ("too many for a census", "too large: what makes them large has no field to shrink"),
    ("takes more than", "takes too long"),
    ("nothing is known to feed", "takes arguments that the census does not make"),
    ("constructor", "the shrunk configuration is refused, or does not fit together"),
    ("forward", "the arguments of the census do not fit"),
)


def kind(reason: str) -> str:
    return next((words for sign, words in KINDS if sign in reason), reason)
