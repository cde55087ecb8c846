"""`wc.compare`: the laboratory on a model and data of one's own, in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from wellcond._core.argument_types import Count, Folder, Positive
from wellcond._core.checked import checked
from wellcond.errors import WellcondError
from wellcond.inputs.models import optional_library

if TYPE_CHECKING:
    from wellcond.lab.analysis.statistics import Comparison

Build = Annotated[Callable[..., Any] | str, "a function that builds a model, or the name of one"]


@checked
def compare(
    build_model: Build,
    data: Mapping[str, Any] | str,
    *,
    schemes: Sequence[str | Mapping[str, str]],
    loss: Callable[..., Any] | None = None,
    metric: Callable[..., Any] | str | None = None,
    higher_is_better: bool | None = None,
    steps: Annotated[int, lambda steps: steps >= 0, "a whole number of at least 0"] = 500,
    seeds: Count | Sequence[int] = 3,
    batch: Count = 32,
    optimizer: Literal["adamw", "sgd", "muon", "head-muon"] = "adamw",
    lr: Positive = 1e-3,
    collate: Callable[..., Any] | None = None,
    length: Count | None = None,
    controls: bool = True,
    monitor: bool = True,
    out: Folder | None = None,
    **training: Any,
) -> Comparison:
    """Train one's own model from each of some initialisations on one's own data, and say what differs.

    Every arm sees the same examples in the same order for each seed, and is compared with the model's own weights
    (`default`) and with controls, which have its scale and nothing else of it. See `wellcond compare` for the rest.

    Args:
        build_model: a function without arguments that returns a new model, or a name of `wc.build_model`. The global
            generators are seeded while it runs, and put back.
        data: `{"train": …, "test": …}`, each a dataset with a length (datasets of Hugging Face, too) of pairs
            `(input, target)` or of dicts, a pair of tensors, or a text; or the name of a task that comes along.
        schemes: names of `wc.schemes()`, or compositions by role such as `{"qk": "conditioned", "vo": "mimetic"}`.
        loss: `loss(output, target)`, or `loss(output, batch)` where examples are dicts; by default the output's own.
        metric: such a function, whose mean over the test set is reported, or one of accuracy, perplexity, matthews, f1
            and pearson; by default the loss.
        higher_is_better: of a metric that is a function.
        steps: of the optimizer.
        seeds: how many, or which; three or more are ranked.
        batch: examples of a step.
        optimizer: what trains.
        lr: peak of the learning rate.
        collate: makes a batch of a list of examples.
        length: bytes of a sequence, where the data are texts.
        controls: whether each scheme has controls of its scale.
        monitor: whether attention is measured while it trains, every hundred steps.
        out: a folder that keeps every run and the page; a call that was stopped goes on there.
        training: further settings of the `[train]` table of a recipe, as in `weight_decay=0.1`.

    >>> import torch, wellcond as wc
    >>> def build():
    ...     return torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
    >>> x = torch.randn(40, 5, 8, generator=torch.Generator().manual_seed(0))
    >>> data = {"train": (x[:32], x[:32].flip(1)), "test": (x[32:], x[32:].flip(1))}
    >>> found = wc.compare(build, data, schemes=["mimetic"], loss=torch.nn.functional.mse_loss, steps=2, seeds=1,
    ...                    monitor=False)
    >>> found.metric, [arm.arm for arm in found.arms][:3]
    ('loss', ['default', 'mimetic', 'mimetic, scale only'])
    """
    from wellcond._core.global_generators import restored_generators

    with restored_generators():  # which libraries draw from while they are imported
        lab = optional_library(
            "wellcond.lab.own_comparison", "the laboratory cannot be imported", "'wellcond[lab,timm]'", WellcondError
        )
    own = {"loss": loss, "metric": metric, "higher_is_better": higher_is_better, "collate": collate, "length": length}
    train = {"steps": steps, "batch": batch, "optimizer": optimizer, "lr": lr} | training
    keys: dict[str, Any] = {"seeds": list(range(seeds)) if isinstance(seeds, int) else list(seeds), "train": train}
    keys |= {} if monitor else {"monitor": False}
    found: Comparison = lab.compare_own(build_model, data, own, schemes, keys, controls, out)
    return found
