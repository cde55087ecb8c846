"""Wrong arguments of public functions: one line from wellcond, nothing written, within seconds.

Each public function is called with right arguments but one, which takes every wrong value in turn. It succeeds, or
raises a `WellcondError` of one line; if it raises, the model keeps its bits.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import pickle
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import nn

import wellcond as wc
from wellcond import testing
from wellcond.checkpoint.handle_state import load_state_, save_state
from wellcond.errors import ArgumentError, WellcondError
from wellcond.integrations import lightning, transformers
from wellcond.propagation import exact_pairs as pairs
from wellcond.propagation import exact_rows as rows
from wellcond.propagation.activation_kernels import kernel
from wellcond.propagation.exact_pairs import exact_pair
from wellcond.propagation.exact_rows import exact_row
from wellcond.propagation.trainability import window
from wellcond.testing import same_bits, state

SECONDS = 5  # of processor time that any of these calls may take
PART = 8  # one call of so many is made in every run, all of them in the long one


class Deaf:
    """Nothing that a function could want; what calls it gets another."""

    def __init__(self, *_: Any) -> None: ...

    def __repr__(self) -> str:
        return "line one\nline two " + "of a very long text " * 50


class Mute(nn.Module):
    """A module that takes anything and gives nothing."""

    def forward(self, *_: Any, **__: Any) -> None: ...


WRONG: dict[str, Any] = {
    "None": None,
    "True": True,
    "3.5": 3.5,
    "-1": -1,
    "0": 0,
    "7": 7,
    "10**6": 10**6,
    "2**63": 2**63,
    "10**400": 10**400,
    "300.0": 300.0,
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "1e308": 1e308,
    "1j": 1j,
    "np.nan": np.float32("nan"),
    "np.int": np.int64(-2),
    "''": "",
    "'no such'": "no such",
    "'a\\0b'": "a\0b",
    "b'x'": b"x",
    "path": Path("/no/such/folder/file.txt"),
    "()": (),
    "[]": [],
    "[None]": [None],
    "[-1]": [-1],
    "['no']": ["no"],
    "(1, 'a')": (1, "a"),
    "(nan, nan)": (math.nan, math.nan),
    "('beta', 3, 1)": ("beta", 3, 1),
    "{}": {},
    "{1: 2}": {1: 2},
    "{'query': None}": {"query": None},
    "set": {3},
    "object": Deaf(),
    "lambda": lambda *_: None,
    "class": Deaf,
    "module": Mute(),
    "list of modules": nn.ModuleList([nn.ReLU()]),
    "tensor (2, 3)": torch.ones(2, 3),
    "tensor (0,)": torch.zeros(0),
    "tensor nan": torch.tensor(math.nan),
    "tensor int": torch.tensor(3),
    "complex tensor": torch.ones(2, 6, 8, dtype=torch.complex64),
    "meta tensor": torch.ones(2, 6, 8, device="meta"),
    "array": np.ones((2, 2)),
}


def tiny() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)


def batch() -> torch.Tensor:
    return torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(1))


def head() -> wc.jacobian.Head:
    generator = torch.Generator().manual_seed(2)
    return wc.jacobian.softmax_head(torch.randn(5, 6, generator=generator), *torch.randn(3, 6, 3, generator=generator))


@dataclass
class Ready:
    """A model, and what a call may need of it."""

    model: nn.Module
    folder: Path

    def view(self) -> wc.AttentionLayer:
        return wc.attention_layers(self.model)[0]

    def file(self) -> Path:
        path = self.folder / "weights.safetensors"
        wc.save_weights(self.model, path)
        return path

    def handle(self, method: str = "shift", **options: Any) -> wc.Conditioning:
        return wc.condition_(self.model, method, **options)


Call = Callable[[Ready], tuple[Callable[..., Any], dict[str, Any]]]
DIAGRAM = {"depth": 2, "tokens": 8, "resolution": 4}


def diagram() -> wc.Diagram:
    return wc.trainability(("beta", 0.1, 2.0), ("value_gain", 0.1, 1.0), **DIAGRAM)


def adam(ready: Ready) -> torch.optim.Optimizer:
    return torch.optim.AdamW(ready.model.parameters(), lr=0.0)


def of_handle(name: str, arguments: Callable[[Ready, wc.Conditioning], dict[str, Any]], **options: Any) -> Call:
    def call(ready: Ready) -> tuple[Callable[..., Any], dict[str, Any]]:
        handle = ready.handle(**options)
        return getattr(handle, name), arguments(ready, handle)

    return call


X = ("beta", 0.1, 2.0)
Y = ("value_gain", 0.1, 1.0)
# Right arguments of everything public; those in ** are there to be made wrong as well.
CALLS: dict[str, Call] = {
    "attention_layers": lambda r: (wc.attention_layers, {"model": r.model}),
    "handles_of": lambda r: (wc.handles_of, {"model": r.model}),
    "AttentionLayers.select": lambda r: (wc.attention_layers(r.model).select, {"pattern": "*"}),
    "AttentionLayer.verify": lambda r: (r.view().verify, {"inputs": batch()}),
    "AttentionLayer.projections": lambda r: (lambda role: dict(r.view().projections(role)), {"role": "key"}),
    "AttentionLayer.bind": lambda r: (r.view().bind, {"root": r.model, "block": None}),
    "Projection.write_": lambda r: (r.view().key.write_, {"weight": torch.zeros(2, 8, 4)}),
    "Projection.check": lambda r: (r.view().key.check, {"weight": torch.zeros(2, 8, 4)}),
    "Projection.bias_zeroed": lambda r: (r.view().key.bias_zeroed, {"stored": torch.zeros(24)}),
    "register_attention": lambda r: (wc.register_attention, {"cls": nn.Bilinear, "describe": lambda m, n: None}),
    "init_": lambda r: (
        wc.init_,
        {
            "model": r.model,
            "scheme": "mimetic",
            "seed": 0,
            "generator": None,
            "layers": None,
            "on_inapplicable": "error",
            "vo_alpha": 0.3,
        },
    ),
    "plan": lambda r: (
        wc.plan,
        {
            "model": r.model,
            "scheme": "conditioned",
            "seed": 0,
            "generator": None,
            "layers": None,
            "on_inapplicable": "error",
            "value_strength": 1.0,
        },
    ),
    "Plan.parameters": lambda r: (lambda wanted: list(wc.plan(r.model, "tfixup").parameters(wanted)), {"wanted": None}),
    "audit": lambda r: (
        wc.audit,
        {"model": r.model, "scheme": "normal", "layers": None, "on_inapplicable": "error", "std": 0.1},
    ),
    "schemes": lambda r: (wc.schemes, {"pattern": "*"}),
    "balance_": lambda r: (
        wc.balance_,
        {"model": r.model, "batch": batch(), "part": "qk", "group": "scalar", "to": "balanced", "layers": None}
        | {"optimizer": torch.optim.AdamW(r.model.parameters())},
    ),
    "calibrate_": lambda r: (
        wc.calibrate_,
        {"model": r.model, "batch": batch(), "beta": 0.3, "branch": 0.5, "layers": None},
    ),
    # With other seconds, steps or seeds a right call takes long; tests/advice and tests/lab have wrong ones.
    "recommend": lambda r: (
        partial(wc.recommend, seconds=0),
        {"model": r.model, "batches": [(batch(), batch())] * 4, "loss": nn.functional.mse_loss, "optimizer": "adamw"}
        | {"lr": 1e-3, "schemes": ["normal"], "out": r.folder / "trials"},
    ),
    "compare": lambda r: (
        partial(wc.compare, steps=0, seeds=1, monitor=False),
        {"build_model": tiny, "data": _own_data(), "schemes": ["normal"], "loss": nn.functional.mse_loss}
        | {"metric": None, "higher_is_better": False, "batch": 2, "optimizer": "adamw", "lr": 1e-3, "collate": None}
        | {"length": None, "controls": False, "out": _fresh(r)},
    ),
    "head_blocks": lambda r: (wc.head_blocks, {"model": r.model, "inputs": batch(), "layers": None}),
    "optim.assign": lambda r: (wc.optim.assign, {"model": r.model, "overrides": {"*bias": "adamw"}, "layers": None}),
    "optim.check_blocks": lambda r: (wc.optim.check_blocks, {"model": r.model, "inputs": batch()}),
    "optim.Muon": lambda r: (
        wc.optim.Muon,
        {"model": r.model, "lr": 0.02, "per_head": "qkv", "weight_decay": 0.1, "momentum": 0.9, "nesterov": True}
        | {"orthogonalize": "polar", "ns_coefficients": (3.4, -4.7, 2.0), "ns_steps": 5, "eps": 1e-7}
        | {"ns_dtype": torch.float32, "adjust_lr_fn": None, "adamw_lr": 1e-3, "adamw_betas": (0.9, 0.95)}
        | {"adamw_eps": 1e-8, "adamw_weight_decay": 0.0, "overrides": None, "layers": None},
    ),
    "control_": lambda r: (
        wc.control_,
        {"model": r.model, "optimizer": torch.optim.AdamW(r.model.parameters()), "beta": (0.1, 0.8), "kappa": 10.0}
        | {"max_logit": 100.0, "balance": 2.0, "audit": False, "updates": True, "rule": "bands", "every": 3}
        | {"budget": 0.01, "act": True, "alarms": True, "batch": batch(), "examples": 2, "layers": None},
    ),
    "condition_": lambda r: (
        wc.condition_,
        {
            "model": r.model,
            "method": "shift",
            "strength": 1.5,
            "mode": "folded",
            "roles": "qk",
            "layers": None,
            "as_original": True,
            "placement": "head",
        },
    ),
    "condition_ polar": lambda r: (wc.condition_, {"model": r.model, "method": "polar", "strength": 1.0, "every": 2}),
    "condition_ sigma_reparam": lambda r: (wc.condition_, {"model": r.model, "method": "sigma_reparam", "gain": 1.0}),
    "Conditioning.attach": of_handle("attach", lambda r, h: {"optimizer": adam(r)}, strength=0.5),
    "Conditioning.concerns": of_handle("concerns", lambda r, h: {"optimizer": adam(r)}, strength=0.5),
    "Conditioning.after_step": of_handle("after_step", lambda r, h: {"optimizer": adam(r)}, strength=0.5),
    "Conditioning.cost": of_handle("cost", lambda r, h: {"tokens": 5}, strength=0.5),
    "Conditioning.strength_": of_handle("strength_", lambda r, h: {"strength": 0.7}, strength=0.5),
    "Conditioning.load_weights_": of_handle(
        "load_weights_", lambda r, h: {"weights": r.file(), "as_original": False}, strength=0.5
    ),
    "Conditioning.load_state_dict": of_handle("load_state_dict", lambda r, h: {"state": h.state_dict()}, strength=0.5),
    "polar.load_state_dict": of_handle("load_state_dict", lambda r, h: {"state": h.state_dict()}, method="polar"),
    "polar.attach": of_handle("attach", lambda r, h: {"optimizer": adam(r)}, method="polar"),
    "polar.cost": of_handle("cost", lambda r, h: {"tokens": 5}, method="polar"),
    "save_state": lambda r: (
        save_state,
        {"handle": r.handle(strength=0.5), "path": r.folder / "state.safetensors"},
    ),
    "load_state_": lambda r: (load_state_, _saved(r)),
    "without_layernorm": lambda r: (wc.without_layernorm, {"model": r.model, "layers": None, "final": False}),
    "diagnose": lambda r: (
        wc.diagnose,
        {
            "model": r.model,
            "batch": batch(),
            "layers": None,
            "jacobian": "auto",
            "heads": [0],
            "rows": 2,
            "sequences": (0,),
            "vertical": False,
            "loss": None,
            "max_memory": 1e9,
            "progress": False,
            "description": "",
        },
    ),
    "Diagnosis.worst": lambda r: (_diagnosis(r).worst, {"count": 2}),
    "Diagnosis.to_json": lambda r: (_diagnosis(r).to_json, {"path": r.folder / "d.json"}),
    "Diagnosis.to_html": lambda r: (_diagnosis(r).to_html, {"path": r.folder / "d.html"}),
    "Diagnosis.plot": lambda r: (_diagnosis(r).plot, {"path": r.folder / "d.png"}),
    "Monitor": lambda r: (
        _monitored,
        {
            "model": r.model,
            "batch": batch(),
            "budget": None,
            "every": 1,
            "log": None,
            "folder": r.folder / "run",
            "label": "",
            "seed": None,
            "tiers": ("weights", "attention", "jacobian"),
            "layers": None,
            "heads": 1,
            "size": 16,
            "alarms": False,
            "updates": True,
        },
    ),
    "Monitor.step": lambda r: (wc.Monitor(r.model, batch(), every=3, alarms=False).step, {"step": 3}),
    "propagate": lambda r: (
        wc.propagate,
        {
            "depth": 2,
            "tokens": 8,
            "beta": 1.0,
            "value_gain": 1.0,
            "mlp_gain": (1.0, 1.0),
            "bias": 0.0,
            "residual_attention": 1.0,
            "residual_mlp": 1.0,
            "norm": "pre",
            "activation": "gelu",
            "cosine": 0.2,
            "self_bias": 0.0,
            "width": None,
            "head_dim": None,
            "attention": "softmax",
            "causal": False,
            "loss": "token",
            "theory": "finite",
            "thresholds": None,
        },
    ),
    "propagate causal": lambda r: (
        partial(wc.propagate, causal=True),
        {
            "depth": 2,
            "tokens": 8,
            "beta": 1.0,
            "value_gain": 1.0,
            "self_bias": 0.0,
            "activation": "relu",
            "cosine": 0.2,
        },
    ),
    "propagate without a norm": lambda r: (
        partial(wc.propagate, norm="none"),
        {"depth": 2, "tokens": 8, "beta": 1.0, "value_gain": 1.0, "bias": 0.1, "self_bias": 0.5},
    ),
    "Propagation.plot": lambda r: (wc.propagate(2, 8, 1.0).plot, {"path": r.folder / "p.png"}),
    "trainability": lambda r: (
        wc.trainability,
        {
            "x": X,
            "y": Y,
            "resolution": 4,
            "thresholds": None,
            "gradients": True,
            "depth": 2,
            "tokens": 8,
            "norm": "post",
            "activation": "relu",
            "self_bias": 0.0,
        },
    ),
    "window": lambda r: (window, {"x": X, "resolution": 4, "thresholds": None, "depth": 2, "tokens": 8}),
    "Diagram.verdict": lambda r: (diagram().verdict, {"beta": 1.0, "value_gain": 0.5}),
    "Diagram.window": lambda r: (diagram().window, {"beta": 1.0}),
    "Diagram.plot": lambda r: (diagram().plot, {"path": r.folder / "dia.png"}),
    "Thresholds": lambda r: (wc.Thresholds, {"cosine": 0.99, "entropy": 0.25, "gradient": 6.0, "own": 0.5}),
    "collapse_exponent": lambda r: (
        wc.collapse_exponent,
        {
            "value_gain": 1.0,
            "mlp_gain": (1.0, 1.0),
            "residual_attention": 1.0,
            "residual_mlp": 1.0,
            "activation": "gelu",
            "bias": 0.0,
        },
    ),
    "critical_residual": lambda r: (
        wc.critical_residual,
        {"value_gain": 1.0, "mlp_gain": (1.0, 1.0), "residual_mlp": 1.0, "activation": "gelu", "bias": 0.0},
    ),
    "exact_row": lambda r: (exact_row, {"deviation": 1.5, "tokens": 16, "shift": 0.0, "step": 0.3}),
    "exact_pair": lambda r: (
        exact_pair,
        {"deviation": 1.5, "correlation": 0.5, "tokens": 16, "second": None, "extra": 0, "step": 0.4},
    ),
    "kernel": lambda r: (kernel, {"activation": "relu"}),
    "locate": lambda r: (wc.locate, {"model": r.model, "batch": batch()}),
    "Spot.diagram": lambda r: (wc.locate(r.model, batch()).diagram, {"resolution": 3}),
    "Spot.plot": lambda r: (wc.locate(r.model, batch()).plot, {"path": r.folder / "s.png"}),
    "check_propagation": lambda r: (wc.check_propagation, {"model": r.model, "batch": batch()}),
    "PropagationCheck.plot": lambda r: (wc.check_propagation(r.model, batch()).plot, {"path": r.folder / "c.png"}),
    "build_model": lambda r: (
        wc.build_model,
        {"name": f"{_script(r)}:make", "seed": 0, "device": "cpu", "width": 8},
    ),
    "init_to_files": lambda r: (
        wc.init_to_files,
        {
            "build": tiny,
            "scheme": "normal",
            "directory": _fresh(r),
            "seed": 0,
            "layers": None,
            "on_inapplicable": "error",
            "std": 0.1,
        },
    ),
    "save_weights": lambda r: (wc.save_weights, {"model": r.model, "path": r.folder / "w.safetensors"}),
    "load_weights_": lambda r: (wc.load_weights_, {"model": r.model, "path": r.file(), "as_original": False}),
    "jacobian.softmax_head": lambda r: (
        lambda **given: wc.jacobian.spectrum(wc.jacobian.softmax_head(**given)),
        {
            "x": torch.randn(5, 6),
            **dict(zip(("w_q", "w_k", "w_v"), torch.randn(3, 6, 3), strict=True)),
            "memory": None,
            "scale": None,
            "biases": None,
            "softcap": None,
            "bias": None,
        },
    ),
    "jacobian.head_of": lambda r: (
        wc.jacobian.head_of,
        {"layer": r.view(), "inputs": batch(), "head": 1, "sequences": [0]},
    ),
    "jacobian.heads_of": lambda r: (
        lambda **given: list(wc.jacobian.heads_of(**given)),
        {"layer": r.view(), "inputs": batch(), "heads": [1], "sequences": [0]},
    ),
    "jacobian.spectrum": lambda r: (
        wc.jacobian.spectrum,
        {"head": head(), "convention": "side-by-side", "method": "auto", "rows": 2, "max_memory": 1e9},
    ),
    "jacobian.singular_values": lambda r: (
        wc.jacobian.singular_values,
        {"head": head(), "convention": "vertical", "method": "gram", "rows": None},
    ),
    "jacobian.tangent_kernel": lambda r: (wc.jacobian.tangent_kernel, {"head": head(), "rows": 2}),
    "jacobian.matrix": lambda r: (
        wc.jacobian.matrix,
        {"head": head(), "convention": "side-by-side", "rows": None},
    ),
    "jacobian.estimate": lambda r: (
        wc.jacobian.estimate,
        {"head": head(), "convention": "side-by-side", "rows": None},
    ),
    "jacobian.bound": lambda r: (wc.jacobian.bound, {"head": head()}),
    "jacobian.softmax_condition": lambda r: (
        wc.jacobian.softmax_condition,
        {"p": torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64), "visible": None},
    ),
    "jacobian.Head.twin": lambda r: (head().twin, {"seed": 0, "joint": False}),
    "testing.check_adapter": lambda r: (
        testing.check_adapter,
        {"model": r.model.double(), "inputs": batch().double()},
    ),
    "testing.check_round_trip": lambda r: (testing.check_round_trip, {"model": r.model, "layer": r.view()}),
    "testing.tamper": lambda r: (lambda layer: list(testing.tamper(layer)), {"layer": r.view()}),
    "testing.state": lambda r: (testing.state, {"model": r.model}),
    "testing.same_bits": lambda r: (testing.same_bits, {"a": torch.ones(2), "b": torch.ones(2)}),
    "lightning.ConditioningCallback": lambda r: (
        lightning.ConditioningCallback,
        {"handle": r.handle(strength=0.5), "name": "wellcond"},
    ),
    "lightning.MonitorCallback": lambda r: (
        lightning.MonitorCallback,
        {"given": wc.Monitor(r.model, batch(), alarms=False)},
    ),
    "transformers.ConditioningTrainerCallback": lambda r: (
        transformers.ConditioningTrainerCallback,
        {"handle": r.handle(strength=0.5), "resume_from": None, "name": "wellcond"},
    ),
    "transformers.MonitorTrainerCallback": lambda r: (
        transformers.MonitorTrainerCallback,
        {"given": wc.Monitor(r.model, batch(), alarms=False)},
    ),
}


def _saved(ready: Ready) -> dict[str, Any]:
    handle, path = ready.handle(strength=0.5), ready.folder / "state.safetensors"
    save_state(handle, path)
    return {"handle": handle, "path": path}


def _diagnosis(ready: Ready) -> wc.Diagnosis:
    return wc.diagnose(ready.model, batch(), jacobian=False)


def _monitored(**given: Any) -> None:
    with wc.Monitor(**given) as monitor:
        monitor.step()


def _script(ready: Ready) -> Path:
    path = ready.folder / "mine.py"
    path.write_text("from torch import nn\ndef make(width=8):\n    return nn.TransformerEncoderLayer(width, 2, 12)\n")
    return path


def _own_data() -> dict[str, Any]:
    pairs = [(x, x) for x in batch().repeat(2, 1, 1)]
    return {"train": pairs, "test": pairs}


def _fresh(ready: Ready) -> Path:
    return ready.folder / f"made-{len(list(ready.folder.iterdir()))}"


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def made(name: str, argument: str, wrong: str, folder: Path) -> str | None:
    """Make one call; say what is not as it should be."""
    ready = Ready(tiny(), folder)
    function, arguments = CALLS[name](ready)
    before = state(ready.model)
    raised = False
    try:
        with within(SECONDS):
            function(**{**arguments, argument: WRONG[wrong]})
    except WellcondError as error:
        raised = True
        if "\n" in str(error) or len(str(error)) > 700:
            return f"not one line: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:200]!r}"
    after = state(ready.model)
    changed = after.keys() != before.keys() or not all(same_bits(after[key], before[key]) for key in before)
    return "the weights changed although it raised" if raised and changed else None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_ends_in_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where a wrong path may be written
    part(name, tmp_path, share=PART)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_every_wrong_argument_ends_in_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    part(name, tmp_path, share=1)


def part(name: str, folder: Path, share: int) -> int:
    arguments = CALLS[name](Ready(tiny(), folder))[1]
    calls = [(argument, wrong) for argument in arguments for wrong in WRONG]
    chosen = random.Random(name).sample(calls, math.ceil(len(calls) / share))
    problems = {call: problem for call in chosen if (problem := made(name, *call, folder))}
    plt.close("all")
    print(f"{name}: {len(chosen)} calls, {len(problems)} not as they should be")
    assert not problems, "\n".join(f"{name}({a}={w}): {problem}" for (a, w), problem in problems.items())
    return len(chosen)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wc.condition_(tiny(), roles=None), "condition_: roles is a string or a tuple of: a string; got None"),
        (lambda: wc.Thresholds(None), "Thresholds: cosine is a number; got None"),
        (lambda: wc.schemes(None), "schemes: pattern is a string; got None"),
        (lambda: wc.save_weights(tiny(), None), "save_weights: path is the path of a file; got None"),
        (lambda: wc.Monitor(tiny(), batch(), heads=None), "Monitor: heads is a whole number of at least 1; got None"),
        (lambda: wc.Monitor(tiny(), batch(), log=True), "Monitor: log is a function, or an object with .log"),
        (lambda: wc.diagnose(tiny(), batch(), rows=3.5), "diagnose: rows is a whole number of at least 1, several of:"),
        (lambda: wc.diagnose(tiny(), None), "TransformerEncoderLayer cannot be run on None: AttributeError: "),
        (lambda: wc.propagate(2, 8, "hot"), "propagate: beta is a number or a torch.Tensor; got 'hot'"),
        (lambda: wc.propagate(2, 8, -1.0), "beta is a number from 0 to 1e+60, got -1.0"),
    ],
)
def test_the_line_names_the_argument_what_came_and_what_is_allowed(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(WellcondError) as caught:
        call()
    assert str(caught.value).startswith(message)


def test_a_member_of_an_enumeration_stands_for_its_word() -> None:
    class Route(StrEnum):
        FACTOR = "factor"
        OTHER = "other"

    measured = wc.jacobian.spectrum(head(), method=Route.FACTOR)
    assert measured.method == "factor"
    assert type(measured.method) is str
    with pytest.raises(ArgumentError, match="method is 'auto', 'gram', 'factor' or 'matrix-free'; got <Route"):
        wc.jacobian.spectrum(head(), method=Route.OTHER)


def test_an_argument_error_is_what_python_would_raise() -> None:
    with pytest.raises(TypeError):
        wc.schemes(3)
    with pytest.raises(ValueError, match="of at least 0"):
        wc.Thresholds(gradient=-2.0)


def test_a_model_s_own_exception_is_the_cause() -> None:
    with pytest.raises(wc.errors.BatchError) as caught:
        wc.diagnose(tiny(), {"tokens": batch()})
    assert isinstance(caught.value.__cause__, TypeError)


def test_right_arguments_of_other_libraries_are_taken() -> None:
    assert wc.propagate(np.int64(2), np.int32(8), np.float32(1.0)).verdict == wc.propagate(2, 8, 1.0).verdict
    assert wc.propagate(2, 8, torch.tensor([0.5, 1.0])).cosine.shape == (3, 2)
    assert wc.collapse_exponent(torch.tensor(0.25), [1, 1]) == wc.collapse_exponent(0.25, (1.0, 1.0))
    assert len(wc.diagnose(tiny(), batch(), heads=torch.tensor([1]), rows=np.arange(3)).jacobian["self_attn"]) == 1
    assert wc.Thresholds(gradient=math.inf, cosine=np.float64(0.5)).cosine == 0.5


def test_a_checked_function_keeps_its_name_signature_and_pickle() -> None:
    assert pickle.loads(pickle.dumps(wc.diagnose)) is wc.diagnose
    assert pickle.loads(pickle.dumps(wc.Thresholds(cosine=0.5))) == wc.Thresholds(cosine=0.5)
    assert list(inspect.signature(wc.schemes).parameters) == ["pattern"]
    assert wc.plan.__doc__.startswith("Work out what `init_` would write")
    with pytest.raises(TypeError, match="unexpected keyword argument 'patern'"):
        wc.schemes(patern="*")
    with pytest.raises(TypeError, match="positional argument"):
        wc.schemes("*", "*")


def test_a_warning_points_at_the_line_of_the_user() -> None:
    with pytest.warns(UserWarning, match="Theorem 3.8") as caught:
        wc.condition_(tiny(), strength=0.01)
    assert {warning.filename for warning in caught} == {__file__}
    model = tiny()
    with torch.no_grad():
        model.self_attn.in_proj_weight *= 1e4
    with pytest.warns(wc.errors.AttentionWarning) as caught:
        wc.Monitor(model, batch(), every=1).step()
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.parametrize(("tokens", "deviation"), [(8, 400.0), (64, 600.0)])
def test_rows_beyond_what_is_integrated_continue_it(
    tokens: int, deviation: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parabola is off by the third order in 256 ÷ deviation; the integral by rounding, times s² in entropy."""
    continued = exact_row(deviation, tokens, 5.0)
    monkeypatch.setattr(rows, "MAX_ROW_DEVIATION", math.inf)
    integrated = exact_row(deviation, tokens, 5.0)
    assert continued.participation == pytest.approx(integrated.participation, abs=1e-7)
    assert continued.own == pytest.approx(integrated.own, abs=1e-7)
    assert continued.gradient == pytest.approx(integrated.gradient, rel=1e-5)
    assert continued.entropy == pytest.approx(integrated.entropy, rel=1e-3)


@pytest.mark.parametrize(("correlation", "close"), [(0.3, 1e-4), (0.9, 1e-3), (0.999, 1e-2), (1.0, 1e-3)])
def test_pairs_beyond_what_is_integrated_continue_it(
    correlation: float, close: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    deviation = 13 * math.sqrt(2 * math.log(9))
    continued = exact_pair(deviation, correlation, 8, step=0.65)
    monkeypatch.setattr(pairs, "MAX_PAIR_DEVIATION", math.inf)
    integrated = exact_pair(deviation, correlation, 8, step=0.65)
    assert continued.overlap == pytest.approx(integrated.overlap, abs=close)
    assert continued.gradient == pytest.approx(integrated.gradient, rel=0.2)


def test_every_public_function_is_called_with_wrong_arguments() -> None:
    called = {name.partition(" ")[0].removeprefix("jacobian.").partition(".")[0] for name in CALLS}
    public = [getattr(wc, name) for name in wc.__all__] + [getattr(wc.jacobian, name) for name in wc.jacobian.__all__]
    functions = {function.__name__ for function in public if inspect.isfunction(function)}
    assert functions - called == set()
