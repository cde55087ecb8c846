"""`wellcond.optim.Muon`: matrices by Muon, whole or a head at a time, and all else by AdamW, in one optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from wellcond._core.argument_types import Count, NotNegative, Positive, Share
from wellcond._core.checked import checked
from wellcond._core.deferred_torch import is_dtensor
from wellcond.attention.blocks import is_transposed
from wellcond.attention.head_blocks import HeadBlock
from wellcond.attention.head_partition import head_blocks
from wellcond.attention.layers import LayerFilter
from wellcond.attention.paths import resolve, unwrap
from wellcond.attention.storage import full, like, split_path
from wellcond.errors import OptimizerError
from wellcond.optim.assignment import Algorithm, assign
from wellcond.optim.orthogonalize import JORDAN, Coefficients, newton_schulz, polar_factor
from wellcond.optim.spectral_sphere import retract_

AdjustLearningRate = Literal["original", "match_rms_adamw", "spectral_unclamped"]
Orthogonalize = Literal["newton-schulz", "polar"]
CHUNK = 2**24  # numbers that are orthogonalised together: more needs memory and is no faster


class Muon(Optimizer):
    r"""Train matrices by the orthogonal factor of their momentum, each head's apart if wanted, and the rest by AdamW.

    B ← μ B + (1 − μ) G, then W ← (1 − ηλ) W − η' U Vᵀ with U S Vᵀ = (1 − μ) G + μ B. With `per_head=False` a matrix is
    trained as `torch.optim.Muon` trains it, to the same bits. With `per_head=True` each head's block of each attention
    weight is a matrix of its own, whatever the storage (per-head Muon of Kimi K3, 2607.24653; Muon Split of GLM-5,
    2602.15763, cut Q, K and V: `per_head="qkv"`), and η' follows the block's shape.

    `print(wellcond.optim.assign(model))` shows beforehand which parameters are matrices to it; `optimizer.blocks` what
    they are cut into. Gradient scaling, closures, schedulers, DDP and FSDP2 are as with any optimizer of torch.

    Args:
        model: what is trained, after wrapping or sharding.
        lr: η, of the matrices.
        per_head: whether attention is cut into heads: all of it, or some of the roles `"q"`, `"k"`, `"v"`, `"o"`.
        weight_decay: λ, decoupled.
        momentum: μ.
        nesterov: whether the update looks ahead; B alone if not.
        orthogonalize: Newton–Schulz steps, or the exact factor.
        ns_coefficients: of every step, or one triple a step (`wellcond.optim.orthogonalize.POLAR_EXPRESS`).
        ns_steps: how many.
        ns_dtype: what the steps are computed in.
        eps: least norm to divide by.
        adjust_lr_fn: η' of an A × B matrix as it is stored: η √max(1, A/B) (`"original"`), 0.2 η √max(A, B)
            (`"match_rms_adamw"`), η √(A/B) (`"spectral_unclamped"`).
        sphere: c, to put each matrix or block on the sphere ‖W‖₂ = c √(out/in) after every step, as MuonSphere does
            (2601.08393), so that only the direction of W is trained; None to leave its norm free.
        adamw_lr: learning rate of the rest.
        adamw_betas: decay rates of its moments.
        adamw_eps: added to its denominator.
        adamw_weight_decay: decoupled.
        overrides: `"muon"` or `"adamw"` by shell patterns on parameters' names.
        layers: of `wc.attention_layers(model, batch)`, for attention that no adapter knows.

    >>> import torch, wellcond as wc
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    >>> optimizer = wc.optim.Muon(model, lr=0.02, per_head=True, weight_decay=0.0)
    >>> before = model.self_attn.in_proj_weight.detach().clone()
    >>> model(torch.randn(4, 5, 8)).square().mean().backward()
    >>> optimizer.step()
    >>> step = (before - model.self_attn.in_proj_weight.detach())[:4]                    # the query of head 0
    >>> torch.linalg.svdvals(step / 0.02).round(decimals=0)
    tensor([1., 1., 1., 1.])
    """

    @checked
    def __init__(
        self,
        model: nn.Module,
        lr: NotNegative = 1e-3,
        *,
        per_head: bool | str = False,
        weight_decay: NotNegative = 0.1,
        momentum: Share = 0.95,
        nesterov: bool = True,
        orthogonalize: Orthogonalize = "newton-schulz",
        ns_coefficients: Coefficients | Sequence[Coefficients] = JORDAN,
        ns_steps: Count = 5,
        ns_dtype: torch.dtype = torch.bfloat16,
        eps: Positive = 1e-7,
        adjust_lr_fn: AdjustLearningRate | None = None,
        sphere: Positive | None = None,
        adamw_lr: NotNegative = 3e-4,
        adamw_betas: tuple[Share, Share] = (0.9, 0.95),
        adamw_eps: Positive = 1e-8,
        adamw_weight_decay: NotNegative = 0.0,
        overrides: Mapping[str, Algorithm] | None = None,
        layers: LayerFilter = None,
    ) -> None:
        self.assignment = assign(model, overrides, layers)
        self.blocks = head_blocks(model, layers=layers)
        roles = _cut_roles(per_head)
        matrices, rest = self.assignment.of("muon"), self.assignment.of("adamw")
        self._parts: dict[Tensor, tuple[HeadBlock, ...]] = {
            one.parameter: _chosen(one.name, self.blocks[one.name], roles) for one in matrices
        }
        root = unwrap(model)
        self._transposed = {p.parameter for p in matrices if is_transposed(resolve(root, split_path(p.name)[0]))}
        muon = {
            "algorithm": "muon",
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "orthogonalize": orthogonalize,
            "ns_coefficients": ns_coefficients,
            "ns_steps": ns_steps,
            "ns_dtype": str(ns_dtype).removeprefix("torch."),  # a word, so that a state dictionary is plain
            "eps": eps,
            "adjust_lr_fn": adjust_lr_fn,
            "sphere": sphere,
        }
        other: dict[str, Any] = {"algorithm": "adamw", "lr": adamw_lr, "betas": adamw_betas, "eps": adamw_eps}
        other["weight_decay"] = adamw_weight_decay
        groups: list[dict[str, Any]] = [{"params": [one.parameter for one in matrices]} | muon]
        groups.append({"params": [one.parameter for one in rest]})
        super().__init__([group for group in groups if group["params"]], other)  # which is for groups added later, too

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles keep: torch keeps groups and moments alone, and heads are found at the start."""
        return super().__getstate__() | {
            name: self.__dict__[name] for name in ("assignment", "blocks", "_parts", "_transposed")
        }

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step; a closure is called first, with gradients, and its loss returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            given = [p for p in group["params"] if p.grad is not None]
            if any(p.grad.is_sparse or p.is_complex() for p in given):
                raise OptimizerError("Muon takes dense gradients of real parameters")
            if group["algorithm"] == "muon":
                self._muon(given, group)
            elif given:
                self._adamw(given, group)
        return loss

    def _muon(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        for chunk in _chunks(parameters):
            updates = {p: full(self._momentum(p, group)) for p in chunk}
            for p in chunk:
                p.mul_(1 - group["lr"] * group["weight_decay"])
            sharded: dict[Tensor, Tensor] = {p: torch.zeros_like(updates[p]) for p in chunk if is_dtensor(p)}
            for where, factor in self._orthogonal(updates, group):
                p, block = where
                rate = adjusted_rate(group["lr"], group["adjust_lr_fn"], factor.shape[-2:])
                block.view(sharded.get(p, p.detach())).add_(factor, alpha=-rate)
            for p, change in sharded.items():
                p.add_(like(p, change))  # type: ignore[arg-type]
            if group.get("sphere") is not None:  # states from before it was an option have none
                self._retract(chunk, group["sphere"])

    def _retract(self, parameters: list[Tensor], radius: float) -> None:
        weights = {p: full(p) for p in parameters}
        blocks = {p: [block.view(weights[p]) for block in self._parts[p]] for p in parameters}
        retract_((v.mT if p in self._transposed else v for p, views in blocks.items() for v in views), radius)
        for p, weight in weights.items():
            if is_dtensor(p):
                p.copy_(like(p, weight))

    def _momentum(self, p: Tensor, group: dict[str, Any]) -> Tensor:
        state, grad = self.state[p], p.grad
        assert grad is not None
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(grad)
        buffer = state["momentum_buffer"]
        buffer.lerp_(grad, 1 - group["momentum"])
        return grad.lerp(buffer, group["momentum"]) if group["nesterov"] else buffer

    def _orthogonal(
        self, updates: dict[Tensor, Tensor], group: dict[str, Any]
    ) -> Iterator[tuple[tuple[Tensor, HeadBlock], Tensor]]:
        """Each block with its orthogonal factor; heads of one shape in one product, of whatever layer."""
        alike: dict[tuple[int, ...], list[tuple[Tensor, HeadBlock]]] = {}
        for p, update in updates.items():
            for block in self._parts[p]:
                view = block.view(update)
                if block.layout is None:
                    yield (p, block), _factor(view, group)
                else:
                    alike.setdefault(tuple(view.shape), []).append((p, block))
        for members in alike.values():
            stacked = torch.stack([block.view(updates[p]) for p, block in members])
            yield from zip(members, _factor(stacked, group), strict=True)

    def _adamw(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        for p in parameters:
            if not self.state[p]:
                moments = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
                self.state[p].update({"step": torch.tensor(0.0)} | moments)
        states = [self.state[p] for p in parameters]
        adamw(
            parameters,
            [p.grad for p in parameters if p.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def _factor(updates: Tensor, group: dict[str, Any]) -> Tensor:
    if group["orthogonalize"] == "polar":
        return polar_factor(updates)
    dtype = getattr(torch, group["ns_dtype"])
    return newton_schulz(updates, group["ns_coefficients"], group["ns_steps"], group["eps"], dtype)


def adjusted_rate(lr: float, rule: str | None, shape: Sequence[int]) -> float:
    """The rate of a matrix of this shape, as `torch.optim.Muon` adjusts it.

    >>> adjusted_rate(1.0, None, (16, 4)), adjusted_rate(1.0, "match_rms_adamw", (4, 25))
    (2.0, 1.0)
    """
    rows, columns = shape
    if rule == "match_rms_adamw":
        return lr * 0.2 * math.sqrt(max(rows, columns))
    if rule == "spectral_unclamped":
        return lr * math.sqrt(rows / columns)
    return lr * math.sqrt(max(1, rows / columns))


def _cut_roles(per_head: bool | str) -> str:
    """The first letters of the roles whose heads are cut apart."""
    letters = "qkvo" if per_head is True else per_head or ""
    if not set(letters) <= set("qkvo"):
        raise OptimizerError(f"per_head is True, False or some of the letters q, k, v, o; got {per_head!r}")
    return letters


def _chosen(name: str, blocks: tuple[HeadBlock, ...], roles: str) -> tuple[HeadBlock, ...]:
    """The blocks of a matrix; itself if nothing of it is cut."""
    cut = {block.role for block in blocks if block.role and block.role[0] in roles}
    whole = {block.role for block in blocks if block.role} - cut
    if cut and whole:
        raise OptimizerError(
            f"per_head={roles!r} cuts {' and '.join(sorted(cut))} of '{name}', which also holds "
            f"{' and '.join(sorted(whole))}: name all of its roles, or none"
        )
    return blocks if cut else (HeadBlock(),)


def _chunks(parameters: list[Tensor]) -> Iterator[list[Tensor]]:
    """Parameters in order, a few million numbers at a time: so many are gathered of a sharded model."""
    chunk: list[Tensor] = []
    for p in parameters:
        if chunk and sum(one.numel() for one in chunk) + p.numel() > CHUNK:
            yield chunk
            chunk = []
        chunk.append(p)
    if chunk:
        yield chunk
