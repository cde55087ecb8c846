"""The page of the census counts what the records say."""

from __future__ import annotations

from pathlib import Path

from tests.census.claims import Verdict
from tests.census.page import page
from tests.census.record import Record, parse, read
from tests.census.survey import Survey, count

RECORDS = [
    Record("transformers", "good", 1.0, survey=Survey(2, 2)),
    Record("transformers", "refuses", 1.0, survey=Survey(3, 1, {"no linear map": 2})),
    Record("transformers", "silent", 1.0, survey=Survey(2, 0, missed=["layers.0.a", "layers.1.a"])),
    Record("transformers", "lies", 1.0, survey=Survey(1, 0, missed=["a"], wrong=["a: the value moves the scores"])),
    Record("transformers", "raises", 1.0, survey=Survey(1, 0, missed=["a"], raised="ValueError: a | b")),
    Record("transformers", "convolution", 1.0, survey=Survey(0, 0)),
    Record("transformers", "large", 1.0, "constructor: 71,812,542 parameters are too many for a census"),
    Record("timm", "all", 1.0, survey=Survey(5, 5)),
]


def test_the_summary_counts_sites() -> None:
    text = page(RECORDS)
    assert "| transformers | 6 | 5 | 1 (20 %) | 9 | 5 (55.5 %) | 3 (33.3 %) | 2 (22.2 %) | 1 |" in text
    assert "| timm | 1 | 1 | 1 (100 %) | 5 | 5 (100 %) | 5 (100 %) | 0 (0 %) | 0 |" in text


def test_each_model_is_on_the_page_once_with_its_reason() -> None:
    text = page(RECORDS)
    assert all(text.count(f"`{record.name}`") == 1 for record in RECORDS)
    assert "refused 2: no linear map" in text
    assert r"not found: layers.\*.a (2 times)" in text
    assert "silently wrong: a: the value moves the scores" in text
    assert r"raised ValueError: a \| b" in text
    assert "too large" in text


def test_a_place_is_given_to_who_holds_it() -> None:
    places = [("a.attn", 0), ("a.attn", 1), ("b.attn", 0), ("c", 0)]
    right = Verdict("a.attn", True, places=(("a.attn", 0),))
    wrong = Verdict("c", False, "no", places=(("c", 0),))
    found = count(places, [right, wrong], [("a", "outer"), ("a.attn", "inner"), ("", "the model")])
    assert found == Survey(4, 1, {"inner": 1}, ["b.attn", "c"], ["c: no"])
    assert (found.found, found.perfect) == (2, False)


def test_records_are_read_as_written_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "census.jsonl"
    path.write_text("".join(record.line() for record in RECORDS) + RECORDS[0].line()[:20])
    assert list(read(path)) == RECORDS
    assert parse(RECORDS[1].line()) == RECORDS[1]
    assert not list(read(tmp_path / "none"))
