"""`wc.calibrate_`: set the sharpness of heads and the gain of branches on a batch, layer by layer in one pass."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from wellcond._core.checked import checked
from wellcond.attention.apart import shared_weights, stored_weight
from wellcond.attention.capture import evaluating, run_model
from wellcond.attention.layers import AttentionLayers, LayerFilter
from wellcond.attention.paths import unwrap
from wellcond.attention.undisturbed import undisturbed
from wellcond.attention.view import AttentionLayer
from wellcond.conditioning.parameter_writes import ParameterWrites
from wellcond.errors import WellcondError
from wellcond.scale.calibration_result import Calibration, LayerScale
from wellcond.scale.calibration_targets import BETA, BRANCH, Beta, Branch, Targets
from wellcond.scale.logits_at_entry import logits_at_entry
from wellcond.scale.measure_scales import measured_scales
from wellcond.scale.residual_sums import ResidualSum, residual_sums
from wellcond.scale.sharpen import multiply_, sharpen_
from wellcond.scale.views_on_batch import views_on_batch

LARGEST_FACTOR = 1000.0  # of W_O: a branch that asks for more is made small by something else
MISSED = 0.02  # relative distance from a target, above which a calibration has failed


@checked
def calibrate_(
    model: nn.Module,
    batch: Any,
    *,
    beta: Beta = BETA,
    branch: Branch = BRANCH,
    layers: LayerFilter = None,
) -> Calibration:
    """Scale Q, K and O so that every head has sharpness β and every branch gain g on a batch, whatever the weights are.

    One forward pass, each layer scaled before the next one reads it: W_Q and W_K of a head by the same number (a key
    that several queries share by their geometric mean), the gain of a QK-norm where there is one, then W_O where its
    layer joins the stream. A second pass measures what was reached; a target missed by more than 2 % undoes everything.
    Where no adapter knows a class, a pass before finds the layers, and the recorded steps of each module tell its β.
    Layers for which a target has no meaning are left alone and listed, with the reason.

    Args:
        model: any model, wrapped or sharded, initialised by any scheme.
        batch: a tensor, a tuple of positional or a dict of keyword arguments; each process may have its own, for the
            numbers are means over processes.
        beta: the target of β, the standard deviation of a row's logits ÷ √(2 log T). The defaults of β and g are those
            of docs/study.md, from models of up to 12 layers.
        branch: the target of g, RMS(what a layer adds) ÷ RMS(stream); `"1/sqrt(2L)"` for L layers in its stack.
        layers: a name, a pattern or several; all if None.

    >>> import torch, wellcond as wc
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True, norm_first=True)
    >>> c = wc.calibrate_(model, torch.randn(4, 9, 16), branch=0.5)
    >>> [round(b, 3) for b in c.after["self_attn"].beta], round(c.after["self_attn"].branch, 3)
    ([0.35, 0.35], 0.5)
    """
    with ParameterWrites(unwrap(model)) as writes:
        return calibrate_layers_(layers, batch, beta, branch, writes)


@torch.no_grad()
def calibrate_layers_(chosen: LayerFilter, batch: Any, beta: Any, branch: Any, writes: ParameterWrites) -> Calibration:
    """Calibrate some layers of a model inside a transaction of the caller's; arguments as in `calibrate_`."""
    layers = views_on_batch(writes.root, batch, chosen)
    targets = Targets(layers, beta, branch)
    setting = _Pass(layers, targets, writes)
    setting.run(writes.root, batch)
    left = {name for name, what, _ in setting.skipped if what == "beta"}
    scaled = [layer for layer in layers if layer.name not in left and beta is not None]
    after = measured_scales(writes.root, layers, batch, verified=scaled)
    result = Calibration(setting.found, after, setting.skipped, writes)
    _check(result, targets, layers)
    return result


