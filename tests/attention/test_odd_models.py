"""Odd models: each is served, or refused in one line before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

import wellcond as wc
from wellcond.errors import WellcondError
from wellcond.testing import same_bits

TOKENS = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))


def encoder() -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)


def vit() -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(img_size=8, patch_size=4, embed_dim=8, depth=2, num_heads=2, num_classes=3)


def changed(change: Callable[[nn.Module], Any]) -> nn.Module:
    model = encoder()
    change(model)
    return model


def qkv_changed(change: Callable[[nn.Linear], Any]) -> nn.Module:
    model = vit()
    for block in model.blocks:
        change(block.attn.qkv)
    return model


def as_buffer(module: nn.Module, name: str = "weight") -> None:
    value = getattr(module, name).detach().clone()
    delattr(module, name)
    module.register_buffer(name, value)


def expanded(module: nn.Module, name: str = "weight") -> None:
    """Every row is one and the same in memory."""
    setattr(module, name, nn.Parameter(getattr(module, name).detach()[:1].clone().expand_as(getattr(module, name))))


def cyclic() -> nn.Module:
    model = encoder()
    model.linear1.again = model
    return model


def own_child() -> nn.Module:
    model = nn.ModuleList([encoder()])
    model.append(model)
    return model


def nested(levels: int = 900) -> nn.Module:
    model = encoder()
    for _ in range(levels):
        model = nn.Sequential(model)
    return model


class Lazy(nn.Module):
    """Attention whose projections have no shape before the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 2
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.LazyLinear(8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (2, 4)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Bare(nn.Module):
    """Attention inside, but no forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = encoder()


def stored_as(module: nn.Linear, dtype: torch.dtype) -> None:
    module.weight = nn.Parameter(module.weight.detach().to(dtype), requires_grad=False)


def inference() -> nn.Module:
    with torch.inference_mode():
        return encoder()


def empty_attention() -> nn.Module:
    return nn.ModuleList([nn.MultiheadAttention(8, 2), nn.Linear(0, 4), nn.Linear(4, 0)])


ODD: dict[str, Callable[[], nn.Module]] = {
    "weight_norm": partial(qkv_changed, weight_norm),
    "weight_norm, parametrised": partial(qkv_changed, parametrizations.weight_norm),
    "spectral_norm": partial(qkv_changed, spectral_norm),
    "spectral_norm, parametrised": partial(qkv_changed, parametrizations.spectral_norm),
    "orthogonal, parametrised": partial(qkv_changed, parametrizations.orthogonal),
    "a fused weight normed": partial(changed, lambda m: parametrizations.weight_norm(m.self_attn, "in_proj_weight")),
    "an MLP normed": partial(changed, lambda m: parametrizations.spectral_norm(m.linear1)),
    "weights as buffers": partial(qkv_changed, as_buffer),
    "a fused weight as a buffer": partial(changed, lambda m: as_buffer(m.self_attn, "in_proj_weight")),
    "an MLP of buffers": partial(changed, lambda m: as_buffer(m.linear1)),
    "expanded weights": partial(qkv_changed, expanded),
    "an expanded bias": partial(qkv_changed, partial(expanded, name="bias")),
    "an expanded MLP": partial(changed, lambda m: expanded(m.linear1)),
    "cyclic": cyclic,
    "its own child": own_child,
    "nested deeply": nested,
    "a list of layers": lambda: nn.ModuleList([encoder(), encoder()]),
    "a dict of layers": lambda: nn.ModuleDict({"a": encoder()}),
    "no forward": Bare,
    "float8": partial(qkv_changed, partial(stored_as, dtype=torch.float8_e4m3fn)),
    "float8 in the MLP": partial(changed, lambda m: stored_as(m.linear1, torch.float8_e4m3fn)),
    "empty": nn.Module,
    "empty list": nn.ModuleList,
    "empty sequence": nn.Sequential,
    "empty matrices": empty_attention,
    "lazy": Lazy,
    "lazy beside attention": lambda: nn.ModuleList([encoder(), nn.LazyLinear(4)]),
    "complex": lambda: encoder().to(torch.complex64),
    "complex beside attention": lambda: nn.ModuleList([encoder(), nn.Linear(4, 4, dtype=torch.complex64)]),
    "integers": partial(
        qkv_changed, lambda m: setattr(m, "weight", nn.Parameter(m.weight.long(), requires_grad=False))
    ),
    "weight None": partial(qkv_changed, lambda m: m.register_parameter("weight", None)),
    "a vector for a weight": partial(qkv_changed, lambda m: setattr(m, "weight", nn.Parameter(torch.randn(24)))),
    "made in inference mode": inference,
    "on meta": lambda: encoder().to("meta"),
    "half": lambda: encoder().half(),
    "shared layers": lambda: nn.Sequential(*[encoder()] * 3),
    "tied matrices": partial(changed, lambda m: setattr(m.linear2, "weight", nn.Parameter(m.linear1.weight.T))),
    "a tensor subclass": partial(qkv_changed, lambda m: setattr(m, "weight", nn.Parameter(Sub(m.weight.detach())))),
    "frozen, without a gradient": lambda: encoder().requires_grad_(False),
}


class Sub(Tensor):
    """A tensor of a class of one's own."""


def batch_of(model: nn.Module) -> Tensor:
    image = isinstance(model, VisionTransformer)
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)) if image else TOKENS


