"""Every checkpoint of a conditioned model loads with equal outputs or is refused, and a refusal changes nothing."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.func import functional_call
from torch.optim.swa_utils import AveragedModel
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

import wellcond as wc
from wellcond.attention.paths import unwrap
from wellcond.conditioning.storage.live_parameter import live_owners, parameter_of
from wellcond.conditioning.storage.loading import invert_before_load
from wellcond.errors import CheckpointError, WeightError
from wellcond.testing import same_bits

pytestmark = pytest.mark.filterwarnings("ignore:attention starts one-hot", "ignore:Theorem 3.8 promises")
WIDTH, HEADS = 24, 3
SMALL = WIDTH // HEADS


def vit() -> nn.Module:
    return timm.models.vision_transformer.VisionTransformer(
        img_size=16, patch_size=8, embed_dim=WIDTH, depth=2, num_heads=HEADS, num_classes=5, mlp_ratio=1
    )


def gpt2() -> nn.Module:
    sizes = {"vocab_size": 31, "n_positions": 16, "n_embd": WIDTH, "n_layer": 2, "n_head": HEADS}
    return GPT2LMHeadModel(
        GPT2Config(**sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0)
    )


def bert() -> nn.Module:
    sizes = {"vocab_size": 31, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS}
    return BertModel(BertConfig(**sizes, intermediate_size=WIDTH, max_position_embeddings=16))


MODELS: dict[str, Callable[[], nn.Module]] = {"vit": vit, "gpt2": gpt2, "bert": bert}


def build(name: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    return copy.deepcopy(made(name, seed, dtype))


@cache
def made(name: str, seed: int, dtype: torch.dtype) -> nn.Module:
    """A real model whose attention matters: its weights are not small."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MODELS[name]().to(dtype).eval()
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if parameter.ndim == 2 and "norm" not in key:
                    parameter.normal_(0, WIDTH**-0.5)
    return model


def out(model: nn.Module) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    if isinstance(unwrap(model), timm.models.vision_transformer.VisionTransformer):
        images = torch.randn(2, 3, 16, 16, generator=generator, dtype=torch.float64)
        return model(images.to(next(model.parameters()).dtype))
    found = model(torch.randint(31, (2, 7), generator=generator))
    return found.logits if hasattr(found, "logits") else found.last_hidden_state


CONDITIONS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "folded": {"method": "shift", "strength": 4, "mode": "folded"},
    "folded weak": {"method": "shift", "strength": 0.2, "mode": "folded"},
    "live shift": {"method": "shift", "strength": 4, "mode": "live"},
    "live polar": {"method": "polar"},
}
TARGETS = [name for name in CONDITIONS if name != "folded weak"]


