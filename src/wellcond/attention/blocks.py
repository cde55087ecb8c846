"""The residual block around an attention layer: its MLP, norms and LayerScale, found by structure."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from wellcond.attention.layouts import contiguous
from wellcond.attention.paths import join, walk
from wellcond.attention.projection import Projection, Slot
from wellcond.attention.view import AttentionLayer, ResidualBlock
from wellcond.errors import WeightError


@dataclass(frozen=True)
class _Parts:
    mlp_in: tuple[Projection, ...] = ()
    mlp_out: tuple[Projection, ...] = ()
    norms: tuple[str, ...] = ()
    layer_scale: tuple[str, ...] = ()


def is_transposed(module: nn.Module) -> bool:
    """Return whether a linear-like module stores `(in, out)`: transformers' Conv1D."""
    return any(cls.__name__ == "Conv1D" for cls in type(module).__mro__)


def is_linear(module: nn.Module) -> bool:
    """Return whether a module is a dense map of the last (or channel) dimension: Linear, Conv1D, 1×1 convolution."""
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        return module.groups == 1 and all(size == 1 for size in module.kernel_size)
    weight = getattr(module, "weight", None)
    return isinstance(module, nn.Linear) or (is_transposed(module) and weight is not None)


def in_out(module: nn.Module) -> tuple[int, int]:
    """`(in, out)` of a linear-like module."""
    weight = module.weight  # a parameter, or what a parametrisation computes
    if isinstance(weight, Tensor) and is_lazy(weight):
        raise WeightError(f"a {type(module).__name__} has no shape yet: run one batch through the model first")
    if not isinstance(weight, Tensor):
        raise WeightError(
            f"a {type(module).__module__}.{type(module).__name__} holds quantised weights: codes, not values"
        )
    if weight.numel() == 0:
        raise WeightError(
            f"the weight of a {type(module).__name__} is an empty ZeRO-3 shard: gather it first "
            "(deepspeed.zero.GatheredParameters), or initialise before deepspeed.initialize"
        )
    if weight.ndim < 2:
        raise WeightError(f"the weight of a {type(module).__name__} is a matrix, got shape {tuple(weight.shape)}")
    rows, columns = weight.shape[:2]
    return (rows, columns) if is_transposed(module) else (columns, rows)


def find_blocks(root: nn.Module, layers: list[AttentionLayer]) -> list[ResidualBlock | None]:
    """Return the block of each layer, None where it has none (a bare attention module).

    A block is the smallest ancestor that holds an MLP next to the layer: at least one matrix that reads the stream
    and one that writes to it. A block holds no other block: attention pooling after a stack is in none.
    """
    modules = dict(walk(root))
    claimed = [layer.name for layer in layers]
    nearest = [_block_of(layer, modules, claimed, root) for layer in layers]
    paths = {f[0] for f in nearest if f}
    found = [f if f and not any(_holds(f[0], other) for other in paths) else None for f in nearest]
    decoders = {_stack_path(f[0]) for layer, f in zip(layers, found, strict=True) if f and layer.cross}
    names: dict[str, list[str]] = {}
    stacks: dict[str, str] = {}
    for item in found:
        if item is None:
            continue
        name = item[0]
        stacks[name] = "" if not decoders else "decoder" if _stack_path(name) in decoders else "encoder"
        members = names.setdefault(stacks[name], [])
        if name not in members:
            members.append(name)
    return [None if f is None else _number(modules[f[0]], *f, stacks[f[0]], names) for f in found]


def _number(module: nn.Module, name: str, parts: _Parts, stack: str, names: dict[str, list[str]]) -> ResidualBlock:
    """A block with its place in its stack; `names` lists the blocks of each stack."""
    depth = len(names[stack])
    other = sum(map(len, names.values())) - depth
    position = norm_position(module, parts.norms)
    index = names[stack].index(name)
    return ResidualBlock(name, index, depth, stack, **vars(parts), other_depth=other, norm_position=position)


