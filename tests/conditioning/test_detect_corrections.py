"""Resume in the natural order, load and then condition: C is in the weights once, however they were saved."""

from __future__ import annotations

import copy
import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import GPT2LMHeadModel

import wellcond as wc
from tests.cases import CASES
from tests.training import MODELS, batches, loss, optimizer_of, train
from wellcond.conditioning.detect_corrections import diagonal
from wellcond.errors import CheckpointError, SchemeError, WeightError
from wellcond.testing import same_bits, state

pytestmark = pytest.mark.filterwarnings("ignore:attention starts one-hot", "ignore:Theorem 3.8 promises")
DRAWN = [info.name for info in wc.schemes() if info.name not in ("weight_selection", "calibrated")]  # they need more
SHIFT: dict[str, Any] = {"method": "shift", "strength": 1}


def trained(name: str = "gpt2", dtype: torch.dtype = torch.float32, **how: Any) -> tuple[nn.Module, wc.Conditioning]:
    model = MODELS[name](dtype)
    handle = wc.condition_(model, **(how or SHIFT))
    optimizer = optimizer_of("adamw", model)
    handle.attach(optimizer)
    train(model, optimizer, 20)
    return model.eval(), handle


def measured(model: nn.Module) -> Tensor:
    """The loss on a batch, whose bits say whether anything moved."""
    with torch.no_grad():
        return loss(model.eval(), next(batches(model, next(model.parameters()).dtype, 1)))


def torch_file(model: nn.Module, folder: Path, fresh: nn.Module) -> nn.Module:
    torch.save(model.state_dict(), folder / "w.pt")
    fresh.load_state_dict(torch.load(folder / "w.pt", weights_only=True))
    return fresh


def torch_file_by_us(model: nn.Module, folder: Path, fresh: nn.Module) -> nn.Module:
    torch.save(model.state_dict(), folder / "w.pt")
    wc.load_weights_(fresh, torch.load(folder / "w.pt", weights_only=True))
    return fresh


def our_file(model: nn.Module, folder: Path, fresh: nn.Module) -> nn.Module:
    wc.save_weights(model, folder / "w.safetensors")
    wc.load_weights_(fresh, folder / "w.safetensors")
    return fresh


def pretrained(model: nn.Module, folder: Path, fresh: nn.Module) -> nn.Module:
    model.save_pretrained(folder)
    return GPT2LMHeadModel.from_pretrained(folder)


def copied(model: nn.Module, folder: Path, fresh: nn.Module) -> nn.Module:
    return copy.deepcopy(model)


