"""Parameters as they are stored: resolved late, gathered when sharded, refused when they cannot be trusted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from wellcond._core.deferred_torch import is_dtensor
from wellcond.attention.paths import resolve
from wellcond.errors import WeightError

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

WIDE_DTYPES = (torch.float64, torch.float32)  # precise enough to compute in
HALF_DTYPES = (torch.bfloat16, torch.float16)
FLOAT_DTYPES = (*WIDE_DTYPES, *HALF_DTYPES)
COMPUTED = "_wellcond"  # attribute in which a module keeps the names of weights that are computed at each use


def split_path(path: str) -> tuple[str, str]:
    """Split a parameter path into its module's path and its own name.

    >>> split_path("blocks.0.attn.qkv.weight")
    ('blocks.0.attn.qkv', 'weight')
    """
    owner, _, name = path.rpartition(".")
    return owner, name


@contextmanager
def unmoved(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Look at computed weights without a trace: in training mode spectral norm takes a step at every look."""
    parts = [part for module in modules if isinstance(module, parametrize.ParametrizationList) for part in module]
    before = [(part, part.training) for part in parts]
    try:
        for part in parts:
            part.training = False
        yield
    finally:
        for part, training in before:
            part.training = training


def read_attribute(owner: nn.Module, name: str) -> Any:
    """Return an attribute of a module; if it is computed, without a trace."""
    if not parametrize.is_parametrized(owner, name):
        return getattr(owner, name)
    with unmoved(owner.modules()):
        return getattr(owner, name)


def fetch(root: nn.Module, path: str) -> Tensor:
    """Return the tensor now at a canonical path; refuse one whose numbers do not mean what they seem to."""
    owner_path, name = split_path(path)
    try:
        owner = resolve(root, owner_path)
        tensor = read_attribute(owner, name)
    except (KeyError, AttributeError) as error:
        raise WeightError(f"'{path}' is no longer in the model ({error}); make the views again") from error
    if not isinstance(tensor, Tensor):
        raise WeightError(f"'{path}' is a {type(tensor).__name__}, not a tensor; make the views again")
    if tensor.numel() == 0 and not is_dtensor(tensor):
        raise WeightError(
            f"'{path}' is an empty ZeRO-3 shard: gather it first (deepspeed.zero.GatheredParameters), "
            "or initialise before deepspeed.initialize"
        )
    if tensor.dtype not in FLOAT_DTYPES or tensor.is_quantized or hasattr(tensor, "quant_state"):
        raise WeightError(
            f"'{path}' in {type(owner).__name__} is stored as {tensor.dtype}, shape {tuple(tensor.shape)}: quantised "
            "or integer weights hold codes, not values; work on the model before it is quantised"
        )
    return tensor


def write_refusal(root: nn.Module, path: str) -> str | None:
    """Return why the tensor at a path may not be written, or None."""
    owner_path, name = split_path(path)
    try:
        owner = resolve(root, owner_path)
    except KeyError as error:
        raise WeightError(f"'{path}' is no longer in the model ({error}); make the views again") from error
    if not hasattr(type(owner), name) and getattr(owner, name, None) is None:  # a property computes its value
        raise WeightError(f"'{path}' is no longer in the model; make the views again")
    if (
        name in owner.__dict__.get(COMPUTED, ())
        or parametrize.is_parametrized(owner, name)
        or name not in owner._parameters
    ):
        return (
            f"'{path}' in {type(owner).__name__} is computed from other tensors (a parametrisation, weight norm, "
            "spectral norm, or wc.condition_ with mode='live'), so writing it would be lost; remove the "
            "parametrisation, write, and register it again"
        )
    return unwritable(path, owner._parameters[name])


def unwritable(path: str, tensor: Tensor | None) -> str | None:
    """Return why numbers may not be written into a tensor as it lies in memory, or None.

    >>> unwritable("weight", torch.zeros(1, 3).expand(2, 3))[:55]
    "'weight' of shape (2, 3) has numbers that share memory "
    """
    if tensor is None or is_dtensor(tensor) or tensor.layout is not torch.strided:
        return None
    reach = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.numel() > max(reach, 0):
        return (
            f"'{path}' of shape {tuple(tensor.shape)} has numbers that share memory (it was expanded), so they cannot "
            "be written one by one; replace it by nn.Parameter(weight.detach().clone())"
        )
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        return (
            f"'{path}' was made in inference mode and cannot be written outside it; build the model without "
            "torch.inference_mode(), or work inside it"
        )
    return None


def full(tensor: Tensor) -> Tensor:
    """Return the whole tensor, detached: gathered from all ranks if it is sharded (then every rank must call)."""
    tensor = tensor.detach()
    return tensor.full_tensor() if is_dtensor(tensor) else tensor


def reshard(root: nn.Module) -> None:
    """Let FSDP2 modules that a pass has left gathered have their shards again: what is written to a copy is lost."""
    for module in root.modules():
        if any(cls.__name__ == "FSDPModule" for cls in type(module).__mro__):
            cast("FSDPModule", module).reshard()


@torch.no_grad()
def assign_(target: Tensor, value: Tensor) -> None:
    """Copy a whole tensor into a parameter; each rank keeps its shard, without communication."""
    value = value.to(device=target.device, dtype=target.dtype)
    target.copy_(like(target, value) if is_dtensor(target) else value)


def like(target: DTensor, whole: Tensor) -> DTensor:
    """Shard a whole tensor, which every rank has, as another is sharded; without communication."""
    from torch.distributed.tensor import Replicate

    mesh = target.device_mesh
    replicated = type(target).from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return replicated.redistribute(placements=target.placements)
