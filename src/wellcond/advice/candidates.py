"""Candidates: initialisations that a model may begin with, each as code that runs, and those that apply to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from wellcond.advice.model_state import ModelState
from wellcond.attention.find import attention_layers, from_structure
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.paths import unwrap
from wellcond.attention.view import AttentionLayer
from wellcond.conditioning.parameter_writes import ParameterWrites
from wellcond.errors import WellcondError
from wellcond.init.api import init_, plan
from wellcond.init.registry import make_scheme, registered_schemes
from wellcond.scale.calibrate import calibrate_

OWN: Final = "yours"  # the name of the weights as they are
CALIBRATED: Final = " + calibrated"
SMALLER: Final = " + smaller embedding"
IN_LINE: Final = " + usual sizes"
# Tried first where time is short, by what was ahead of a default in the laboratory most often.
FIRST: Final = ("conditioned", "fan_in", "mimetic", "centring", "zero_output", "orthogonal", "spectral", "xavier")
FIRST_OF_BROKEN: Final = ("normal", "gpt2_residual")  # what libraries begin with, where something is out of line
# Controls, what needs more than the model, and the names of what the model has already.
LEFT_OUT: Final = frozenset({"keep", "calibrated", "scale_matched", "rotated", "flipped"})

RESIZING: Final = "lambda layer, draw: {role: sizes[role] * p.read() for role, p in layer.projections(*sizes)}"
Weights = str | Callable[[AttentionLayer, Any], dict[str, Tensor]] | None


@dataclass(frozen=True)
class Candidate:
    """One initialisation: a scheme or the weights as they are, then calibrated or not.

    Args:
        scheme: its name; None for the weights as they are.
        calibrated: whether sharpness and gains are set on a batch afterwards.
        beta: targets of the sharpness, as `wc.calibrate_` takes them; None for its default.
        branch: targets of the gain; None for its default.
        embedding: factors of what makes the stream, by parameter; applied first.
        partial: whether the scheme leaves out layers that it does not apply to.
        sizes: factors of the model's own weights by role, which bring them into line; of no scheme.
        observed: whether the layers are found by what they do on a batch, as their classes do not tell all of them.
        named: its name, where it is not that of its parts.

    >>> Candidate("conditioned", calibrated=True).name, Candidate().name
    ('conditioned + calibrated', 'yours')
    >>> print(Candidate("conditioned", calibrated=True).code())
    wc.init_(model, "conditioned", seed=0)
    wc.calibrate_(model, batch)
    >>> print(Candidate(sizes={"query": 0.125, "key": 0.125}).code())
    sizes = {"query": 0.125, "key": 0.125}
    wc.init_(model, lambda layer, draw: {role: sizes[role] * p.read() for role, p in layer.projections(*sizes)})
    """

    scheme: str | None = None
    calibrated: bool = False
    beta: Any = field(default=None, hash=False)
    branch: Any = field(default=None, hash=False)
    embedding: Mapping[str, float] = field(default_factory=dict, hash=False)
    partial: bool = False
    sizes: Mapping[str, float] = field(default_factory=dict, hash=False)
    observed: bool = False
    named: str = ""

    @property
    def name(self) -> str:
        """What it is called in tables."""
        if self.named:
            return self.named
        mended = IN_LINE if self.sizes else SMALLER * bool(self.embedding)
        return (self.scheme or OWN) + mended + CALIBRATED * self.calibrated

    @property
    def is_own(self) -> bool:
        """Whether it leaves the weights as they are."""
        return self.weights is None and not self.calibrated and not self.embedding

    @property
    def weights(self) -> Weights:
        """What `wc.init_` takes: a scheme's name, a function that scales roles, or None for the weights as they are."""
        return self._resized if self.sizes else self.scheme

    def _resized(self, layer: AttentionLayer, draw: object) -> dict[str, Tensor]:
        return {role: self.sizes[role] * p.read() for role, p in layer.projections(*self.sizes)}

    @property
    def citation(self) -> str:
        """Where it is from."""
        if self.scheme is None:
            return "" if self.is_own else "ours"
        return registered_schemes()[self.scheme].citation

    def apply_(self, model: nn.Module, inputs: Any, seed: int = 0) -> None:
        """Give a model these weights, all or nothing; `inputs` are what it is calibrated on."""
        with ParameterWrites(unwrap(model)) as writes, torch.no_grad():
            for path, factor in self.embedding.items():
                writes.open(path).mul_(factor)
            plan = None
            if self.weights is not None:
                layers = attention_layers(model, inputs) if self.observed else None
                plan = init_(model, self.weights, seed=seed, layers=layers, on_inapplicable="skip")
            try:
                if self.calibrated:
                    calibrate_(model, inputs, **self._targets())
            except BaseException:
                if plan is not None:
                    plan.undo_()
                raise

    def code(self) -> str:
        """The lines of Python that do the same."""
        lines = []
        if self.embedding:
            parts = ", ".join(f'"{path}": {factor:.4g}' for path, factor in self.embedding.items())
            lines += ["with torch.no_grad():", f"    for name, factor in {{{parts}}}.items():"]
            lines.append("        model.get_parameter(name).mul_(factor)")
        which = ", layers=wc.attention_layers(model, batch)" if self.observed else ""
        if self.sizes:
            parts = ", ".join(f'"{role}": {factor:.4g}' for role, factor in self.sizes.items())
            lines += [f"sizes = {{{parts}}}", f"wc.init_(model, {RESIZING}{which})"]
        if self.scheme is not None:
            skipping = ', on_inapplicable="skip"' if self.partial else ""
            lines.append(f'wc.init_(model, "{self.scheme}", seed=0{which}{skipping})')
        if self.calibrated:
            targets = "".join(f", {name}={_rounded(value)!r}" for name, value in self._targets().items())
            lines.append(f"wc.calibrate_(model, batch{targets})")
        return "\n".join(lines) or "# nothing to do"

    def _targets(self) -> dict[str, Any]:
        return {name: value for name, value in (("beta", self.beta), ("branch", self.branch)) if value is not None}