def _loaded(model: nn.Module, folder: Path) -> None:
    wc.save_weights(model, folder / "w.safetensors")
    wc.load_weights_(model, folder / "w.safetensors")


def _monitored(model: nn.Module, folder: Path) -> None:
    with wc.Monitor(model, batch_of(model), every=1, alarms=False, folder=folder / "run") as monitor:
        monitor.step()


USES: dict[str, Callable[[nn.Module, Path], Any]] = {
    "attention_layers": lambda m, f: str(wc.attention_layers(m)),
    "plan": lambda m, f: str(wc.plan(m, "conditioned")),
    "init_": lambda m, f: str(wc.init_(m, "conditioned")),
    "init_ tfixup": lambda m, f: str(wc.init_(m, "tfixup", on_inapplicable="skip")),
    "init_ xavier": lambda m, f: str(wc.init_(m, "xavier")),
    "audit": lambda m, f: str(wc.audit(m, "conditioned")),
    "diagnose": lambda m, f: str(wc.diagnose(m, batch_of(m))),
    "diagnose, no Jacobian": lambda m, f: str(wc.diagnose(m, batch_of(m), jacobian=False)),
    "diagnose, loss": lambda m, f: wc.diagnose(
        m, batch_of(m), jacobian=False, loss=lambda y: y.float().square().mean()
    ),
    "locate": lambda m, f: str(wc.locate(m, batch_of(m))),
    "check_propagation": lambda m, f: str(wc.check_propagation(m, batch_of(m))),
    "Monitor": _monitored,
    "verify": lambda m, f: [layer.verify(batch_of(m)) for layer in wc.attention_layers(m)],
    "without_layernorm": lambda m, f: wc.without_layernorm(m).undo_(),
    "save_weights": lambda m, f: wc.save_weights(m, f / "w.safetensors"),
    "load_weights_": _loaded,
    "init_to_files": lambda m, f: wc.init_to_files(lambda: m, "conditioned", f / "out"),
}


def tensors(model: nn.Module) -> dict[str, Tensor]:
    found = [*model.named_parameters(), *model.named_buffers()]
    return {name: t.detach() for name, t in found if not is_lazy(t) and not t.is_meta}


def hooks(model: nn.Module) -> list[int]:
    return [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]


def problem(odd: str, use: str, folder: Path) -> str | None:
    """Use an odd model; say what is not as it should be."""
    model = ODD[odd]()
    before = {name: value.clone() for name, value in tensors(model).items()}
    modes, hooked = [module.training for module in model.modules()], hooks(model)
    try:
        USES[use](model, folder)
    except WellcondError as error:
        if "\n" in str(error) or not 15 < len(str(error)) < 900:
            return f"not one line: {error}"
        after = tensors(model)
        if after.keys() != before.keys() or not all(same_bits(after[name], before[name]) for name in before):
            return f"written although refused: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if [module.training for module in model.modules()] != modes:
        return "another mode than before"
    return None if hooks(model) == hooked else "hooks are left"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_model_is_served_or_refused_in_one_line(odd: str, tmp_path: Path) -> None:
    found = {use: said for number, use in enumerate(USES) if (said := problem(odd, use, _folder(tmp_path, number)))}
    assert not found, "\n".join(f"{use}: {said}" for use, said in found.items())


def _folder(parent: Path, number: int) -> Path:
    folder = parent / str(number)
    folder.mkdir()
    return folder
