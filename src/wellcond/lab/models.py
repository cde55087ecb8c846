"""The model of a recipe: small ones built to fit the task, or any by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import wellcond as wc
from wellcond.errors import WellcondError
from wellcond.lab.tasks.base import Batch, Task


def lab_model(name: str, options: Mapping[str, Any], task: Task, seed: int) -> nn.Module:
    """Build a fresh model for a task; the global generator does not move.

    Args:
        name: `vit`, `encoder`, `gpt`, or a name of `wc.build_model`.
        options: of a built-in one: width, depth, heads, …
        task: what it must fit.
        seed: of its weights.

    >>> from wellcond.lab.tasks import task
    >>> model = lab_model("vit", {"width": 32, "depth": 2, "heads": 2, "patch": 2}, task("digits"), seed=0)
    >>> model(torch.zeros(3, 1, 8, 8)).shape
    torch.Size([3, 10])
    """
    if name not in BUILT_IN:
        if options:
            raise WellcondError(f"model '{name}' takes no options here, got {', '.join(options)}")
        return wc.build_model(name, seed=seed)
    build, kinds = BUILT_IN[name]
    if task.kind not in kinds:
        fitting = [other for other, (_, theirs) in BUILT_IN.items() if task.kind in theirs]
        raise WellcondError(
            f"model '{name}' is for {' or '.join(kinds)} tasks, and '{task.name}' is a {task.kind} task"
            + (f": take {' or '.join(fitting)}" if fitting else "")
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return build(task.shape, **options)
        except WellcondError:
            raise
        except Exception as error:  # the library's own constructor
            known = ", ".join(list(inspect.signature(build).parameters)[1:])
            raise WellcondError(
                f"model '{name}' cannot be built with {dict(options)} ({error or type(error).__name__}); it takes "
                f"{known}"
            ) from error


def check_fits(model: nn.Module, task: Task, batch: Batch) -> None:
    """Run two examples through a model; that it does not fit is said with both shapes."""
    was = model.training
    try:
        with torch.no_grad():
            output = feed(model.eval(), batch)
            task.loss(output, batch)
    except Exception as error:  # the model's own forward
        given = batch.inputs if isinstance(batch.inputs, Mapping) else {"inputs": batch.inputs}
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in given.items() if isinstance(value, Tensor))
        raise WellcondError(
            f"the model does not fit the task '{task.name}', which has {dict(task.shape)}: given {shapes} it fails "
            f"with {type(error).__name__}: {error}"
        ) from error
    finally:
        model.train(was)


def feed(model: nn.Module, batch: Batch) -> Any:
    """What a model gives for a batch: a mapping of inputs is passed by name."""
    return model(**batch.inputs) if isinstance(batch.inputs, Mapping) else model(batch.inputs)


def _vit(
    shape: Mapping[str, int], width: int = 64, depth: int = 4, heads: int = 4, patch: int = 2, mlp: float = 4.0,
    drop_path: float = 0.0, dropout: float = 0.0,
) -> nn.Module:  # fmt: skip
    from timm.models.vision_transformer import VisionTransformer

    model: nn.Module = VisionTransformer(
        img_size=shape["size"],
        patch_size=patch,
        in_chans=shape["channels"],
        num_classes=shape["classes"],
        embed_dim=width,
        depth=depth,
        num_heads=heads,
        mlp_ratio=mlp,
        drop_path_rate=drop_path,
        proj_drop_rate=dropout,
    )
    return model


class Encoder(nn.Module):
    """A pre-norm encoder of tokens with learned positions, averaged over what is not padding."""

    def __init__(
        self,
        shape: Mapping[str, int],
        width: int = 64,
        depth: int = 2,
        heads: int = 2,
        mlp: float = 2.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape["vocabulary"], width)
        self.positions = nn.Parameter(0.02 * torch.randn(shape["tokens"], width))
        nn.init.normal_(self.tokens.weight, std=0.02)
        layers = (
            nn.TransformerEncoderLayer(
                width, heads, round(mlp * width), dropout, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.layers = nn.ModuleList(layers)  # nn.TransformerEncoder would begin with equal copies
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, shape["classes"])

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Logits `(B, classes)`."""
        hidden = attention_mask == 0 if attention_mask is not None else None
        x = self.tokens(input_ids) + self.positions[: input_ids.shape[1]]
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=hidden)
        x = self.norm(x)
        seen = torch.ones_like(x[..., :1]) if attention_mask is None else attention_mask[..., None].to(x)
        logits: Tensor = self.head((x * seen).sum(1) / seen.sum(1).clamp_min(1.0))
        return logits


def _gpt(
    shape: Mapping[str, int], width: int = 128, depth: int = 4, heads: int = 4, dropout: float = 0.0
) -> nn.Module:  # fmt: skip
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError as error:
        raise WellcondError(f"the model 'gpt' needs transformers ({error}): pip install 'wellcond[hf]'") from error
    model: nn.Module = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=shape["vocabulary"], n_positions=shape["tokens"], n_embd=width, n_layer=depth, n_head=heads,
            resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, use_cache=False,
        )
    )  # fmt: skip
    return model


BUILT_IN: dict[str, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    "vit": (_vit, ("image",)),
    "encoder": (Encoder, ("sequence",)),
    "gpt": (_gpt, ("causal-text",)),
}