def _rounded(value: Any) -> Any:
    """Targets to four digits, which are more than a calibration keeps to."""
    if isinstance(value, Mapping):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


@dataclass(frozen=True)
class Refused:
    """A candidate that is not tried, and why."""

    candidate: Candidate
    reason: str
    outcome: str = "ruled out"


def candidates_for(
    trial: nn.Module, layers: AttentionLayers, names: tuple[str, ...] | None, state: ModelState
) -> tuple[list[Candidate], list[Refused]]:
    """Return the candidates for a model, the first to be tried first, and those that do not apply or would not mend it.

    Args:
        trial: a copy of the model.
        layers: of the model.
        names: of the schemes to consider; all if None.
        state: of the model; each candidate but the weights as they are sets what is out of line in it anew.
    """
    embedding, observed = state.embedding, {x.name for x in layers} != {x.name for x in from_structure(trial)}
    own_calibrated = Candidate(calibrated=True, embedding=embedding, sizes=state.sizes, observed=observed)
    plain, calibrated, refused = [Candidate()], [own_calibrated], list[Refused]()
    if state.sizes or (embedding and not any(finding.roles for finding in state.findings)):
        plain.append(Candidate(embedding=embedding, sizes=state.sizes, observed=observed))
    for name in _schemes(state.broken) if names is None else names:
        scheme = make_scheme(name, {})
        reasons = [layer.reason or scheme.applies(layer) for layer in layers]
        one = Candidate(name, embedding=embedding, partial=any(reasons), observed=observed)
        if all(reasons):
            reason = str(reasons[0] if reasons else "the model has no attention layer")
            refused.append(Refused(one, reason, "not applicable"))
            continue
        left = _left_out_of_line(trial, layers, one, state)
        for each, able in ((one, plain), (replace(one, calibrated=True), calibrated)):
            # A calibration mends heads that are too sharp, and no sizes that a norm hides, or W_V has.
            if left and (state.sizes or not each.calibrated):
                refused.append(Refused(each, f"it does not set what is out of line: {left}"))
            else:
                able.append(each)
    own, *others = plain
    mended = [one for one in others if one.scheme is None]  # by as little as can be, so before what sets more anew
    return [own, *mended, calibrated[0], *others[len(mended) :], *calibrated[1:]], refused


def _left_out_of_line(trial: nn.Module, layers: AttentionLayers, one: Candidate, state: ModelState) -> str:
    """What of a model is out of line and stays so, as a scheme does not set these roles in all layers."""
    assert one.scheme is not None
    needed = {role for finding in state.findings for role in finding.roles}
    if not needed:
        return ""
    entries = plan(trial, one.scheme, layers=[*layers], on_inapplicable="skip").entries
    missing = needed if one.partial else needed - {entry.role for entry in entries}
    return ", ".join(finding.what for finding in state.findings if missing & {*finding.roles})


def _schemes(broken: bool) -> list[str]:
    """Names of all schemes that need nothing but the model, the first to be tried first."""
    names = [name for name, kind in registered_schemes().items() if name not in LEFT_OUT and not kind.stand_ins]
    free = [name for name in names if not _required(name)]
    first = [name for name in (*FIRST_OF_BROKEN * broken, *FIRST) if name in free]
    return first + sorted(name for name in free if name not in first)


def _required(name: str) -> bool:
    """Whether a scheme has an option without a default."""
    try:
        make_scheme(name, {})
    except WellcondError:
        return True
    return False
