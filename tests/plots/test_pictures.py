"""Pictures of models on their diagrams: no point is cut off, no label leaves its place or covers anything."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import timm
import torch
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import wellcond as wc

Model = tuple[nn.Module, Any]
TOUCH = 1.0  # pixels that boxes may share: a pixel is not divided


def vit() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=4, num_classes=2)
    return model, torch.randn(2, 3, 32, 32)


def conditioned() -> Model:
    model, images = vit()
    wc.init_(model, "conditioned", seed=0)
    return model, images


def shifted() -> Model:
    model, images = vit()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that attention starts one-hot is what the picture is to show
        wc.condition_(model, "shift", strength=10.0)
    return model, images


def silent() -> Model:
    """Two layers that cannot lie on axes with logarithms: nothing is passed on, or every token gets the same."""
    model, images = vit()
    nn.init.zeros_(model.blocks[0].attn.proj.weight)  # type: ignore[union-attr, index, arg-type]
    nn.init.zeros_(model.blocks[1].attn.qkv.weight)  # type: ignore[union-attr, index, arg-type]
    return model, images


def gpt2() -> Model:
    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 50, "n_positions": 32}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)), {
        "input_ids": torch.randint(50, (2, 16))
    }


def texts(figure: Figure) -> Iterator[tuple[str, Bbox]]:
    """Every text that is to be seen, with its box in pixels."""
    found: list[Any] = [figure._supxlabel]  # type: ignore[attr-defined]
    for axes in figure.axes:
        legend = axes.get_legend()
        found += [*axes.texts, *(legend.get_texts() if legend else [])]
        if axes.axison:
            found += [axes.title, axes.xaxis.label, axes.yaxis.label]
            for axis in (axes.xaxis, axes.yaxis):
                low, high = sorted(axis.get_view_interval())
                found += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return ((text.get_text(), text.get_window_extent()) for text in found if text.get_text().strip())


def points(figure: Figure) -> Iterator[tuple[Any, np.ndarray[Any, Any], float]]:
    """Axes, pixels and radius of every marker."""
    for axes in figure.axes:
        for line in axes.lines:
            if line.get_marker() not in ("None", " ", ""):
                known = np.isfinite(line.get_xydata()).all(1)
                radius = line.get_markersize() / 2 / 72 * figure.dpi
                yield line, axes.transData.transform(line.get_xydata()[known]), radius


def check_picture(figure: Figure) -> None:
    figure.draw_without_rendering()
    written = list(texts(figure))
    assert len(written) > 10
    page = figure.bbox.padded(TOUCH)
    for words, box in written:
        assert page.x0 <= box.x0 <= box.x1 <= page.x1, words
        assert page.y0 <= box.y0 <= box.y1 <= page.y1, words
    for axes in figure.axes:
        frame = axes.get_window_extent().padded(TOUCH)
        for text in axes.texts:
            box = text.get_window_extent()
            assert frame.x0 <= box.x0 <= box.x1 <= frame.x1, text.get_text()
            assert frame.y0 <= box.y0 <= box.y1 <= frame.y1, text.get_text()
    boxes = [(words, box.padded(-TOUCH)) for words, box in written]
    assert [(a, b) for (a, first), (b, second) in combinations(boxes, 2) if first.overlaps(second)] == []
    for line, seen, radius in points(figure):
        frame = line.axes.get_window_extent() if line.get_clip_on() else page
        room = radius - TOUCH if line.get_clip_on() else 0.0
        assert ((seen - room >= frame.min) & (seen + room <= frame.max)).all(), line.axes.get_title()
        covered = [words for words, box in boxes if ((seen > box.min) & (seen < box.max)).all(1).any()]
        assert covered == []


@pytest.mark.parametrize("made", [vit, conditioned, shifted, silent, gpt2])
def test_nothing_of_a_placed_model_is_cut_off_or_covered(made: Callable[[], Model]) -> None:
    place = wc.locate(*made())
    figure = place.plot()
    check_picture(figure)
    plane, upper, lower, key = figure.axes
    drawn = [line for line in plane.lines if len(line.get_xydata()) == 1 and line.get_fillstyle() == "none"]
    assert len(drawn) == len(place.layers) - (2 if made is silent else 0)
    said = " ".join(text.get_text() for text in key.get_legend().get_texts())
    assert ("2 of 4 layers left out" in said) == (made is silent)
    for axes, values in ((upper, "beta_batch"), (lower, "entropy_batch")):
        assert axes.lines[1].get_ydata().tolist() == [getattr(layer, values) for layer in place.layers]


PLANES: dict[str, dict[str, Any]] = {
    "two phases": {"x": ("beta", 0.05, 4), "y": ("value_gain", 0.05, 2)},
    "narrow strips": {"x": ("beta", 0.05, 3.3, "log"), "y": ("residual_attention", 0.1, 2)},
    "curved borders": {"x": ("beta", 0.05, 200, "log"), "y": ("self_bias", 0.1, 20)},
    "without norm": {"x": ("beta", 0.05, 4, "log"), "y": ("mlp_gain", 0.1, 20, "log"), "norm": "none"},
}


@pytest.mark.parametrize(
    "plane", [pytest.param(name, marks=[pytest.mark.long] * (name == "curved borders")) for name in PLANES]
)
def test_every_phase_of_a_diagram_is_named_once(plane: str) -> None:
    dia = wc.trainability(**PLANES[plane], depth=24, tokens=64, resolution=40)
    figure = dia.plot()
    check_picture(figure)
    (axes,) = figure.axes
    named = [text.get_text() for text in axes.texts if not _is_number(text.get_text())]
    legend = axes.get_legend()
    named += [text.get_text() for text in legend.get_texts()] if legend else []
    shares = [float((dia.phase == mask).double().mean()) for mask in set(dia.phase.flatten().tolist())]
    assert len(named) == sum(share >= 0.02 for share in shares)
    assert len({" ".join(words.split()) for words in named}) == len(named)


def _is_number(text: str) -> bool:
    return text.replace(".", "").isdigit()  # on a contour