def pickled(model: nn.Module, folder: Path, fresh: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


KNOWN = [torch_file_by_us, our_file, copied, pickled]
LOOK = [torch_file, pretrained]


@pytest.mark.parametrize(
    ("name", "way"), [(n, w) for n in MODELS for w in KNOWN + LOOK if n == "gpt2" or w is not pretrained]
)
def test_the_natural_order(name: str, way: Callable[..., nn.Module], tmp_path: Path) -> None:
    model, handle = trained(name)
    resumed = way(model, tmp_path, MODELS[name](torch.float32))
    before, weights = measured(resumed), state(resumed)
    assert same_bits(before, measured(model))
    if way in LOOK:
        with pytest.raises(WeightError, match=r"seems to hold W \+ C.*as_original=False.*as_original=True"):
            wc.condition_(resumed, **SHIFT)
        assert same_bits(measured(resumed), before)
        other = wc.condition_(resumed, **SHIFT, as_original=False)
    else:
        with pytest.warns(UserWarning, match=r"hold W \+ C of shift .* already.*nothing was added"):
            other = wc.condition_(resumed, **SHIFT)
    assert same_bits(measured(resumed), before)
    assert all(same_bits(value, weights[key]) for key, value in state(resumed).items())
    with pytest.raises(WeightError, match="conditioned already"):
        wc.condition_(resumed, **SHIFT, as_original=True)
    handle.remove_()
    other.remove_()
    for key, value in state(resumed).items():  # W, to the rounding of W + C
        assert torch.allclose(value, state(model)[key], rtol=0, atol=4 * torch.finfo(torch.float32).eps), key


@pytest.mark.parametrize(
    "how", [{"method": "polar"}, {"method": "sigma_reparam", "gain": 1.0}, {**SHIFT, "mode": "live"}]
)
@pytest.mark.parametrize("way", [our_file, torch_file_by_us])
def test_what_a_live_model_saved(how: dict[str, Any], way: Callable[..., nn.Module], tmp_path: Path) -> None:
    model, _ = trained("vit", torch.float64, **how)
    resumed = way(model, tmp_path, MODELS["vit"](torch.float64))
    expected = measured(resumed)
    with pytest.warns(UserWarning, match="nothing was added"):
        wc.condition_(resumed, **how)
    assert float((measured(resumed) - expected).abs()) < 1e-9
    folded = MODELS["vit"](torch.float64)
    handle = wc.condition_(folded, **how)
    handle.fold_()
    wc.save_weights(folded, tmp_path / "f.safetensors")
    wc.load_weights_(resumed := MODELS["vit"](torch.float64), tmp_path / "f.safetensors")
    with pytest.warns(UserWarning, match="nothing was added"):
        wc.condition_(resumed, **how)
    assert float((measured(resumed) - measured(folded)).abs()) < 1e-9


def test_a_chosen_strength_is_that_of_the_file(tmp_path: Path) -> None:
    model, handle = trained("vit", method="shift")
    resumed = our_file(model, tmp_path, MODELS["vit"](torch.float32))
    wc.init_(other := MODELS["vit"](torch.float32), "xavier", seed=5)
    before = measured(resumed)
    with pytest.warns(UserWarning, match="nothing was added"):
        again = wc.condition_(resumed)
    assert again.strength == handle.strength
    assert same_bits(measured(resumed), before)
    # A handle that chose for other weights takes over the strength of the state, before and after the weights.
    late = wc.condition_(other)
    assert late.strength != handle.strength
    early = wc.condition_(twin := copy.deepcopy(MODELS["vit"](torch.float32)))
    late.load_state_dict(handle.state_dict())
    other.load_state_dict(model.state_dict())
    twin.load_state_dict(model.state_dict())
    early.load_state_dict(handle.state_dict())
    for found, model_of in ((late, other), (early, twin)):
        assert found.strength == handle.strength
        assert same_bits(measured(model_of), before)
        assert all(same_bits(found.state_dict()["entries"][k], v) for k, v in handle.state_dict()["entries"].items())


def test_what_is_asked_for_differs_from_what_is_held(tmp_path: Path) -> None:
    model, _ = trained("vit")
    for how in (
        {"method": "shift", "strength": 2},
        {"method": "shift", "strength": 1, "placement": "layer"},
        {"method": "shift", "strength": 1, "roles": "qk"},
        {"method": "polar"},
    ):
        resumed = our_file(model, tmp_path, MODELS["vit"](torch.float32))
        before = state(resumed)
        with pytest.raises(WeightError, match=r"holds W \+ C already, of shift .*c\.strength_.*as_original=True"):
            wc.condition_(resumed, **how)
        assert all(same_bits(value, before[key]) for key, value in state(resumed).items())
    handle = wc.condition_(resumed, "shift", strength=1, as_original=False)
    handle.strength_(2)
    part = MODELS["vit"](torch.float32)
    wc.condition_(part, **SHIFT, layers="blocks.0.*")
    resumed = our_file(part, tmp_path, MODELS["vit"](torch.float32))
    with pytest.raises(WeightError, match=r"'blocks.0.attn.qkv.weight' holds .* 'blocks.1.attn.qkv.weight' does not"):
        wc.condition_(resumed, **SHIFT)
    with pytest.warns(UserWarning, match="nothing was added"):
        wc.condition_(resumed, **SHIFT, layers="blocks.0.*")
    wc.condition_(resumed, **SHIFT, layers="blocks.1.*")


def test_a_mark_goes_with_the_weights_it_belongs_to(tmp_path: Path) -> None:
    model, _ = trained("vit")
    writes: dict[str, Callable[[nn.Module], object]] = {
        "init_": lambda m: wc.init_(m, "xavier", seed=1),
        "load_state_dict": lambda m: m.load_state_dict(MODELS["vit"](torch.float32).state_dict()),
        "by hand": lambda m: [b.attn.qkv.weight.data.normal_(0, 0.02) for b in m.blocks],
    }
    for name, write in writes.items():
        for resumed in (our_file(model, tmp_path, MODELS["vit"](torch.float32)), copy.deepcopy(model)):
            write(resumed)
            plain = state(resumed)
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message="the weights hold")
                wc.condition_(resumed, **SHIFT).remove_()
            assert all(same_bits(value, plain[key]) for key, value in state(resumed).items()), name
    moved = our_file(model, tmp_path, MODELS["vit"](torch.float32))
    moved.to("cpu").share_memory()
    with pytest.warns(UserWarning, match="nothing was added"):
        wc.condition_(moved, **SHIFT).remove_()
    wc.condition_(moved, **SHIFT)  # W again, so it is added


