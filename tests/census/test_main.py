"""The census goes on where it was stopped, and no model stops it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.census import __main__ as census
from tests.census.by_hand import Router
from tests.census.record import read
from tests.census.transformers_models import CannotBuild

Model = tuple[nn.Module, dict[str, Any]]
X = torch.randn(2, 5, 12)


def attention(name: str) -> Model:
    return nn.TransformerEncoderLayer(12, 3, 20, batch_first=True).eval(), {"src": X}


def router(name: str) -> Model:
    return Router().eval(), {"x": X[..., :8]}


def refuse(name: str) -> Model:
    raise CannotBuild("constructor: too odd")


def hang(name: str) -> Model:
    time.sleep(30)
    raise AssertionError


def test_a_model_is_examined() -> None:
    record = census.examine("timm", "encoder", attention, 60)
    assert record.survey is not None
    assert (record.survey.seen, record.survey.verified, record.survey.perfect) == (1, 1, True)


def test_a_model_without_attention_is_no_error() -> None:
    record = census.examine("timm", "router", router, 60)
    assert record.survey is not None
    assert (record.survey.seen, record.survey.perfect) == (0, True)


def test_a_model_that_does_not_build_has_its_reason() -> None:
    assert census.examine("timm", "odd", refuse, 60).reason == "constructor: too odd"


def test_a_model_that_takes_too_long_is_left() -> None:
    record = census.examine("timm", "slow", hang, 1)
    assert (record.reason, record.survey) == ("takes more than 1 s", None)


def test_a_census_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def build(name: str) -> Model:
        built.append(name)
        return attention(name)

    cache, page = tmp_path / "cache" / "census.jsonl", tmp_path / "coverage.md"
    monkeypatch.setattr(census, "PAGE", page)
    monkeypatch.setattr(census, "members", lambda: {("timm", name): build for name in ("one", "two")})
    monkeypatch.setattr("sys.argv", ["census", "--cache", f"{cache}", "--budget", "-1"])
    with pytest.raises(SystemExit, match="2 models are left"):
        census.main()
    assert not page.exists()
    monkeypatch.setattr("sys.argv", ["census", "--cache", f"{cache}"])
    census.main()
    census.main()
    assert built == ["one", "two"]
    assert [record.name for record in read(cache)] == built
    assert "2 models: `one`, `two`" in page.read_text()


def test_lines_of_other_code_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "census.jsonl"
    monkeypatch.setattr(census, "PAGE", tmp_path / "coverage.md")
    monkeypatch.setattr(census, "members", lambda: {("timm", "one"): attention})
    monkeypatch.setattr("sys.argv", ["census", "--cache", f"{cache}"])
    monkeypatch.setattr(census, "code", lambda: "before")
    census.main()
    monkeypatch.setattr(census, "code", lambda: "now")
    census.main()
    assert [record.code for record in read(cache)] == ["before", "now"]
