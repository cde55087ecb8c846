"""Weight selection against NumPy indexing of the raw tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

import wellcond as wc
from wellcond.testing import same_bits, state


def vit(dim: int, heads: int, depth: int, seed: int = 0, **options: Any) -> nn.Module:
    torch.manual_seed(seed)
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, embed_dim=dim, num_heads=heads, depth=depth, num_classes=5, **options
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def array(model: nn.Module, name: str) -> np.ndarray:
    return model.get_parameter(name).detach().numpy()


def test_integer_ratio_is_every_second_entry_everywhere() -> None:
    teacher, student = vit(48, 4, 3), vit(24, 2, 2, seed=1)
    before = state(student)
    wc.init_(student, "weight_selection", teacher=teacher)
    for name, value in student.named_parameters():
        if "head" in name:
            assert same_bits(value.detach(), before[name])
            continue
        source = array(teacher, name)
        index = [np.arange(s) * (t // s) for t, s in zip(source.shape, value.shape, strict=True)]
        assert np.array_equal(value.detach().numpy(), source[np.ix_(*index)]), name
    assert wc.audit(student, "weight_selection", teacher=teacher).passed


def spread(t: int, s: int) -> np.ndarray:
    return np.round(np.linspace(0, t - 1, s)).astype(int)


def test_blockwise_and_whole_differ_for_other_ratios() -> None:
    teacher = vit(40, 4, 1)
    whole, block = vit(24, 3, 1), vit(24, 3, 1)
    wc.init_(whole, "weight_selection", teacher=teacher, blockwise=False)
    wc.init_(block, "weight_selection", teacher=teacher)
    source = array(teacher, "blocks.0.attn.qkv.weight")
    columns = spread(40, 24)
    assert np.array_equal(array(whole, "blocks.0.attn.qkv.weight"), source[np.ix_(spread(120, 72), columns)])
    rows = np.concatenate([part * 40 + spread(40, 24) for part in range(3)])
    assert np.array_equal(array(block, "blocks.0.attn.qkv.weight"), source[np.ix_(rows, columns)])
    assert np.array_equal(array(block, "blocks.0.attn.qkv.bias"), array(teacher, "blocks.0.attn.qkv.bias")[rows])


def test_consecutive_takes_the_first_of_each_block() -> None:
    teacher, student = vit(40, 4, 1), vit(24, 3, 1)
    wc.init_(student, "weight_selection", teacher=teacher, method="consecutive")
    rows = np.concatenate([part * 40 + np.arange(24) for part in range(3)])
    source = array(teacher, "blocks.0.attn.qkv.weight")
    assert np.array_equal(array(student, "blocks.0.attn.qkv.weight"), source[np.ix_(rows, np.arange(24))])


def test_random_shares_its_indices_and_follows_the_seed() -> None:
    teacher = vit(40, 4, 1)
    students = [vit(24, 3, 1) for _ in range(3)]
    for student, seed in zip(students, (0, 0, 1), strict=True):
        wc.init_(student, "weight_selection", teacher=teacher, method="random", seed=seed)
    first, again, other = (array(s, "norm.weight") for s in students)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    # The residual stream is the same sub-space wherever it appears.
    norm = array(teacher, "norm.weight")
    index = [int(np.flatnonzero(norm == value)[0]) for value in first]
    assert np.array_equal(array(students[0], "cls_token")[0, 0], array(teacher, "cls_token")[0, 0, index])


def test_uniform_depth() -> None:
    teacher, student = vit(24, 2, 5), vit(24, 2, 3)
    wc.init_(student, "weight_selection", teacher=teacher, depth="uniform")
    for ours, theirs in ((0, 0), (1, 2), (2, 4)):
        name = "blocks.{}.mlp.fc1.weight"
        assert np.array_equal(array(student, name.format(ours)), array(teacher, name.format(theirs)))


@pytest.mark.parametrize("block", [0, 1, 2])
def test_uniform_depth_of_some_layers_is_that_of_all(block: int) -> None:
    teacher, whole, part = vit(24, 2, 5), vit(24, 2, 3, seed=1), vit(24, 2, 3, seed=1)
    before = state(part)
    wc.init_(whole, "weight_selection", teacher=teacher, depth="uniform")
    wc.init_(part, "weight_selection", teacher=teacher, depth="uniform", layers=f"blocks.{block}.*")
    for name, value in part.named_parameters():
        inside = name.startswith(f"blocks.{block}.")
        expected = whole.get_parameter(name).detach() if inside else before[name]
        assert same_bits(value.detach(), expected), name


def test_file_equals_model(tmp_path: Path) -> None:
    teacher = vit(40, 4, 2)
    save_file(teacher.state_dict(), tmp_path / "teacher.safetensors")
    from_model, from_file = vit(24, 3, 2), vit(24, 3, 2)
    wc.init_(from_model, "weight_selection", teacher=teacher)
    wc.init_(from_file, "weight_selection", teacher=str(tmp_path / "teacher.safetensors"))
    for (name, a), b in zip(from_model.named_parameters(), from_file.parameters(), strict=True):
        assert same_bits(a.detach(), b.detach()), name


def test_equal_shapes_give_a_copy() -> None:
    teacher, student = vit(24, 3, 2), vit(24, 3, 2, seed=1)
    wc.init_(student, "weight_selection", teacher=teacher)
    assert all(
        same_bits(v.detach(), teacher.get_parameter(n).detach())
        for n, v in student.named_parameters()
        if "head" not in n
    )


def test_interleaved_heads_need_a_model(tmp_path: Path) -> None:
    from transformers import GPTNeoXConfig, GPTNeoXModel

    def neox(width: int, heads: int) -> nn.Module:
        config = GPTNeoXConfig(
            hidden_size=width, num_attention_heads=heads, num_hidden_layers=1, intermediate_size=width, vocab_size=7
        )
        return GPTNeoXModel(config)

    teacher, student = neox(48, 4), neox(24, 2)
    wc.init_(student, "weight_selection", teacher=teacher)
    source = teacher.layers[0].attention.query_key_value.weight.detach().numpy().reshape(4, 3, 12, 48)
    stored = student.layers[0].attention.query_key_value.weight.detach().numpy().reshape(2, 3, 12, 24)
    for part in range(3):  # each of q, k, v: every second of the teacher's rows, in head order
        rows = source[:, part].reshape(48, 48)[::2, ::2]
        assert np.array_equal(stored[:, part].reshape(24, 24), rows)
    save_file({k: v.clone() for k, v in teacher.state_dict().items()}, tmp_path / "t.safetensors")
    with pytest.raises(wc.errors.SchemeError, match="give the teacher as a model"):
        wc.init_(student, "weight_selection", teacher=tmp_path / "t.safetensors")
