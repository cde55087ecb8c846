"""One engine of verdicts: the same limits everywhere, remedies that run, advice that knows what was applied."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import wellcond as wc
from tests.terminals import in_terminal
from wellcond.cli.main import app
from wellcond.diagnosis.quantities import QUANTITIES
from wellcond.diagnosis.readings import ROLES
from wellcond.diagnosis.records import AppliedRecord, JacobianRecord, LayerRecord
from wellcond.diagnosis.verdicts import judge
from wellcond.errors import WellcondError
from wellcond.jacobian.result import ConditionNumber

ROOT = Path(__file__).parents[2]
FAST: dict[str, Any] = {"jacobian": False, "progress": False}
LOGIT = {"thresholds": wc.Thresholds(logit=20.0)}  # with which a row need not be one-hot to be saturated


def vit() -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, embed_dim=24, num_heads=3)
    wc.init_(model, "conditioned")
    return model


def images() -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
    return LlamaModel(LlamaConfig(vocab_size=30, num_hidden_layers=4, **sizes))


def ids() -> dict[str, Tensor]:
    return {"input_ids": torch.arange(24).view(2, 12)}


def sharp(factor: float = 300.0) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        model.blocks[1].attn.qkv.weight[:8] *= factor  # the queries of head 0

    return change


def alike(model: nn.Module) -> None:
    for block in model.blocks:  # strong branches of uniform attention
        block.attn.qkv.weight[:24] = 0.0
        block.attn.qkv.weight[48:] *= 30
        block.attn.proj.weight.copy_(30 * torch.eye(24))


def alike_llama(model: nn.Module) -> None:
    for layer in model.layers:
        layer.self_attn.v_proj.weight.normal_(0, 3.0)
        layer.self_attn.o_proj.weight.normal_(0, 3.0)
        layer.self_attn.q_proj.weight.zero_()


def broken_head(model: nn.Module) -> None:
    model.blocks[0].attn.qkv.weight[0, 0] = float("nan")


def broken_before(model: nn.Module) -> None:
    model.patch_embed.proj.bias[3] = float("inf")


def dead(model: nn.Module) -> None:
    model.blocks[0].attn.qkv.weight[56:60] = 0.0  # half of the values of head 1


def zero(model: nn.Module) -> None:
    model.blocks[0].attn.qkv.weight[56:64] = 0.0


def ill(model: nn.Module) -> None:
    model.blocks[0].attn.qkv.weight[0] *= 1e-5


def hopeless(model: nn.Module) -> None:
    model.blocks[0].attn.qkv.weight[0] *= 1e-9  # a direction of the product, which no other factor can mend


def faint(model: nn.Module) -> None:
    model.blocks[0].attn.qkv.weight[:48] *= 1e-3


def shift(strength: float) -> Callable[[nn.Module], None]:
    return lambda model: wc.condition_(model, "shift", strength=strength)  # type: ignore[return-value]


def before(change: Callable[[nn.Module], None], method: str, **options: Any) -> Callable[[nn.Module], None]:
    def both(model: nn.Module) -> None:
        change(model)
        wc.condition_(model, method, **options)

    return both


# code, what is done to the model, words of the advice, whether the line makes it go away
SICK: list[tuple[str, Callable[[nn.Module], None], str, bool]] = [
    ("entropy collapse", sharp(), "bound the logits", True),
    ("entropy collapse", shift(10.0), "a shift of 10 is applied", True),
    ("entropy collapse", before(sharp(), "polar"), "in place of polar", True),
    ("entropy collapse", before(sharp(), "sigma_reparam"), "in place of sigma_reparam", True),
    ("saturated", sharp(8.0), "bound the logits", True),
    ("self-attending", shift(2.0), "lower it to 0.7", True),
    ("self-attending", lambda model: wc.init_(model, "mimetic", qk_beta=20.0), "start queries", True),
    ("uniform", faint, "a larger W_Q and W_K", True),
    ("uniform", before(faint, "polar"), "double its strength", False),
    ("rank collapse", alike, "in common", True),
    ("rank collapse", before(alike, "shift", strength=0.1, roles="v"), "in common", True),
    ("rank deficient", dead, "polar keeps κ at 2", True),
    ("rank deficient", zero, "it is zero", True),
    ("rank deficient", before(dead, "sigma_reparam"), "in place of sigma_reparam", True),
    ("unbalanced", ill, "leaves the function as it is", True),
    ("unbalanced", before(ill, "polar", strength=1e-6), "too small a strength", True),
    ("ill conditioned", hopeless, "polar keeps κ at 2", True),
    ("not finite", broken_head, "start it anew", True),
    ("not finite", broken_before, "look upstream", False),
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("code", "change", "words", "cured"), SICK)
def test_every_remedy_runs_and_where_it_can_the_concern_is_gone(
    code: str, change: Callable[[nn.Module], None], words: str, cured: bool
) -> None:
    model = vit()
    with torch.no_grad():
        change(model)
    options = FAST | (LOGIT if code == "saturated" else {})
    found = [concern for concern in wc.diagnose(model, images(), **options).concerns if concern.code == code]
    assert found, "the model does not show it"
    concern = next(concern for concern in found if words in concern.text)
    assert str(concern).endswith(concern.remedy)
    held = {name: p.detach().clone() for name, p in model.named_parameters()}
    applied = [handle.method for handle in wc.handles_of(model)]
    try:
        result = eval(concern.remedy, {"model": model, "wc": wc})
    except SyntaxError:  # several statements in a line
        result = None
        exec(concern.remedy, {"model": model, "wc": wc})
    if code == "not finite" and not cured:
        assert result == ["patch_embed.proj.bias"]
        return
    now = dict(model.named_parameters())
    kept = set(now) == set(held) and all(torch.equal(held[name], now[name]) for name in held)
    assert not kept or [handle.method for handle in wc.handles_of(model)] != applied or "strength_" in concern.remedy
    left = [c for c in wc.diagnose(model, images(), **options).concerns if c.code == code and c.layer == concern.layer]
    assert bool(left) != cured


def test_the_remedies_of_a_decoder_with_grouped_heads_run() -> None:
    model = llama()
    with torch.no_grad():
        alike_llama(model)
    limits = wc.Thresholds(cosine=0.7)  # causal averages of four layers differ by more than 0.99 allows
    (concern, *_) = (
        c for c in wc.diagnose(model, ids(), thresholds=limits, **FAST).concerns if c.code == "rank collapse"
    )
    assert "gpt2_residual" in concern.remedy  # centring reaches no more of the stream than the value heads do
    exec(concern.remedy, {"model": model, "wc": wc})
    after = wc.diagnose(model, ids(), thresholds=limits, **FAST)
    assert "rank collapse" not in {c.code for c in after.concerns}


def jacobian(value: float, status: str = "ok") -> JacobianRecord:
    found = ConditionNumber(value, 1.0, 1 / value, 30, 40 if status == "rank deficient" else 30, 0.0, "factor", status)
    found = replace(found, equilibrated=found)
    return JacobianRecord(0, found, None, None, 5, 5)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("status", ["ok", "rank deficient"])
@pytest.mark.parametrize("applied", [None, "shift", "polar"])
@pytest.mark.parametrize("model", [vit, llama])
def test_the_remedy_for_a_jacobian_runs_whatever_is_applied(
    status: str, applied: str | None, model: Callable[[], nn.Module]
) -> None:
    built, batch = model(), images() if model is vit else ids()
    if applied is not None:
        wc.condition_(built, applied, **({"strength": 1.0} if applied == "shift" else {}))
    record = wc.diagnose(built, batch, **FAST).layers[0]
    (concern,) = (c for c in judge(replace(record, jacobian=(jacobian(1e9, status),))).concerns if "Jacobian" in c.code)
    assert record.causal == (model is llama)
    assert "shift of about 1" not in concern.text
    assert ("conditioned already (polar)" in concern.text) == (applied == "polar")
    exec(concern.remedy, {"model": built, "wc": wc})
    after = wc.diagnose(built, batch, **FAST).layers[0]
    assert after.conditioning != record.conditioning


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_record_says_what_is_applied_to_each_layer() -> None:
    model = vit()
    handle = wc.condition_(model, "shift", strength={"qk": 1, "v": 2}, layers="blocks.1.*")
    whole = nn.Sequential(model)  # the handle is of a part of what is diagnosed
    first, second = wc.diagnose(whole, images(), **FAST).layers
    assert first.conditioning == ()
    assert second.conditioning == (AppliedRecord("shift", "folded", {"query": 1, "key": 1, "value": 2}),)
    handle.remove_()
    assert wc.diagnose(whole, images(), **FAST).layers[1].conditioning == ()


def test_each_code_has_one_severity_and_a_remedy() -> None:
    layer = LayerRecord("attn", "softmax", (2, 2, 4, 8), 6, None, None, (), ())
    predicted = {"gradients explode", "gradients vanish"}  # of a stack, not measured in a layer
    rules = [rule for quantity in QUANTITIES for rule in quantity.verdicts]
    assert {rule.code for rule in rules} == set(wc.ConcernKind) - predicted
    for rule in rules:
        words, line = rule.remedy(asdict(layer), ROLES)
        compile(line, rule.code, "exec")
        assert words
        assert hasattr(wc.Thresholds(), rule.above or rule.below) != bool(rule.status)
    assert (wc.ConcernKind.UNIFORM.severity, wc.ConcernKind.RANK_COLLAPSE.severity) == (
        wc.Severity.NOTE,
        wc.Severity.ALARM,
    )


def test_concerns_come_gravest_first_and_so_do_rows_of_the_table() -> None:
    model = vit()
    with torch.no_grad():
        faint(model)
        sharp()(model)
        dead(model)
    found = wc.diagnose(model, images(), **FAST)
    ranks = [concern.severity.rank for concern in found.concerns]
    assert ranks == sorted(ranks, reverse=True)
    assert {str(concern.severity) for concern in found.concerns} == {"alarm", "warning", "note"}
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["blocks.1.attn", "blocks.0.attn"]
    assert "\x1b" not in str(found)
    coloured = found.to_text(colour=True).splitlines()
    assert coloured[2].startswith("\x1b[31mblocks.1.attn")
    assert coloured[3].startswith("\x1b[33mblocks.0.attn")
    data = json.loads(found.to_json())["layers"][1]
    assert (data["severity"], data["heads"][0]["severity"]) == ("alarm", "alarm")
    assert data["concerns"][0]["remedy"] == data["heads"][0]["remedy"] == found.concerns[0].remedy


def test_one_concern_for_all_heads_that_have_it() -> None:
    model = vit()
    with torch.no_grad():
        model.blocks[1].attn.qkv.weight[:24] *= 300
    (concern,) = (c for c in wc.diagnose(model, images(), **FAST).concerns if c.code == "entropy collapse")
    assert concern.heads == (0, 1, 2)
    assert str(concern).startswith("blocks.1.attn heads 0, 1, 2: entropy collapse (0.0")


def test_a_concern_of_several_layers_has_one_line_of_code_for_all_of_them() -> None:
    model = vit()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight[:48] *= 1e-3
    found = wc.diagnose(model, images(), **FAST)
    assert [(c.layer, c.code) for c in found.concerns] == [(f"blocks.{n}.attn", "uniform") for n in (0, 1)]
    placed = wc.locate(model, images())
    for text in (str(found), str(placed)):
        line = next(line for line in text.splitlines() if "wc.init_" in line)
        exec(line[line.index("wc.init_") :], {"wc": wc, "model": model})
    assert 'layers=["blocks.0.attn", "blocks.1.attn"]' in str(found)
    assert not wc.diagnose(model, images(), **FAST).concerns


# ------------------------------------------------------------------------------------------- the same limits everywhere


def test_the_limits_of_diagnose_locate_and_the_monitor_are_the_same_and_can_be_changed() -> None:
    model, limits = vit(), wc.Thresholds(entropy=0.99, cosine=0.01, uniform=2.0)
    diagnosed = wc.diagnose(model, images(), thresholds=limits, **FAST)
    placed = wc.locate(model, images(), thresholds=limits)
    (record,) = wc.Monitor(model, images(), every=1, tiers=["attention"], alarms=False, thresholds=limits).step()
    expected = [[c.code for c in layer.concerns] for layer in diagnosed.layers]
    assert ["entropy collapse" in codes for codes in expected] == [True, True]
    assert [[c["code"] for c in layer["concerns"]] for layer in record["layers"]] == expected
    assert [layer.verdict.split(", ") for layer in placed.layers] == expected
    assert [layer.severity for layer in placed.layers] == [wc.Severity.ALARM] * 2
    assert placed.concerns == diagnosed.concerns
    assert placed.diagram(resolution=3).thresholds == limits
    assert not any(layer.verdict for layer in wc.locate(model, images()).layers)


@pytest.mark.parametrize("value", [None, "0.1", True, float("nan")])
def test_a_threshold_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(WellcondError, match="entropy"):
        wc.Thresholds(entropy=value)


@pytest.mark.parametrize(
    "call", [wc.diagnose, wc.locate, lambda m, x, thresholds: wc.Monitor(m, x, thresholds=thresholds)]
)
def test_what_is_no_thresholds_is_refused(call: Callable[..., Any]) -> None:
    with pytest.raises(WellcondError, match="Thresholds"):
        call(vit(), images(), thresholds={"entropy": 0.1})


def test_the_usual_limits_agree_best_with_what_trained() -> None:
    """The measurement that the limits are chosen by: docs/predict_training.py trained the cells."""
    kept = json.loads((ROOT / "docs" / "img" / "prediction.json").read_text())
    cells = kept["accuracy"]
    found = wc.propagate(
        depth=12,
        tokens=16,
        beta=torch.tensor([cell["beta"] for cell in cells]),
        residual_attention=torch.tensor([cell["skip"] for cell in cells]),
        value_gain=0.8,
        mlp_gain=(1.5, 1.5),
        norm="post",
        cosine=kept["cosine at the input"],
    )
    trained = torch.tensor([min(cell["seeds"]) > 0.5 for cell in cells])

    def agreeing(**limits: float) -> int:
        usual = wc.Thresholds(**limits)
        wrong = usual.rank_collapsed(found.cosine[-1]) | usual.entropy_collapsed(found.entropy.amin(0))
        return int((~wrong == trained).sum())

    assert agreeing() == kept["finite"] == 23
    grid = [(c, e) for c in (0.9, 0.95, 0.98, 0.99, 0.995) for e in (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)]
    assert agreeing() == max(agreeing(cosine=c, entropy=e) for c, e in grid)
    assert agreeing(cosine=0.95) == 17
    assert agreeing(entropy=0.25) == 19


# ------------------------------------------------------------------------------------------------- the command line

SICK_FILE = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 3, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    with torch.no_grad():
        model.layers[1].self_attn.in_proj_weight[:12] *= 1000
    return model
"""