def norm_position(block: nn.Module, norms: tuple[str, ...]) -> str:
    """Return `"pre"` or `"post"`: a block normalises before or after its residual sums; `""` if it does not say.

    >>> norm_position(nn.TransformerEncoderLayer(4, 1), ())
    'post'
    """
    first = getattr(block, "norm_first", getattr(block, "do_layer_norm_before", None))
    if isinstance(first, bool):
        return "pre" if first else "post"
    # BERT and its many descendants normalise inside `output`, after the sum; BART and DistilBERT have their own names.
    if any(name.endswith(("output.LayerNorm", "sa_layer_norm")) for name in norms):
        return "post"
    if type(block).__name__ in ("BartEncoderLayer", "BartDecoderLayer"):
        return "post"
    origin, name = type(block).__module__, type(block).__name__
    # timm's blocks are pre-norm but for those that normalise the branch itself, which is neither.
    if origin.startswith("timm.") and "swin_transformer_v2" not in origin and "ResPost" not in name:
        return "pre"
    return ""


def _holds(path: str, other: str) -> bool:
    return other != path and (not path or other.startswith(path + "."))


def _stack_path(block: str) -> str:
    return block.rpartition(".")[0]


def _block_of(
    layer: AttentionLayer, modules: dict[str, nn.Module], claimed: list[str], root: nn.Module
) -> tuple[str, _Parts] | None:
    path, indexed = layer.name, False
    while path:
        path = path.rpartition(".")[0]
        if not path and indexed:  # the whole model is not a block once a numbered part of it was passed
            return None
        parts = _parts(path, modules, claimed, layer.output.shape[1] if layer.output else layer.width, root)
        if parts.mlp_in and parts.mlp_out:
            return path, parts
        # A numbered part counts only if it holds more than this layer: T5 numbers its sub-layers too.
        indexed = indexed or (path.rpartition(".")[2].isdigit() and bool(parts.mlp_in or parts.mlp_out))
    return None


def _parts(path: str, modules: dict[str, nn.Module], claimed: list[str], width: int, root: nn.Module) -> _Parts:
    prefix = path + "." if path else ""
    inputs: list[Projection] = []
    outputs: list[Projection] = []
    norms: list[str] = []
    scales: list[str] = []
    for name, module in modules.items():
        if not name.startswith(prefix) and name != path:
            continue
        if any(name == c or name.startswith(c + ".") for c in claimed):
            continue
        scales += _scales(name, module)
        if _is_norm(module):
            norms.append(name)
        if is_linear(module):
            size_in, size_out = in_out(module)
            # A square matrix reads the stream unless one already does.
            if size_in == width and (size_out != width or not inputs):
                inputs.append(_matrix(name, module, size_out, root, output=False))
            elif size_out == width:
                outputs.append(_matrix(name, module, size_in, root, output=True))
    # The second matrix reads what the first one writes (half of it in a gated MLP); a shortcut's convolution does not.
    hidden = {size for matrix in inputs for size in (matrix.width, matrix.width // 2)}
    outputs = [matrix for matrix in outputs if matrix.width in hidden]
    return _Parts(tuple(inputs), tuple(outputs), tuple(norms), tuple(scales))


def _is_norm(module: nn.Module) -> bool:
    return type(module).__name__.endswith(("Norm", "Norm2d"))


def _scales(name: str, module: nn.Module) -> list[str]:
    return [
        join(name, p)
        for p, value in module._parameters.items()
        if value is not None
        and value.ndim == 1
        and (type(module).__name__.endswith("LayerScale") or (p.startswith("gamma") and not _is_norm(module)))
    ]


def _matrix(name: str, module: nn.Module, width: int, root: nn.Module, *, output: bool) -> Projection:
    """A whole matrix as one head: `(1, in, out)`; for one that writes to the stream `(1, out, in)`, as `output` is."""
    bias = join(name, "bias") if getattr(module, "bias", None) is not None else None
    layout = contiguous(1, width, axis=int(is_transposed(module)) ^ int(output))
    return Projection(Slot(join(name, "weight"), layout), bias, None if output else contiguous(1, width), root)