class _Pass:
    """One pass that measures every layer and, where there is a target, scales it before the next one reads it."""

    def __init__(self, layers: AttentionLayers, targets: Targets, writes: ParameterWrites) -> None:
        self.layers, self.targets, self.writes = layers, targets, writes
        self.found: dict[str, LayerScale] = {}
        self.skipped: list[tuple[str, str, str]] = []
        for layer in layers:  # targets are read, and refused, before anything runs
            targets.beta(layer), targets.branch(layer)
        tied = shared_weights(layers)  # told now: a module that runs sharded has other tensors
        outputs = [(layer.name, p) for layer in layers for _, p in layer.projections("output")]
        self.tied = {name for name, p in outputs if p.refusal() is None and stored_weight(p) in tied}

    def run(self, root: nn.Module, batch: Any) -> None:
        with ExitStack() as stack:
            stack.enter_context(undisturbed(root))
            stack.enter_context(evaluating(root))
            for layer in self.layers:
                hook = layer.module.register_forward_pre_hook(partial(self._entered, layer), with_kwargs=True)
                stack.callback(hook.remove)
            joined = stack.enter_context(residual_sums(self.layers, self._joined))
            run_model(root, batch)
        for layer in self.layers:
            if self.targets.branch(layer) is not None and layer.name not in joined:
                self.skipped.append((layer.name, "branch", "it was not seen to join a residual stream on this batch"))
            if layer.name not in self.found:
                self.skipped.append((layer.name, "beta", "it was not called on this batch"))

    def _entered(self, layer: AttentionLayer, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Measure β of a layer that is about to run, and set it."""
        if layer.name in self.found:  # called before
            return
        with _disable_current_modes():  # nothing here joins the stream
            self._set_sharpness(layer, args, kwargs)

    def _set_sharpness(self, layer: AttentionLayer, args: Any, kwargs: Any) -> None:
        measure = partial(logits_at_entry, layer, args, kwargs)
        logits = measure()
        betas = [] if isinstance(logits, str) else logits.sharpness()
        self.found[layer.name] = LayerScale(tuple(betas), None)
        wanted = self.targets.beta(layer)
        if wanted is not None:
            reason = logits if isinstance(logits, str) else sharpen_(logits, betas, wanted, self.writes, measure)
            if reason:
                self.skipped.append((layer.name, "beta", reason))

    def _joined(self, layer: AttentionLayer, total: ResidualSum) -> float:
        """Measure g where a layer joins the stream, and set it."""
        gain = total.mean_gain()
        self.found[layer.name] = LayerScale(self.found[layer.name].beta, gain)
        target = self.targets.branch(layer)
        if target is None:
            return 1.0
        reason = self._fixed(layer, total, gain, target)
        if reason:
            self.skipped.append((layer.name, "branch", reason))
            return 1.0
        assert gain is not None
        assert layer.output is not None
        multiply_(layer.output, [target / gain] * layer.output.heads, self.writes)
        return target / gain

    def _fixed(self, layer: AttentionLayer, total: ResidualSum, gain: float | None, target: float) -> str:
        """Why W_O does not set the gain of a branch; empty if it does."""
        if layer.standing == "refused":
            return f"refused: {layer.reason}"
        if layer.output is None:
            return "it has no output projection to scale"
        if not total.alone:
            return "its output is added to another branch before the stream, so one number cannot scale it alone"
        if not total.linear:
            return "a norm, or something else that is not linear, follows W_O: scale that"
        if not gain:
            return "it adds nothing, or the stream is zero"
        if target / gain > LARGEST_FACTOR:
            return (
                f"g is {gain:.2g}, so W_O would grow {target / gain:.2g} times: the branch is made small behind it, as "
                "LayerScale does: scale that, or give branch=None"
            )
        if layer.name in self.tied:
            return "its output projection is shared with another layer"
        return layer.output.refusal() or ""


def _check(result: Calibration, targets: Targets, layers: AttentionLayers) -> None:
    """Raise if a layer missed a target that it was scaled for."""
    left = {(name, what) for name, what, _ in result.skipped}
    for layer in (one for one in layers if one.name in result.after):
        scale = result.after[layer.name]
        wanted, gain = targets.beta(layer), targets.branch(layer)
        if wanted is not None and (layer.name, "beta") not in left:
            known = [beta for beta in scale.beta if beta is not None]
            if layer.qk_norm:  # its gains are shared by the heads
                known, wanted = [sum(known) / len(known)], [sum(wanted) / len(wanted)]
            for beta, target in zip(known, wanted, strict=True):
                _reached(layer, "β", beta, target)
        if gain is not None and (layer.name, "branch") not in left:
            _reached(layer, "g", scale.branch, gain)


def _reached(layer: AttentionLayer, symbol: str, found: float | None, target: float) -> None:
    if found is None or abs(found / target - 1) > MISSED:
        raise WellcondError(
            f"'{layer.name}' was scaled for {symbol} = {target:.3g} and has {found}, so everything was put back; leave "
            "it out with layers=…"
        )
