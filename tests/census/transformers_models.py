"""Every model type of the installed transformers, tiny, with a batch that it runs on.

Nothing is downloaded and no remote code runs: configurations come from the classes' own defaults, shrunk.
"""

from __future__ import annotations

import importlib
import inspect
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from tests.census.batch import Batch
from tests.census.overrides import OVERRIDES, Override
from tests.census.redraw import redraw_
from tests.census.shrink import tiny
from tests.census.transformers_inputs import Inputs, candidates, takes, with_placeholders

MOST_PARAMETERS = 40_000_000
MOST_CLASSES = 2  # that are tried for one type
PROFILES = ((16, True), (8, True), (8, False))  # width of a head, and whether keys are grouped
MAPPINGS = (
    "MODEL_MAPPING",
    "MODEL_FOR_PRETRAINING_MAPPING",
    "MODEL_FOR_CAUSAL_LM_MAPPING",
    "MODEL_FOR_BACKBONE_MAPPING",
)


class CannotBuild(Exception):
    """Says why a model type cannot be built, or cannot be run, here."""


def model_types() -> list[str]:
    """Return every model type that the installed transformers knows."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return sorted(CONFIG_MAPPING_NAMES)


def build(model_type: str) -> tuple[nn.Module, Inputs]:
    """Return a tiny model of this type in eval mode and float32, and arguments that it runs on.

    Raises:
        CannotBuild: with the reason of the attempt that came furthest.
    """
    from transformers import CONFIG_MAPPING

    override = OVERRIDES.get(model_type, Override())
    config_class = CONFIG_MAPPING[model_type]
    reasons: list[tuple[int, str]] = []
    for head_dim, grouped in PROFILES:
        for name in classes(model_type, config_class, override):
            try:
                config = tiny(config_class, head_dim=head_dim, grouped=grouped, given=override.config)
                config = getattr(config, override.part) if override.part else config
                if override.adjust:
                    override.adjust(config)
                model = made(name, config)
            except Exception as error:  # whatever a constructor raises is the reason
                reasons.append((0, f"constructor: {type(error).__name__}: {error}"))
                continue
            try:
                outcome = run(model, override)
            except (TypeError, AttributeError) as error:  # a size that this configuration does not name
                outcome = f"nothing is known to feed it: {error}"
            if isinstance(outcome, dict):
                return model, outcome
            reasons.append((1, f"forward: {outcome}"))
    if not reasons:
        raise CannotBuild("a part without a model class of its own")
    furthest = max(reached for reached, _ in reasons)
    raise CannotBuild(next(reason for reached, reason in reasons if reached == furthest))


def classes(model_type: str, config_class: Any, override: Override) -> list[Any]:
    """Return the classes that take this configuration, the barest first."""
    from transformers.models.auto import modeling_auto

    try:
        module = importlib.import_module(config_class.__module__.replace("configuration_", "modeling_"))
    except ModuleNotFoundError as error:
        raise CannotBuild("a part without a model class of its own") from error
    if override.model:
        return [getattr(module, override.model)]
    found: list[Any] = []
    for mapping in MAPPINGS:
        try:
            entry = getattr(modeling_auto, mapping)[config_class]
        except (KeyError, ValueError, AttributeError):
            continue
        found += list(entry) if isinstance(entry, tuple) else [entry]
    for _, cls in inspect.getmembers(module, inspect.isclass):
        if getattr(cls, "config_class", None) is config_class and not cls.__name__.endswith("PreTrainedModel"):
            found.append(cls)
    return list(dict.fromkeys(found))[:MOST_CLASSES]


def made(cls: Any, config: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with torch.device("meta"):
            size = sum(p.numel() for p in cls(config).parameters())
        if size > MOST_PARAMETERS:
            raise CannotBuild(f"{size:,} parameters are too many for a census")
        model: nn.Module = cls(config).eval().float()
    redraw_(model)
    return model


def run(model: nn.Module, override: Override) -> Inputs | str:
    """Return the first batch that the model runs on, or why it runs on none."""
    reasons = []
    given = [override.inputs(Batch(model.config))] if override.inputs else []
    for first in chain(given, candidates(model)):
        inputs: Inputs | None = first
        for _ in range(4):
            if inputs is None:
                break
            try:
                problem = attempt(model, inputs)
            except Exception as error:  # whatever a forward raises is the reason
                problem = f"{type(error).__name__}: {error}"
                last = inputs
                inputs = with_placeholders(model, inputs, str(error))
                if inputs is None and "use_cache" in last and "use_cache" not in takes(model):
                    inputs = {k: v for k, v in last.items() if k != "use_cache"}
                reasons.append(problem)
                continue
            if not problem:
                return inputs
            reasons.append(problem)
            inputs = None
    return reasons[0] if reasons else "nothing is known to feed it"


@torch.no_grad()
def attempt(model: nn.Module, inputs: Inputs) -> str:
    """Run once; return why the result is of no use, or nothing."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        output = model(**{k: v.clone() if isinstance(v, Tensor) else v for k, v in inputs.items()})
    tensors = [t for t in leaves(output) if t.is_floating_point()]
    if not tensors:
        return "no floating-point output"
    return "" if any(bool(torch.isfinite(t).all()) for t in tensors) else "the output is not finite"


def leaves(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    inner = output.values() if isinstance(output, dict) else output if isinstance(output, (list, tuple)) else ()
    return [leaf for one in inner for leaf in leaves(one)]
