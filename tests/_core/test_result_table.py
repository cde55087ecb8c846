"""Results as tables: text, HTML for notebooks, frames of numbers."""

from __future__ import annotations

import html.parser
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import timm
import torch
from playwright.sync_api import Browser
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import wellcond as wc
from tests.pages import opened
from wellcond._core.result_table import ResultTable, Tabular
from wellcond.errors import WellcondError
from wellcond.lab.analysis.outcome import Outcome
from wellcond.lab.analysis.statistics import compare_outcomes
from wellcond.lab.analysis.summary import table_text
from wellcond.lab.analysis.tuning import Rates

HOSTILE = "<script>alert(1)</script>"


class Named(nn.Module):
    """Two encoder layers under a hostile name."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True) for _ in range(2)]
        self.parts = nn.ModuleDict({HOSTILE: nn.Sequential(*layers)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts[HOSTILE](x)  # type: ignore[no-any-return]


def run(arm: str, seed: int, result: float) -> Outcome:
    return Outcome(arm, None, seed, "finished", "", "accuracy", True, 9, (), ((9, result),), (), 1.0, {})


def comparison() -> Any:
    found = [run("default", seed, value) for seed, value in enumerate([0.5, 0.6, 0.7])]
    return compare_outcomes(found + [run(HOSTILE, seed, value) for seed, value in enumerate([0.6, 0.8, 1.0])])


@pytest.fixture(scope="module")
def results() -> dict[str, Tabular]:
    """One of each result, of a model whose layers have a hostile name."""
    torch.manual_seed(0)
    model, x = Named(), torch.randn(4, 12, 16)
    found: dict[str, Tabular] = {
        "layers": wc.attention_layers(model),
        "unapplied plan": wc.plan(model, "conditioned"),
        "diagnosis": wc.diagnose(model, x),
        "place": wc.locate(model, x),
        "check": wc.check_propagation(model, x),
        "plan": wc.init_(model, "conditioned", seed=0),
        "audit": wc.audit(model, "conditioned"),
        "schemes": wc.schemes(),
        "propagation": wc.propagate(depth=3, tokens=16, beta=0.4),
        "propagations": wc.propagate(depth=3, tokens=16, beta=torch.tensor([0.4, 4.0])),
        "diagram": wc.trainability(("beta", 0.1, 4), ("value_gain", 0.1, 1), depth=3, tokens=16, resolution=3),
        "comparison": comparison(),
        "rates": Rates("accuracy", True, {HOSTILE: {1e-3: 0.5, 1e-2: None}}, {}),
    }
    handle = wc.condition_(model, "polar")
    found |= {"summary": handle.summary(), "cost": handle.cost(tokens=12)}
    handle.remove_()
    return found | {"norms": wc.without_layernorm(model)}


class Cells(html.parser.HTMLParser):
    """The texts of the cells of a table, and every element there is."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.elements: set[str] = set()
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        if tag == "tr":
            self.rows.append([])
        self.inside = tag in ("th", "td")
        if self.inside:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.rows[-1][-1] += data


def test_every_result_has_html_with_the_cells_of_its_text(results: dict[str, Tabular]) -> None:
    for name, result in results.items():
        shown = result._repr_html_()
        found = Cells(shown)
        assert found.elements <= {"div", "p", "table", "thead", "tbody", "tr", "th", "td"}, name
        assert len({len(row) for row in found.rows}) == 1, name
        for row in found.rows:
            for cell in row:
                assert all(word in str(result) for word in cell.split()), (name, cell)
        if name not in ("schemes", "propagation", "propagations", "diagram", "cost"):
            assert "script&gt;" in shown, name  # long names lose their start
            assert "<script" not in shown, name


def test_a_notebook_runs_no_layer_name(results: dict[str, Tabular], browser: Browser, tmp_path: Path) -> None:
    page = "".join(result._repr_html_() for result in results.values())
    head = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">'
    with opened(browser, head + page, tmp_path / "cells.html") as shown:  # a dialog would fail it
        assert HOSTILE in shown.inner_text("body")
        assert shown.locator("script").count() == 0
        assert shown.locator("table").count() == len(results)


def test_notes_and_titles_are_in_the_html() -> None:
    shown = ResultTable(["a"], [["1"]], title="a < b", notes=["", "one & two"]).to_html()
    assert "<p>a &lt; b</p>" in shown
    assert ">one &amp; two</p>" in shown