ON_A_TERMINAL = """
import os
from wellcond.cli.main import app
for setting in ("", "1"):
    os.environ["NO_COLOR"] = setting
    app(["diagnose", "sick.py:build", "--jacobian", "off"], standalone_mode=False)
    app(["diagram", "--model", "sick.py:build"], standalone_mode=False)
    print("END", flush=True)
"""


def test_a_terminal_gets_colours_by_severity_unless_it_wants_none(tmp_path: Path) -> None:
    (tmp_path / "sick.py").write_text(SICK_FILE)
    written = in_terminal(ON_A_TERMINAL, cwd=tmp_path, columns="200", streams="stdout")
    coloured, plain, _ = written.split("END\n")
    assert coloured.count("\x1b[31mlayers.1.self_attn") == 2  # a row of each table
    assert "\x1b[31m  alarm: layers.1.self_attn" in coloured
    assert "\x1b" not in plain
    assert re.sub("\x1b\\[\\d*m", "", coloured) == plain


def test_the_command_line_prints_verdicts_and_no_colour_into_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sick.py").write_text(SICK_FILE)
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(app, ["diagram", "--model", "sick.py:build", "-o", "m.png"])
    assert shown.exit_code == 0, shown.output
    header, first, second = shown.stdout.splitlines()[1:4]
    assert header.endswith("verdict")
    assert first.startswith("layers.1.self_attn")
    assert first.endswith("entropy collapse")
    assert second.endswith("ok")
    assert "alarm: layers.1.self_attn heads 0, 1, 2: entropy collapse" in shown.stdout
    assert "\x1b" not in shown.stdout
