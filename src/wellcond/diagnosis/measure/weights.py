"""Singular values of the weights, per head and fused: trained, effective, and scaled by the gains of the norms."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from wellcond._core.linalg import conditions, svdvals
from wellcond.attention.layouts import joined
from wellcond.attention.view import QK_NORMS, AttentionLayer
from wellcond.conditioning.existing_handles import handles_around
from wellcond.diagnosis.readings import ROLES
from wellcond.diagnosis.records import LayerRecord, ProductRecord, Spectrum, WeightRecord
from wellcond.scale.products import PAIRS, pair_weights, product_singular_values
from wellcond.scale.update_entropy import UpdateReading

UNIT = 2e-6  # a norm's gain is asked for in float32, and its ε shows: closer to 1 it is 1, as in every fresh model


def weight_records(
    layer: AttentionLayer,
    norm: nn.Module | None,
    trained: Mapping[tuple[str, str], Tensor],
    gradients: Mapping[tuple[str, str], Tensor],
    *,
    brief: bool = False,
) -> list[WeightRecord]:
    """One record per head of W_Q, W_K and W_V, and one for all heads of each side by side.

    `norm` is the one whose output the layer reads; `trained`, W where W + C is used, and the `gradients` of a loss are
    by layer and role. A brief record has no fused weights, and of singular values the first and the last alone.
    """
    records = []
    for role, projection in layer.projections(*ROLES):
        used = projection.read()
        scaled = scaled_weight(layer, role, used, norm)
        plain = scaled is not None and torch.allclose(scaled, used.double(), rtol=UNIT, atol=0.0)
        gradient, original = gradients.get((layer.name, role)), trained.get((layer.name, role))
        versions = [used, original, None if plain else scaled]
        per_head: list[Sequence[Spectrum | None]] = [
            _spectra(w, keep=not brief) if w is not None else [None] * len(used) for w in versions
        ]
        per_head[2] = per_head[0] if plain else per_head[2]
        norms = [None] * len(used) if gradient is None else gradient.double().flatten(1).norm(dim=1).tolist()
        for head, (effective, before, gained) in enumerate(zip(*per_head, strict=True)):
            assert effective is not None
            records.append(WeightRecord(role, head, effective, before, gained, norms[head]))
        if brief:
            continue
        whole = None if gradient is None else float(gradient.double().norm())
        fused = [_spectra(joined(w)[None], keep=True)[0] if w is not None else None for w in versions]
        assert fused[0] is not None
        fused[2] = fused[0] if plain else fused[2]
        records.append(WeightRecord(role, None, fused[0], fused[1], fused[2], whole))
    return records


def with_updates(record: LayerRecord, updates: Mapping[tuple[str, str, int], UpdateReading]) -> LayerRecord:
    """Return a record with what training has changed in each head's weights since the last one."""
    weights = []
    for weight in record.weights:
        found = None if weight.head is None else updates.get((record.name, weight.role, weight.head))
        weights.append(weight if found is None else replace(weight, update=found.entropy, update_trend=found.trend))
    return replace(record, weights=tuple(weights))


def product_records(layer: AttentionLayer, *, brief: bool = False) -> Iterator[ProductRecord]:
    """One record per product W_Q W_Kᵀ and W_V W_O of each query head, from the triangles of the factors."""
    for pair in PAIRS:
        weights = pair_weights(layer, pair)
        if weights is None or not all(bool(torch.isfinite(w).all()) for w in weights):
            continue
        sigma = product_singular_values(*weights)
        for head, spectrum in enumerate(_from_values(sigma, max(weights[0].shape[1:]), keep=not brief)):
            yield ProductRecord(pair, head, spectrum)


def _spectra(weights: Tensor, *, keep: bool) -> list[Spectrum]:
    finite = torch.isfinite(weights).flatten(1).all(1)
    if not finite.all():
        spectra = iter(_spectra(weights[finite], keep=keep) if finite.any() else [])
        return [next(spectra) if known else Spectrum(None, math.nan, math.nan) for known in finite]
    return _from_values(svdvals(weights), max(weights.shape[1:]), keep=keep)


def _from_values(sigma: Tensor, longest: int, *, keep: bool) -> list[Spectrum]:
    """Spectra from singular values, `(heads, r)`, of matrices with this longer side."""
    kappas = conditions(sigma, longest).tolist()
    return [
        Spectrum(None if kappa == math.inf else kappa, values[0], values[-1], tuple(values) if keep else ())
        for kappa, values in zip(kappas, sigma.tolist(), strict=True)
    ]


def scaled_weight(layer: AttentionLayer, role: str, weight: Tensor, norm: nn.Module | None) -> Tensor | None:
    """Return diag(γ) W diag(g), from tokens of unit variance to what enters the product; None without such gains.

    γ is the gain of the norm before the layer, g that of the QK-norm; W and the result are `(heads, D, d)`.
    """
    before = None if norm is None else gain(norm, weight.shape[1])
    after = _qk_gain(layer, role, weight)
    if before is None and after is None:
        return None
    out = weight.double()
    if before is not None:
        out = before[:, None] * out
    return out if after is None else out * after[:, None, :]


def _qk_gain(layer: AttentionLayer, role: str, weight: Tensor) -> Tensor | None:
    """The gain of the QK-norm, `(heads or 1, d)`."""
    if role not in QK_NORMS:
        return None
    for name, module in layer.module.named_modules():
        if not re.search(QK_NORMS[role], name) or isinstance(module, nn.Identity) or list(module.children()):
            continue
        heads, _, width = weight.shape
        for size in (width, heads * width):  # per head, or over all heads together
            found = gain(module, size)
            if found is not None:
                return found.reshape(-1, width)
    return None


def gain(norm: nn.Module, width: int) -> Tensor | None:
    """γ of a LayerNorm or RMSNorm of this width, whatever its class calls it (Gemma stores γ − 1); None for others.

    The norm is asked: on ±u of zero mean and unit variance it answers γ u ± β.

    >>> norm = nn.LayerNorm(5)
    >>> torch.nn.init.normal_(norm.weight), torch.nn.init.normal_(norm.bias)  # doctest: +ELLIPSIS
    (...)
    >>> torch.allclose(gain(norm, 5), norm.weight.double(), rtol=1e-4)
    True
    """
    own = [p for p in norm.parameters(recurse=False) if p is not None]
    if any(p.numel() != width for p in own) or not own:
        return None
    u = torch.ones(width, dtype=torch.float64)
    u[1::2] = -1.0
    if width % 2 and width > 1:
        u[-3:] = torch.tensor([1.0, 1.0, -2.0])
    u = u / u.square().mean().sqrt()
    grid = type(norm).__name__.endswith("2d")  # channels first
    probe = u.to(own[0]).view(1, width, *([1, 1] if grid else []))
    try:
        with torch.no_grad():
            answer: Tensor = (norm(probe) - norm(-probe)).flatten().cpu().double() / 2
    except RuntimeError:  # a norm of another shape, such as one by head
        return None
    return answer / u if answer.shape == u.shape else None


def trained_weights(model: nn.Module) -> dict[tuple[str, str], Tensor]:
    """Return W by layer and role wherever `wc.condition_` has W + C used instead."""
    return {
        (part.layer.name, part.role): original
        for handle in handles_around(model)
        if handle.active
        for part, original, _ in handle.trained_and_effective()
    }