def test_frames_have_numbers_as_numbers(results: dict[str, Tabular]) -> None:
    numbers = {
        "layers": ["heads", "kv_heads", "head_dim", "width", "scale"],
        "plan": ["kappa_before", "kappa_now"],
        "audit": ["head", "measured", "expected", "tolerance"],
        "diagnosis": ["head", "entropy", "participation", "max_logit", "cosine", "stable_rank", "tokens"]
        + [f"{name}_{role}" for name in ("kappa", "sigma_min") for role in ("query", "key", "value")]
        + ["kappa_jacobian", "gradient_query"],
        "place": ["predicted", "measured"],
        "check": ["block", "predicted", "measured"],
        "propagation": ["block", "cosine", "entropy", "stream_gradient", "mlp_gradient_1"],
        "diagram": ["beta", "value_gain", "cosine", "entropy", "phase"],
        "summary": ["head", "trained", "effective", "sigma_max", "bound"],
        "cost": ["without", "with"],
        "comparison": ["mean", "sd", "difference", "low", "high", "p", "runs_finished"],
        "rates": ["lr", "accuracy"],
    }
    for name, columns in numbers.items():
        frame = results[name].to_frame()
        assert [column for column in columns if not pd.api.types.is_numeric_dtype(frame[column])] == [], name
        assert len(frame) == len(results[name].records()), name
    unapplied = results["unapplied plan"].to_frame()
    assert list(unapplied.columns) == ["layer", "role", "scheme", "law"]
    assert set(unapplied["role"]) == {"query", "key", "value"}


def test_frames_say_what_the_results_say(results: dict[str, Tabular]) -> None:
    found: Any = results
    layers = found["diagnosis"].layers
    frame = found["diagnosis"].to_frame().set_index(["layer", "head"])
    for layer in layers:
        for head in layer.heads:
            row = frame.loc[(layer.name, head.head)]
            assert (row["entropy"], row["cosine"], row["code"]) == (head.entropy, layer.cosine, head.code)
        keys = {w.head: w.effective.condition for w in layer.weights if w.role == "key" and w.head is not None}
        assert frame.loc[layer.name]["kappa_key"].to_dict() == keys
    diagram = found["diagram"]
    cell = diagram.to_frame().set_index(["value_gain", "beta"]).loc[(float(diagram.y[2]), float(diagram.x[0]))]
    assert cell["entropy"] == float(diagram.entropy[2, 0])
    assert cell["verdict"] == diagram.verdict(beta=float(diagram.x[0]), value_gain=float(diagram.y[2]))
    several = found["propagations"]
    frame = several.to_frame().set_index(["setting", "block"])
    assert frame.loc[(1, 2)]["entropy"] == float(several.entropy[2, 1])
    assert math.isnan(frame.loc[(1, 3)]["entropy"])  # the stream that leaves the stack, where nothing attends
    assert frame.loc[(0, 3)]["cosine"] == float(several.cosine[3, 0])
    assert frame.groupby(level="setting")["stream_gradient"].last().tolist() == [1.0, 1.0]
    best = found["comparison"].to_frame().set_index("arm").loc[HOSTILE]
    record = found["comparison"][HOSTILE]
    assert (best["difference"], best["p"]) == (record.to_baseline.mean, record.to_baseline.p)
    assert (best["low"], best["high"]) == record.to_baseline.interval


def test_a_query_head_has_the_numbers_of_the_key_head_it_reads() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "intermediate_size": 32, "num_attention_heads": 6, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=1, vocab_size=50))
    found = wc.diagnose(model, {"input_ids": torch.randint(50, (1, 8))}, jacobian=False)
    keys = {w.head: w.effective.condition for w in found.layers[0].weights if w.role == "key" and w.head is not None}
    assert found.to_frame()["kappa_key"].tolist() == [keys[0]] * 3 + [keys[1]] * 3


def test_real_layers_as_a_frame() -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=2)
    frame = wc.attention_layers(model).to_frame()
    assert frame["layer"].tolist() == [f"blocks.{index}.attn" for index in range(12)]
    assert set(zip(frame["heads"], frame["head_dim"], frame["width"], strict=True)) == {(3, 64, 192)}


def test_text_is_the_table_with_its_notes(results: dict[str, Tabular]) -> None:
    text = str(results["comparison"])
    assert text.splitlines()[0].split()[:2] == ["arm", "accuracy"]
    assert table_text(comparison(), width=1000).split("\n\n")[-1] in text


def test_missing_pandas_is_named(monkeypatch: pytest.MonkeyPatch, results: dict[str, Tabular]) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(WellcondError, match="pip install pandas"):
        results["layers"].to_frame()
    assert results["layers"].records()[0]["heads"] == 2


def test_importing_wellcond_does_not_import_pandas() -> None:
    code = "import sys, wellcond; print('pandas' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"
