"""Weight selection: a small model starts from some of a large one's numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from wellcond.attention.find import attention_layers
from wellcond.attention.layers import AttentionLayers
from wellcond.errors import CheckpointError, SchemeError
from wellcond.init.registry import register_scheme
from wellcond.init.scheme import Scheme
from wellcond.init.teacher import Selection, SelectionMethod, fused_parts, open_teacher, select, walk_parameters

# The classifier, by a whole word: the published rule, "contains head", would also skip torch's `multihead_attn`, and
# miss the names that transformers uses.
CLASSIFIER = re.compile(r"(^|[._])(heads?|classifier|score|qa_outputs)([._]|$)")


@register_scheme(
    "weight_selection",
    citation="Xu et al. 2024 (Initializing Models with Larger Ones), arXiv 2311.18823",
    published="uniform, first layers, every parameter but the head, fused weights as one; ViT-S (IN-21k) to ViT-T",
)
@dataclass(frozen=True)
class WeightSelection(Scheme):
    """Every parameter but the head is a sub-array of the teacher's parameter of the same name.

    Uniform: with teacher size t and student size s on an axis, the indices j·t/s if s divides t, else s points spread
    evenly over 0…t−1 and rounded.

    Args:
        teacher: a model, or the path of a safetensors file or of a directory with an index.
        method: `"uniform"`; `"consecutive"`: the first s; `"random"`: sorted, the same for every axis of equal sizes.
        blockwise: choose inside Q, K and V of a fused weight separately. `False` treats it as one tensor, as published:
            the same for integer ratios, otherwise not.
        depth: `"first"`: layers of the same name; `"uniform"`: spread over the teacher's depth.
    """

    teacher: Any
    method: SelectionMethod = "uniform"
    blockwise: bool = True
    depth: Literal["first", "uniform"] = "first"

    composable = False
    stand_ins: ClassVar = {"teacher": None}

    def parameters(
        self, layers: AttentionLayers, seed: int, wanted: Container[str] | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Select from every teacher parameter that has a namesake."""
        root = layers[0].root
        assert root is not None
        whole = attention_layers(root)
        own: dict[int, tuple[str, Tensor]] = {}
        for path, parameter in walk_parameters(root):
            own.setdefault(id(parameter), (path, parameter))  # a tied one is set once, by its first name
        inside, picked = _region(layers), Selection(self.method, seed)
        parts = fused_parts(whole, self.teacher) if self.blockwise else {}
        with open_teacher(self.teacher) as teacher:
            names = _layer_map(whole, teacher.names) if self.depth == "uniform" else {}
            for path, parameter in own.values():
                if not CLASSIFIER.search(path) and inside(path) and (wanted is None or path in wanted):
                    value = teacher.read(_rename(path, names), path)
                    yield path, select(path, value, tuple(parameter.shape), parts.get(path), picked)


def _region(layers: AttentionLayers) -> Callable[[str], bool]:
    """Which parameters are meant: all, or those of the chosen layers' blocks."""
    if not layers.filtered:
        return lambda path: True
    names = [layer.block.name if layer.block else layer.name for layer in layers]
    return lambda path: any(not name or path.startswith(name + ".") for name in names)


def _layer_map(layers: AttentionLayers, teacher: frozenset[str]) -> dict[str, str]:
    """Student block → teacher block, spread over the teacher's depth, for one numbered stack."""
    names = [block.name for block in layers.blocks]
    prefixes = {name.rpartition(".")[0] for name in names}
    if len(prefixes) != 1:
        raise SchemeError(f"depth='uniform' needs one numbered stack of blocks, found {sorted(prefixes)}")
    prefix = prefixes.pop()
    pattern = re.compile(re.escape(prefix + ".") + r"(\d+)\.")
    depth = 1 + max((int(m.group(1)) for key in teacher if (m := pattern.match(key))), default=-1)
    if depth < len(names):
        raise CheckpointError(f"the teacher has {depth} blocks under '{prefix}', the student {len(names)}")
    chosen = Selection("uniform", seed=0).indices(depth, len(names)).tolist()
    return {name: f"{prefix}.{index}" for name, index in zip(names, chosen, strict=True)}


def _rename(path: str, names: dict[str, str]) -> str:
    for ours, theirs in names.items():
        if path.startswith(ours + "."):
            return theirs + path.removeprefix(ours)
    return path