def test_the_header_of_a_file(tmp_path: Path) -> None:
    model, _ = trained("vit")
    whole = nn.ModuleDict({"encoder": model, "other": MODELS["vit"](torch.float32)})
    wc.save_weights(whole, tmp_path / "w.safetensors")
    with safe_open(tmp_path / "w.safetensors", framework="pt") as file:
        found = json.loads(file.metadata()["wellcond.conditioning"])
    assert found == [
        {
            "method": "shift",
            "strength": {"query": 1.0, "key": 1.0, "value": 1.0},
            "options": {"placement": "head"},
            "weights": ["encoder.blocks.0.attn.qkv.weight", "encoder.blocks.1.attn.qkv.weight"],
        }
    ]
    wc.save_weights(MODELS["vit"](torch.float32), tmp_path / "plain.safetensors")
    with safe_open(tmp_path / "plain.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert model.state_dict().keys() == MODELS["vit"](torch.float32).state_dict().keys()
    from safetensors.torch import save_file

    save_file(model.state_dict(), tmp_path / "bad.safetensors", metadata={"wellcond.conditioning": "[{}]"})
    fresh = MODELS["vit"](torch.float32)
    before = state(fresh)
    with pytest.raises(CheckpointError, match="header"):
        wc.load_weights_(fresh, tmp_path / "bad.safetensors")
    assert all(same_bits(value, before[key]) for key, value in state(fresh).items())


def test_the_state_of_a_handle_shows_what_was_added_twice() -> None:
    """A shift too weak to be seen: the state says that W + C was loaded before the model was conditioned."""
    weak = {"method": "shift", "strength": 1e-3}
    model, handle = trained("vit", **weak)
    resumed = MODELS["vit"](torch.float32)
    resumed.load_state_dict(model.state_dict())
    other = wc.condition_(resumed, **weak)
    assert not same_bits(measured(resumed), measured(model))
    with pytest.warns(UserWarning, match="added once more"):
        other.load_state_dict(handle.state_dict())
    assert all(same_bits(value, state(model)[key]) for key, value in state(resumed).items())
    other.remove_()
    handle.remove_()
    assert all(same_bits(value, state(model)[key]) for key, value in state(resumed).items())


# The look of weights.


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("scheme", DRAWN)
def test_no_initialisation_looks_conditioned(scheme: str) -> None:
    for name in ("timm-vit", "hf-llama"):
        model = CASES[name].model()
        wc.init_(model, scheme, seed=0, on_inapplicable="skip", **({"tokens": 64} if scheme == "critical" else {}))
        for how in (
            {"strength": 1},
            {"strength": 0.05},
            {"strength": 1, "placement": "layer"},
            {"strength": 1, "roles": "v"},
        ):
            before = state(model)
            wc.condition_(model, "shift", **how).remove_()
            assert all(same_bits(value, before[key]) for key, value in state(model).items())


def test_the_power_of_the_look() -> None:
    """Means of n numbers of deviation s are s/√n off: at six of these a shift is seen, at one it is not."""
    generator = torch.Generator().manual_seed(0)
    one = torch.eye(64, 16).expand(4, 64, 16)
    error = 0.02 / 64**0.5
    seen = dict.fromkeys((1.0, 6.0, 12.0), 0)
    for _ in range(200):
        weight = 0.02 * torch.randn(4, 64, 16, generator=generator)
        for factor in seen:
            found = diagonal(weight + factor * error * one, one)
            assert found is not None
            seen[factor] += found.shifted(factor * error)
    assert seen[1.0] == 0
    assert 200 * 0.7 < seen[6.0] < 200  # a normal number is above −1 with a probability of 0.84
    assert seen[12.0] == 200


def test_a_value_alone_proves_nothing() -> None:
    model = CASES["timm-vit"].model()
    wc.init_(model, "conditioned", seed=0)  # whose values are an identity
    wc.condition_(model, "shift", strength=1, roles="v").remove_()
    wc.condition_(model, "shift", strength=1).remove_()
    with pytest.raises(SchemeError, match=r"as_original=False.*strength"):
        wc.condition_(model, "shift", as_original=False)
