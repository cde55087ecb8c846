"""Conditioned embedded tokens: what enters the first attention block has a condition number of at most 2."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from inspect import signature
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from wellcond._core.deferred_torch import not_compiled
from wellcond._core.linalg import svdvals
from wellcond.attention.paths import resolve
from wellcond.attention.roles import QKV
from wellcond.attention.view import AttentionLayer
from wellcond.conditioning.cost import CostRow
from wellcond.conditioning.guarantee import GuaranteeStatus, HeadCondition, head_conditions
from wellcond.conditioning.method import register_method
from wellcond.conditioning.methods.polar import polar_heads
from wellcond.conditioning.storage.base import Added, Effective, ModuleChange
from wellcond.conditioning.storage.rule import computing
from wellcond.errors import InapplicableError, SchemeError

HIDDEN_BELOW = -1e3  # an additive mask below this hides a token


@computing()
def token_correction(tokens: Tensor) -> Tensor:
    """Return `C = σ_max(X) P(X)` with P the polar factor: singular values σ become σ + σ_max. `(B, N, D)` to the same.

    >>> x = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    >>> s = torch.linalg.svdvals(x + token_correction(x))
    >>> bool((s[:, 0] / s[:, -1] <= 2.0001).all())
    True
    """
    wide = tokens.detach().to(torch.promote_types(tokens.dtype, torch.float32))
    with torch.autocast(wide.device.type, enabled=False):
        factor, largest = polar_heads(wide)
        return factor * largest[:, None, None]


@final
class TokenHook:
    """A forward pre-hook that corrects tokens: a class, so that copies and pickles of the model have it too.

    Attributes:
        seen: the tokens of the last batch, `(B, N, D)`, before the correction.
    """

    def __init__(self, layer: AttentionLayer, module: nn.Module) -> None:
        self.name = layer.name
        self.width = layer.output.shape[1] if layer.output else layer.width
        self.batch_first = bool(getattr(layer.module, "batch_first", True))
        self.argument = next(iter(signature(module.forward).parameters))
        self.seen: Tensor | None = None

    @not_compiled  # the polar factor asks its own numbers how to go on
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Correct the first argument, wherever it is passed."""
        given = args[0] if args else kwargs.get(self.argument)
        if not isinstance(given, Tensor) or given.is_nested:
            raise self._refused(f"a {'nested tensor' if isinstance(given, Tensor) else type(given).__name__}")
        tokens = self._sequences(given)
        if kwargs.get("is_causal") or any(_is_causal(mask, tokens.shape[1]) for mask in (*args, *kwargs.values())):
            raise _causal_refusal(self.name, type(module).__name__)
        self.seen = tokens.detach()
        new = given + self._back(token_correction(tokens), given).to(given.dtype)
        # Self-attention called without a block is given the same tokens three times.
        return tuple(new if x is given else x for x in args), {k: new if x is given else x for k, x in kwargs.items()}

    def _sequences(self, x: Tensor) -> Tensor:
        """Return `(B, N, D)` from tokens, or from a grid of them if only one dimension can be D."""
        if x.ndim == 3 and x.shape[2] == self.width:
            return x if self.batch_first else x.transpose(0, 1)
        if x.ndim == 4 and (x.shape[1] == self.width) != (x.shape[3] == self.width):
            return x.flatten(1, 2) if x.shape[3] == self.width else x.flatten(2).mT
        raise self._refused(f"a tensor of shape {tuple(x.shape)}")

    def _back(self, tokens: Tensor, x: Tensor) -> Tensor:
        if x.ndim == 3:
            return tokens if self.batch_first else tokens.transpose(0, 1)
        return (tokens if x.shape[3] == self.width else tokens.mT).reshape(x.shape)

    def _refused(self, got: str) -> InapplicableError:
        return InapplicableError(
            f"'conditioned_tokens' takes tokens (B, N, {self.width}) or a grid with {self.width} channels, first or "
            f"last; '{self.name}' got {got}, where it is not clear which numbers make a token. Call remove_(), or "
            "choose another first layer with layers=… (for a nested tensor: enable_nested_tensor=False)"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Have a copy forget the batch."""
        return self.__dict__ | {"seen": None}


def _causal_refusal(layer: str, cls: str) -> InapplicableError:
    """Return the refusal of a layer that may not look ahead."""
    return InapplicableError(
        f"'conditioned_tokens' does not apply to '{layer}' ({cls}): it attends causally, and the correction of a token "
        "depends on all tokens of the sequence, so the model would see what it is to predict. Use 'shift' or 'polar'"
    )


def _is_causal(mask: Any, tokens: int) -> bool:
    """Return whether an argument is a mask that hides what comes later and not all else, in either sense of True."""
    square = isinstance(mask, Tensor) and not mask.is_nested and mask.shape[-2:] == (tokens, tokens)
    if not square or tokens < 2:
        return False
    marked = mask if mask.dtype == torch.bool else mask < HIDDEN_BELOW
    ones = torch.ones(tokens, tokens, dtype=torch.bool, device=mask.device)
    later, earlier = marked[..., ones.triu(1)], marked[..., ones.tril(-1)]
    hides = bool(later.all()) and not bool(earlier.all())
    return hides or (mask.dtype == torch.bool and not bool(later.any()) and bool(earlier.any()))


@register_method
@final
class ConditionedTokens(ModuleChange):
    r"""A correction of the tokens X that enter the first attention block, without a gradient of its own.

    Saratchandran & Lucey, Enhancing Transformers through Conditioned Embedded Tokens (2025), with the C of Theorem 3.5
    of Spectral Conditioning: $\kappa(X + C) = 2\sigma_{max} / (\sigma_{min} + \sigma_{max}) \le 2$ for each sample's
    N × D matrix. Padding counts as tokens.

    >>> import torch, wellcond as wc
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> c = wc.condition_(model, "conditioned_tokens")
    >>> _ = model(torch.randn(3, 6, 8))
    >>> [sample.effective <= 2.0001 for sample in c.summary().heads]
    [True, True, True]
    """

    name = "conditioned_tokens"
    citation = "Saratchandran & Lucey, Enhancing Transformers through Conditioned Embedded Tokens, 2025"

    def check_options(self) -> None:
        """Raise for some roles, which the method does not have."""
        if set(self.strength) != set(QKV):
            raise SchemeError("'conditioned_tokens' acts on the tokens that all roles read, so it has no roles")
        self.strength = {}
        self._hook: TokenHook | None = None
        self._handle: RemovableHandle | None = None

    def claims(self, active: bool = False) -> Mapping[Hashable, Hashable]:
        """Return the tokens that enter the first block."""
        return {(id(self._module()), "tokens"): True} if self.layers else {}

    def check(self) -> None:
        """Raise unless the first layer may look at every token, and is not conditioned yet."""
        if not self.layers:
            return
        layer, module = self.layers[0], self._module()
        parts = list(layer.module.modules())
        if any(getattr(part, name, False) is True for part in parts for name in ("is_causal", "is_decoder")):
            raise _causal_refusal(layer.name, type(layer.module).__name__)
        if any(isinstance(hook, TokenHook) for hook in module._forward_pre_hooks.values()):
            raise InapplicableError(f"the tokens of '{layer.name}' are conditioned already; remove_() that one first")

    def _module(self) -> nn.Module:
        """Return the first layer's block, or what calls it where that is a list (T5); without one, the layer itself."""
        layer = self.layers[0]
        path = layer.block.name if layer.block else layer.name
        while path and type(resolve(layer.root or self.model, path)).forward is nn.Module.forward:
            path = path.rpartition(".")[0]
        return resolve(layer.root or self.model, path)

    def enter_(self, effective: Effective | None = None) -> None:
        """Hook the first block."""
        if self.layers:
            module = self._module()
            self._hook = TokenHook(self.layers[0], module)
            self._handle = module.register_forward_pre_hook(self._hook, with_kwargs=True)

    def leave_(self) -> None:
        """Take the hook off."""
        if self._handle is not None:
            self._handle.remove()

    def added(self) -> Added:
        """Return nothing: no parameter is new."""
        return []

    def heads(self) -> list[HeadCondition]:
        """Return κ(X) and κ(X + C) of each sample of the last batch."""
        if self._hook is None or self._hook.seen is None:
            name = self.layers[0].name if self.layers else ""
            return [HeadCondition(name, "tokens", 0, math.nan, math.nan, math.nan, 2.0, GuaranteeStatus.NO_BATCH)]
        seen = self._hook.seen
        corrected = seen + token_correction(seen).to(seen.dtype)
        return head_conditions(self._hook.name, "tokens", svdvals(seen), corrected, [2.0] * len(seen))

    def cost(self, tokens: int) -> list[CostRow]:
        """Count, with m = min(N, D) and n = max(N, D), `6 m² n` for Gram matrix and factor, `100 m³` for its root."""
        width = self._hook.width if self._hook else 0
        small, large = sorted((tokens, width))
        flops = 6 * small**2 * large + 100 * small**3
        measured: float | None = None
        if self._hook is not None and self._hook.seen is not None:
            from torch.utils.flop_counter import FlopCounterMode  # brings triton

            with FlopCounterMode(display=False) as counter:
                token_correction(self._hook.seen)
            measured = counter.get_total_flops() / len(self._hook.seen)
        return [
            ("FLOPs per sample, at most (measured: last batch)", 0, flops, measured),
            ("parameters", 0, 0, 0),
            ("activations, entries", tokens * width, 2 * tokens * width, None),
        ]
