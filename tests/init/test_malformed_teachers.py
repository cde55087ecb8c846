"""Teachers of weight selection: files and models that cannot be selected from, and those near them that can."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import wellcond as wc
from tests.malformed import (
    INF,
    NAN,
    Bad,
    FusedAttention,
    Provoke,
    audit,
    bert,
    big_vit,
    convnet,
    from_teacher,
    make_vit,
    on_meta,
    refused,
    rows,
    stored_as,
    vit,
)
from wellcond.errors import CheckpointError, WellcondError
from wellcond.testing import same_bits, state


def from_file(make: Callable[[Path], Any], **options: Any) -> Provoke:
    """`make` writes a file into a folder and returns its path."""
    return lambda model, folder: wc.init_(model, "weight_selection", teacher=make(folder), **options)


def changed_teacher(name: str, change: Callable[[Tensor], Tensor | None]) -> Callable[[], dict[str, Tensor]]:
    def weights() -> dict[str, Tensor]:
        tensors = state(big_vit())
        new = change(tensors.pop(name))
        return tensors if new is None else tensors | {name: new}

    return weights


def teacher_file(weights: Callable[[], dict[str, Tensor]]) -> Provoke:
    def make(folder: Path) -> Path:
        save_file(weights(), folder / "teacher.safetensors")
        return folder / "teacher.safetensors"

    return from_file(make)


def raw_file(content: Callable[[], bytes], name: str = "teacher.safetensors") -> Provoke:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content())
        return folder / name

    return from_file(make)


def safetensors_bytes(folder: Path) -> bytes:
    save_file(state(big_vit()), folder / "whole.safetensors")
    return (folder / "whole.safetensors").read_bytes()


def truncated(folder: Path) -> Path:
    content = safetensors_bytes(folder)
    (folder / "cut.safetensors").write_bytes(content[: len(content) // 2])
    return folder / "cut.safetensors"


def poisoned(value: float) -> Callable[[], nn.Module]:
    def teacher() -> nn.Module:
        model = make_vit(embed_dim=48, num_heads=6)
        with torch.no_grad():
            model.blocks[2].mlp.fc2.weight[3, 4] = value
        return model

    return teacher


TEACHERS = [
    *rows(
        CheckpointError,
        ("teacher NaN", vit, from_teacher(poisoned(NAN)), "blocks.2.mlp.fc2.weight"),
        ("teacher infinite", vit, from_teacher(poisoned(INF)), "finite"),
        ("teacher NaN in a file", vit, teacher_file(changed_teacher("pos_embed", lambda t: t * NAN)), "pos_embed"),
        ("teacher smaller", big_vit, from_teacher(vit), "smaller"),
        (
            "teacher smaller in one tensor",
            vit,
            teacher_file(changed_teacher("cls_token", lambda t: t[..., :9])),
            "cls_token",
        ),
        ("teacher with another rank", vit, teacher_file(changed_teacher("norm.bias", lambda t: t[None])), "norm.bias"),
        ("teacher lacks a tensor", vit, teacher_file(changed_teacher("norm.bias", lambda t: None)), "norm.bias"),
        ("teacher is shallower", vit, from_teacher(lambda: make_vit(depth=2)), "blocks.2"),
        ("teacher shallower, spread", vit, from_teacher(lambda: make_vit(depth=2), depth="uniform"), "2 blocks"),
        ("teacher of another family", vit, from_teacher(bert), "same family"),
        (
            "teacher not there",
            vit,
            from_teacher(lambda: "/nowhere/teacher.safetensors"),
            "/nowhere/teacher.safetensors",
        ),
        ("teacher a directory", vit, from_file(lambda folder: folder), "file"),
        ("teacher an empty name", vit, from_teacher(lambda: ""), "file"),
        ("teacher truncated", vit, from_file(truncated), "cut.safetensors"),
        ("teacher empty", vit, raw_file(lambda: b""), "teacher.safetensors"),
        ("teacher eight bytes", vit, raw_file(lambda: b"\0" * 8), "teacher.safetensors"),
        ("teacher text", vit, raw_file(lambda: b"weights, honestly\n" * 40), "teacher.safetensors"),
        ("teacher pickle", vit, raw_file(lambda: pickle.dumps({"a": 1}), "teacher.pt"), "teacher.pt"),
        ("teacher pickle says safetensors", vit, raw_file(lambda: pickle.dumps({"a": 1}), "teacher.pt"), "safetensors"),
        ("teacher without tensors", vit, teacher_file(dict), "cls_token"),
        ("teacher on meta", vit, from_teacher(on_meta(lambda: make_vit(embed_dim=48))), "meta"),
    ),
    *rows(
        WellcondError,
        ("teacher of integers", vit, teacher_file(changed_teacher("norm.bias", lambda t: t.char())), "norm.bias"),
        ("teacher quantised", vit, from_teacher(stored_as(torch.int8)), "blocks.1.attn.qkv.weight"),
        ("teacher float8", vit, from_teacher(stored_as(torch.float8_e4m3fn)), "blocks.1.attn.qkv.weight"),
        ("teacher None", vit, from_teacher(lambda: None), "NoneType"),
        ("teacher a number", vit, from_teacher(lambda: 3), "int"),
        ("teacher a state dict", vit, from_teacher(lambda: state(vit())), "dict"),
        ("teacher a class", vit, from_teacher(lambda: VisionTransformer), "teacher"),
        ("teacher without attention", vit, from_teacher(convnet), "teacher"),
        ("teacher audited, not there", vit, audit("weight_selection", teacher="/nowhere/t.safetensors"), "/nowhere"),
        (
            "teacher grouped, key smaller than the student's",
            lambda: grouped_pair(2),
            from_teacher(lambda: grouped_pair(1)),
            "qkv",
        ),
    ),
]


def grouped_pair(groups: int) -> nn.Module:
    """Fused grouped-query weights of 20 rows either way: 6 + 2·2 heads of 2, or 8 + 2·1 heads of 2."""
    module = FusedAttention(20, 10 - 2 * groups)
    module.num_kv_heads, module.proj = groups, nn.Linear(16, 12)
    return nn.Sequential(module)


def test_weight_selection_keeps_to_the_layers_it_was_given() -> None:
    model = make_vit()
    before = state(model)
    wc.init_(model, "weight_selection", teacher=big_vit(), layers="blocks.0.*")
    changed = {name for name, value in state(model).items() if not same_bits(value, before[name])}
    assert changed
    assert all(name.startswith("blocks.0.") for name in changed), sorted(changed)


def test_weight_selection_takes_cross_attention_for_no_head() -> None:
    student, teacher = (nn.TransformerDecoderLayer(width, 2, 20) for width in (12, 24))
    wc.init_(student, "weight_selection", teacher=teacher)
    assert torch.equal(student.multihead_attn.out_proj.weight, teacher.multihead_attn.out_proj.weight[::2, ::2])


def test_weight_selection_on_meta_gives_a_plan() -> None:
    with torch.device("meta"):
        model = make_vit()
    plan = wc.init_(model, "weight_selection", teacher=big_vit())
    assert not plan.applied
    model.to_empty(device="cpu")
    plan.apply_()
    assert torch.equal(model.norm.weight, big_vit().norm.weight[::2])


TABLE = TEACHERS


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: bad.name)
def test_one_clear_error_and_nothing_changed(bad: Bad, tmp_path: Path) -> None:
    refused(bad, tmp_path)