def conditioned(name: str, how: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    model = build(name, seed, dtype)
    if CONDITIONS[how] is not None:
        wc.condition_(model, **CONDITIONS[how])
    return model


def handle_of(model: nn.Module) -> wc.Conditioning:
    return model.__dict__["_wellcond_handles"][0]


def heads(state: dict[str, Tensor]) -> Tensor:
    """Every conditioned head of a state dictionary as `(heads, D, d)`; indices written out for the three storages."""
    found = []
    for key, value in state.items():
        if key.endswith("attn.qkv.weight"):
            found += [block.mT for block in value.view(3 * HEADS, SMALL, WIDTH)]
        if key.endswith("attn.c_attn.weight"):
            found += list(value.view(WIDTH, 3 * HEADS, SMALL).transpose(0, 1))
        if key.endswith(("self.query.weight", "self.key.weight", "self.value.weight")):
            found += [block.mT for block in value.view(HEADS, SMALL, WIDTH)]
    return torch.stack(found).double()


def worst(state: dict[str, Tensor]) -> float:
    """The largest κ of a head."""
    sigma = torch.linalg.svdvals(heads(state))
    return float((sigma[:, 0] / sigma[:, -1]).max())


def literal_polar(weight: Tensor) -> Tensor:
    """`W + σ_max P` of each head of `(heads, D, d)`, by SVD."""
    u, s, vt = torch.linalg.svd(weight.double(), full_matrices=False)
    return (u * (s + s[:, :1])[:, None]) @ vt


def raw(model: nn.Module) -> dict[str, Tensor]:
    """What is stored, bit for bit, and what the rules remember."""
    kept = {name: value.detach().clone() for name, value in [*model.named_parameters(), *model.named_buffers()]}
    rules = {f"{path} {k}": v for path, _, _, live in live_owners(model) for k, v in live.rule.state().items()}
    return kept | rules


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(same_bits(a[name], b[name]) for name in a)


def close(a: Tensor, b: Tensor, relative: float = 1e-9) -> bool:
    return bool((a - b).abs().max() <= relative * b.abs().max())


def in_memory(model: nn.Module, folder: Path) -> Callable[[nn.Module], object]:
    return lambda target: target.load_state_dict(model.state_dict())


def torch_file(model: nn.Module, folder: Path) -> Callable[[nn.Module], object]:
    torch.save(model.state_dict(), folder / "w.pt")
    return lambda target: target.load_state_dict(torch.load(folder / "w.pt", weights_only=True))


def safetensors_file(model: nn.Module, folder: Path) -> Callable[[nn.Module], object]:
    # GPT-2's tied embeddings are one memory, which save_file refuses of any model.
    tied = {"lm_head.weight"}
    save_file({k: v.clone() if k in tied else v for k, v in model.state_dict().items()}, folder / "w.safetensors")
    return lambda target: target.load_state_dict(load_file(folder / "w.safetensors"))


def our_file(model: nn.Module, folder: Path) -> Callable[[nn.Module], object]:
    wc.save_weights(model, folder / "w.safetensors")
    return lambda target: wc.load_weights_(target, folder / "w.safetensors")


def pretrained(model: nn.Module, folder: Path) -> Callable[[nn.Module], object]:
    model.save_pretrained(folder)
    return lambda target: wc.load_weights_(target, folder)


FORMATS = {f.__name__: f for f in (in_memory, torch_file, safetensors_file, our_file, pretrained)}
CELLS = [
    (name, how, form)
    for name in MODELS
    for how in CONDITIONS
    for form in FORMATS
    if (name, form) != ("vit", "pretrained")
]


@pytest.mark.parametrize(("name", "how", "form"), CELLS)
def test_matrix(name: str, how: str, form: str, tmp_path: Path) -> None:
    source = conditioned(name, how)
    expected, state = out(source), source.state_dict()
    assert state.keys() == build(name).state_dict().keys()
    load = FORMATS[form](source, tmp_path)
    for to in TARGETS:
        target = conditioned(name, to, seed=1)
        before, answer = raw(target), out(target)
        assert not close(answer, expected, 0.1)
        if to == "live polar" and worst(state) > 2 + 1e-12:
            with pytest.raises(CheckpointError, match="not what a live polar model exports"):
                load(target)
            assert same(raw(target), before), to
            assert torch.equal(out(target), answer), to
        else:
            load(target)
            assert close(out(target), expected), to
            assert all(close(target.state_dict()[key], state[key], 1e-12) for key in state), to
    assert worst(state) < 2 if how in ("folded", "live shift", "live polar") else worst(state) > 2


@pytest.mark.parametrize("how", CONDITIONS)
@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_from_pretrained_sees_an_ordinary_checkpoint(name: str, how: str, tmp_path: Path) -> None:
    source = conditioned(name, how)
    source.save_pretrained(tmp_path)
    plain, info = type(build(name)).from_pretrained(tmp_path, output_loading_info=True, dtype=torch.float64)
    assert not any(info.values()), info
    assert close(out(plain), out(source))
    if name == "gpt2":
        assert plain.lm_head.weight is plain.transformer.wte.weight
    if how.startswith("live"):
        wc.condition_(plain, **CONDITIONS[how], as_original=False)
        assert close(out(plain), out(source))


@pytest.mark.parametrize("to", CONDITIONS)
@pytest.mark.parametrize("name", MODELS)
def test_as_original(name: str, to: str, tmp_path: Path) -> None:
    """The file holds W: every target computes what conditioning W gives."""
    expected = out(conditioned(name, to))
    wc.save_weights(build(name), tmp_path / "w.safetensors")
    for wrap in [lambda m: m, nn.DataParallel]:
        target = conditioned(name, to, seed=1)
        wc.load_weights_(wrap(target), tmp_path / "w.safetensors", as_original=True)
        assert close(out(target), expected, 1e-12)
    if to == "plain":
        return
    for weights in [tmp_path / "w.safetensors", build(name).state_dict()]:
        target = conditioned(name, to, seed=1)
        handle_of(target).load_weights_(weights, as_original=True)
        assert close(out(target), expected, 1e-12)
        handle_of(target).remove_()
        assert same(raw(target), raw(build(name)))  # W, bit for bit
    target = conditioned(name, to, seed=1)
    handle_of(target).load_weights_(conditioned(name, to).state_dict())
    assert close(out(target), expected)


def test_as_original_for_a_part_of_the_model(tmp_path: Path) -> None:
    whole = conditioned("vit", "folded", seed=1)
    wc.save_weights(build("vit").blocks[0], tmp_path / "w.safetensors")
    wc.load_weights_(whole.blocks[0], tmp_path / "w.safetensors", as_original=True)
    expected, other = conditioned("vit", "folded").state_dict(), conditioned("vit", "folded", seed=1).state_dict()
    for key, value in whole.state_dict().items():
        assert torch.equal(value, expected[key] if key.startswith("blocks.0.") else other[key]), key


def test_a_copy_of_a_folded_model_does_not_guess(tmp_path: Path) -> None:
    wc.save_weights(build("vit"), tmp_path / "w.safetensors")
    twin = copy.deepcopy(conditioned("vit", "folded", seed=1))
    before = raw(twin)
    with pytest.raises(CheckpointError, match="copy of a folded one"):
        wc.load_weights_(twin, tmp_path / "w.safetensors", as_original=True)
    assert same(raw(twin), before)
    handle = wc.condition_(twin, **CONDITIONS["folded"], as_original=False)
    handle.load_weights_(tmp_path / "w.safetensors", as_original=True)
    assert close(out(twin), out(conditioned("vit", "folded")))


def test_a_polar_model_that_was_folded_takes_w_too() -> None:
    target = conditioned("vit", "live polar", seed=1)
    handle_of(target).fold_()
    handle_of(target).load_weights_(build("vit").state_dict(), as_original=True)
    assert not list(live_owners(target))
    assert close(out(target), out(conditioned("vit", "live polar")), 1e-12)


# All or nothing, however load_state_dict is reached.


def into(target: nn.Module, how: str) -> tuple[nn.Module, str]:
    """A wrapped model, and the prefix its state dictionary has."""
    if how == "data parallel":
        return nn.DataParallel(target), "module."
    if how == "compiled":
        return torch.compile(target, backend="eager"), "_orig_mod."
    if how == "checkpointed":
        for index, block in enumerate(target.blocks):
            target.blocks[index] = checkpoint_wrapper(block)
    if how == "copied":
        return copy.deepcopy(target), ""
    if how == "pickled":
        file = io.BytesIO()
        torch.save(target, file)
        file.seek(0)
        return torch.load(file, weights_only=False), ""
    return target, ""


WRAPS = ["itself", "data parallel", "compiled", "checkpointed", "copied", "pickled"]


@pytest.mark.parametrize("how", WRAPS)
@pytest.mark.parametrize("assign", [False, True])
def test_load_state_dict_is_all_or_nothing(how: str, assign: bool) -> None:
    target, prefix = into(conditioned("vit", "live polar", seed=1), how)
    before, answer = raw(target), out(unwrap(target))
    good = conditioned("vit", "live polar")
    state = {prefix + key: value.clone() for key, value in good.state_dict().items()}
    bad = dict(state)
    bad[f"{prefix}blocks.1.attn.qkv.weight"] = build("vit").state_dict()["blocks.1.attn.qkv.weight"]  # the last one
    for change in [bad, bad | {f"{prefix}blocks.1.attn.qkv.weight": torch.full((72, 24), torch.nan).double()}]:
        with pytest.raises(CheckpointError, match=r"blocks.1.attn query"):
            target.load_state_dict(change, strict=False, assign=assign)
        assert same(raw(target), before)
        assert torch.equal(out(unwrap(target)), answer)
    assert target.load_state_dict(state, assign=assign) == ([], [])
    assert close(out(unwrap(target)), out(good))
    assert all(p.requires_grad for p in target.parameters())


@pytest.mark.parametrize("part", ["blocks", "blocks.1", "blocks.1.attn", "blocks.1.attn.qkv"])
def test_a_part_of_a_model_is_loaded_all_or_nothing(part: str) -> None:
    target = conditioned("vit", "live polar", seed=1)
    before = raw(target)
    with pytest.raises(CheckpointError):
        target.get_submodule(part).load_state_dict(build("vit").get_submodule(part).state_dict())
    assert same(raw(target), before)
    good = conditioned("vit", "live polar")
    target.get_submodule(part).load_state_dict(good.get_submodule(part).state_dict())
    assert close(target.blocks[1].attn.qkv.weight, good.blocks[1].attn.qkv.weight, 1e-12)


def test_a_root_that_is_live_itself() -> None:
    def attention(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.MultiheadAttention(WIDTH, HEADS, dtype=torch.float64)

    good, target = attention(0), attention(1)
    wc.condition_(good, "polar")
    wc.condition_(target, "polar")
    before = raw(target)
    with pytest.raises(CheckpointError):
        target.load_state_dict(attention(2).state_dict())
    assert same(raw(target), before)
    target.load_state_dict(good.state_dict())
    assert close(target.in_proj_weight, good.in_proj_weight, 1e-12)


@pytest.mark.parametrize("how", ["live shift", "live polar"])
def test_missing_keys_and_wrong_shapes_are_torchs_to_report(how: str) -> None:
    target, key = conditioned("vit", how, seed=1), "blocks.0.attn.qkv.weight"
    state = dict(conditioned("vit", how).state_dict())
    mine = target.state_dict()[key].clone()
    found = target.load_state_dict({k: v for k, v in state.items() if k != key}, strict=False)
    assert found.missing_keys == [key]
    assert torch.equal(target.state_dict()[key], mine)
    assert close(target.blocks[1].attn.qkv.weight, state["blocks.1.attn.qkv.weight"], 1e-12)
    with pytest.raises(RuntimeError, match=r"size mismatch for blocks.0.attn.qkv.weight"):
        target.load_state_dict(state | {key: torch.zeros(2, 3)})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        target.load_state_dict(state | {"other": torch.zeros(2)})


def test_the_hooks_go_with_the_last_rule() -> None:
    def hooked(model: nn.Module) -> int:
        return sum(
            hook.hook is invert_before_load for m in model.modules() for hook in m._load_state_dict_pre_hooks.values()
        )

    model = build("vit")
    first = wc.condition_(model, "polar", layers="blocks.0.*")
    second = wc.condition_(model, "shift", mode="live", layers="blocks.1.*")
    assert hooked(model) == hooked(copy.deepcopy(model)) > 0
    first.remove_()
    assert invert_before_load in [hook.hook for hook in model._load_state_dict_pre_hooks.values()]
    second.fold_()
    assert hooked(model) == 0


def test_a_model_that_loads_itself_keeps_its_bits() -> None:
    for how in ["live shift", "live polar"]:
        model = conditioned("vit", how)
        for assign in [False, True]:
            before, answer = raw(model), out(model)
            model.load_state_dict(model.state_dict(), assign=assign)
            assert same(raw(model), before)
            assert torch.equal(out(model), answer)


@pytest.mark.parametrize("how", ["live shift", "live polar"])
def test_a_compiled_graph_sees_what_was_loaded(how: str) -> None:
    model, other = conditioned("vit", how, seed=1), conditioned("vit", how)
    out(model)
    compiled = torch.compile(model, backend="eager")
    assert close(out(compiled), out(model))
    model.load_state_dict(other.state_dict())
    assert close(out(compiled), out(other))
    handle_of(model).load_weights_(build("vit").state_dict(), as_original=True)
    assert close(out(compiled), out(other))
    for changed in [model, other]:
        handle_of(changed).load_state_dict(handle_of(conditioned("vit", how, seed=1)).state_dict())
    assert close(out(compiled), out(other))


def test_the_effective_weight_is_what_is_loaded_after_it_was_written() -> None:
    model, other = conditioned("vit", "live polar"), conditioned("vit", "live polar", seed=1)
    with torch.no_grad():
        for value in model.state_dict().values():
            value.mul_(0.5)  # an average of models writes here
    state = {key: value.clone() for key, value in model.state_dict().items()}
    other.load_state_dict(state)
    model.load_state_dict(state)
    assert close(out(model), out(other))
    assert all(not live.written for _, _, _, live in live_owners(model))


# Precision.


def test_float32(tmp_path: Path) -> None:
    """A loaded weight is within 16 units in the last place of its largest number, or of λ for a shift.

    Sums of 24 of them in two blocks, with norms between, move the outputs by at most some 16 · 24 · 2 eps = 1e-4.
    """
    for how in ["folded", "live shift", "live polar"]:
        source = conditioned("gpt2", how, dtype=torch.float32)
        our_file(source, tmp_path)
        for to in TARGETS:
            target = conditioned("gpt2", to, seed=1, dtype=torch.float32)
            wc.load_weights_(target, tmp_path / "w.safetensors")
            check_weights(target, source, torch.float32)
            assert close(out(target), out(source), 1e-4), (how, to)


def check_weights(target: nn.Module, source: nn.Module, dtype: torch.dtype) -> None:
    state = source.state_dict()
    for key, value in target.state_dict().items():
        allowed = 16 * torch.finfo(dtype).eps * max(float(state[key].abs().max()), 4.0 * ("attn" in key))
        assert (value.double() - state[key].to(dtype).double()).abs().max() <= allowed, key


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("how", ["live shift", "live polar"])
def test_half_precision(how: str, dtype: torch.dtype, tmp_path: Path) -> None:
    source = conditioned("vit", how, dtype=dtype)
    our_file(source, tmp_path)
    for to in ["plain", how]:
        for load in [our_file(source, tmp_path), in_memory(source, tmp_path)]:
            target = conditioned("vit", to, seed=1, dtype=dtype)
            load(target)
            check_weights(target, source, dtype)
            if to == "plain":
                assert torch.equal(out(target), out(source))
    if how == "live polar":
        stored = heads(dict(source.named_parameters()))
        # The factor is found in float32 and rounded once.
        assert close(heads(source.state_dict()), literal_polar(stored), torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("how", ["live shift", "live polar"])
def test_conversion_after_conditioning(how: str, dtype: torch.dtype) -> None:
    model = conditioned("vit", how, dtype=torch.float32)
    out(model)
    expected = conditioned("vit", how, dtype=torch.float32)
    handle_of(expected).remove_()
    expected = expected.to(dtype)
    wc.condition_(expected, **CONDITIONS[how])
    model.to(dtype)
    assert {value.dtype for value in model.state_dict().values()} == {dtype}
    assert torch.equal(out(model), out(expected))
    with torch.no_grad():
        for value in model.state_dict().values():
            value.mul_(0.5)
    written = {key: value.clone() for key, value in model.state_dict().items()}
    model.to(torch.float64)
    assert same(dict(model.state_dict()), {key: value.double() for key, value in written.items()})


# Weights that are hard to invert.


@pytest.mark.parametrize("every", [1, 3])
def test_rank_deficient_weights(every: int, tmp_path: Path) -> None:
    def deficient(seed: int) -> tuple[nn.Module, wc.Conditioning]:
        model = build("vit", seed)
        if seed == 0:
            with torch.no_grad():
                model.blocks[0].attn.qkv.weight[3] = 0  # a column of the first query head
                model.blocks[0].attn.qkv.weight[SMALL : 2 * SMALL] = 0  # the second query head
                model.blocks[1].attn.qkv.weight[40] = model.blocks[1].attn.qkv.weight[41]  # two equal columns
        return model, wc.condition_(model, "polar", every=every)

    (source, _), (target, other) = deficient(0), deficient(1)
    load = our_file(source, tmp_path)
    plain = build("vit", 1)
    load(plain)
    assert close(out(plain), out(source), 1e-12)
    load(target)
    assert close(out(target), out(source))
    assert not target.blocks[0].attn.qkv.weight[SMALL : 2 * SMALL].any()
    for twin in [copy.deepcopy(target), into(target, "pickled")[0]]:
        assert torch.equal(out(twin), out(target))
    other.fold_()
    other.unfold_()
    assert close(out(target), out(source))
    third, again = deficient(2)
    third.load_state_dict(target.state_dict())
    again.load_state_dict(other.state_dict())
    assert torch.equal(out(third), out(target))
    wc.condition_(plain, "polar", as_original=False)
    assert close(out(plain), out(source))
    # Training goes on, and the factor follows W from the first step.
    optimizer = torch.optim.SGD(target.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        out(target).square().sum().backward()
        optimizer.step()
    stored = parameter_of(target.blocks[1].attn.qkv, "weight").detach()
    expected = literal_polar(stored.view(9, SMALL, WIDTH).mT)
    if every == 1:
        assert close(target.blocks[1].attn.qkv.weight.view(9, SMALL, WIDTH).mT, expected)


def test_a_state_that_is_older_than_its_weight_is_loaded_handle_first() -> None:
    """With `every` > 1 the correction lags, so W + C need not be what any W gives; the handle's state knows."""
    model = build("vit")
    with torch.no_grad():
        model.blocks[0].attn.qkv.weight[3] = 0
    handle = wc.condition_(model, "polar", every=9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        out(model).square().sum().backward()
        optimizer.step()
    assert worst(model.state_dict()) > 2.0001
    target = build("vit", 1)
    other = wc.condition_(target, "polar", every=9)
    with pytest.raises(CheckpointError):
        target.load_state_dict(model.state_dict())
    other.load_state_dict(handle.state_dict())
    target.load_state_dict(model.state_dict())
    assert same(raw(target), raw(model))
    assert torch.equal(out(target), out(model))


def test_meta() -> None:
    with torch.device("meta"):
        empty = MODELS["vit"]()
    for mode in ["shift", "polar"]:
        with pytest.raises(WeightError, match="meta device"):
            wc.condition_(empty, mode)
    for how in ["live shift", "live polar"]:
        source, target = conditioned("vit", how), conditioned("vit", how, seed=1)
        out(target)
        target.to("meta")
        target.load_state_dict(source.state_dict(), assign=True)
        assert close(out(target), out(source))


# Copies, averages and functions of a model.


@pytest.mark.parametrize("how", ["live shift", "live polar"])
@pytest.mark.parametrize("name", MODELS)
def test_copies_keep_their_bits(name: str, how: str) -> None:
    model = conditioned(name, how)
    for ran in [False, True]:
        for kind in ["copied", "pickled"]:
            twin, _ = into(model, kind)
            assert torch.equal(out(twin), out(model)), (ran, kind)
            assert twin.state_dict().keys() == model.state_dict().keys()
            with torch.no_grad():
                for parameter in twin.parameters():
                    parameter.mul_(1.5)
            assert not close(out(twin), out(model))  # the copy has rules of its own
    steps(model, 1)
    assert torch.equal(out(copy.deepcopy(model)), out(model))


def steps(model: nn.Module, count: int, each: Callable[[], object] = lambda: None) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    if "_wellcond_handles" in model.__dict__:
        handle_of(model).attach(optimizer)
    for _ in range(count):
        optimizer.zero_grad()
        out(model).square().mean().backward()
        optimizer.step()
        each()


def literal(model: nn.Module, how: str, stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """The effective weights of a timm ViT for stored ones, written out."""
    found = dict(stored)
    for key, value in stored.items():
        if key.endswith("qkv.weight") and how == "live shift":
            found[key] = value + 4 * torch.eye(SMALL, WIDTH, dtype=value.dtype).repeat(9, 1)
        if key.endswith("qkv.weight") and how == "live polar":
            found[key] = literal_polar(value.view(9, SMALL, WIDTH).mT).mT.reshape(value.shape)
    return found


@pytest.mark.parametrize("how", ["folded", "live shift", "live polar"])
def test_model_ema_averages_effective_weights(how: str) -> None:
    model = conditioned("vit", how)
    ema = timm.utils.ModelEmaV3(model, decay=0.9)
    average = {key: value.clone() for key, value in model.state_dict().items()}

    def update() -> None:
        ema.update(model)
        used = literal(model, how, {key: p.detach() for key, p in model.named_parameters()})
        for key, value in average.items():
            value.mul_(0.9).add_(used[key], alpha=0.1)

    steps(model, 4, update)
    plain = build("vit", 1)
    plain.load_state_dict(average)
    for found in [ema.module, copy.deepcopy(ema.module)]:
        assert all(close(found.state_dict()[key], average[key], 1e-12) for key in average)
        assert close(out(found), out(plain))
    if how != "live polar":
        other = conditioned("vit", how, seed=1)
        other.load_state_dict(ema.module.state_dict())
        assert close(out(other), out(plain))
    ema.set(model)
    assert close(out(ema.module), out(model))


@pytest.mark.parametrize("how", ["folded", "live shift", "live polar"])
def test_averaged_model_averages_stored_weights(how: str) -> None:
    model = conditioned("vit", how)
    swa = AveragedModel(model)
    seen: list[dict[str, Tensor]] = []

    def update() -> None:
        swa.update_parameters(model)
        seen.append({key: p.detach().clone() for key, p in model.named_parameters()})
        out(swa.module)  # what it keeps must not outlive the next update

    steps(model, 4, update)
    average = {key: torch.stack([state[key] for state in seen]).mean(0) for key in seen[0]}
    assert all(close(p, average[key], 1e-12) for key, p in swa.module.named_parameters())
    plain = build("vit", 1)
    plain.load_state_dict(literal(model, how, average))
    assert close(out(swa.module), out(plain))


@pytest.mark.parametrize("how", ["live shift", "live polar"])
def test_functions_of_a_model(how: str) -> None:
    model = conditioned("vit", how)
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(model, parameters, (images,)).square().sum()

    model(images).square().sum().backward()
    parameters = {key: p.detach() for key, p in model.named_parameters()}
    gradients = torch.func.grad(loss)(parameters)
    assert all(close(gradients[key], p.grad) for key, p in model.named_parameters())
    assert close(functional_call(model, dict(model.named_parameters()), (images,)), model(images))
    assert close(functional_call(model, model.state_dict(), (images,)), model(images))
    other = conditioned("vit", how, seed=1)
    theirs = {key: p.detach() for key, p in other.named_parameters()}
    assert close(functional_call(model, theirs, (images,)), other(images))


def test_numbers_that_are_written_without_a_version() -> None:
    for how in ["live shift", "live polar"]:
        model, other = conditioned("vit", how), conditioned("vit", how, seed=1)
        out(model)
        for parameter, wanted in zip(model.parameters(), other.parameters(), strict=True):
            parameter.data = wanted.data.clone()
        assert torch.equal(out(model), out(other))

        class Old(torch.optim.SGD):
            def step(self, closure: None = None) -> None:
                for group in self.param_groups:
                    for parameter in group["params"]:
                        parameter.data.add_(parameter.grad, alpha=-1e-2)

        out(model).square().mean().backward()
        Old(model.parameters(), lr=1.0).step()
        assert torch.equal(out(model), out(copy.deepcopy(model)))


def test_autocast_does_not_reach_what_is_exported() -> None:
    model = conditioned("vit", "live polar", dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out(model)
    assert close(heads(model.state_dict()), literal_polar(heads(dict(model.named_parameters()))), 1e-5)
