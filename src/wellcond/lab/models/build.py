"""Build the model of a recipe: a small one that fits the task, or any by name."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import wellcond as wc
from wellcond.errors import WellcondError
from wellcond.inputs.models import build_fitting
from wellcond.lab.models.bert import CrammedBert
from wellcond.lab.models.detector import mask_rcnn
from wellcond.lab.models.gpt import gpt
from wellcond.lab.models.named import PARAMETERS, check_switches, model_options, task_numbers
from wellcond.lab.models.nystromformer import Nystromformer
from wellcond.lab.models.small import Encoder, small_vit
from wellcond.lab.tasks.base import Batch, Task, logits_of
from wellcond.lab.tasks.metrics import Counts

BUILT_IN: dict[str, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    "vit": (small_vit, ("image",)),
    "encoder": (Encoder, ("sequence",)),
    "nystromformer": (Nystromformer, ("sequence", "pair")),
    "crammed-bert": (CrammedBert, ("masked-text", "sequence")),
    "gpt": (gpt, ("causal-text",)),
    "mask-rcnn": (mask_rcnn, ("detection",)),
}


def lab_model(name: str, options: Mapping[str, Any], task: Task, seed: int) -> nn.Module:
    """Build a fresh model for a task; the global generator does not move.

    Args:
        name: one of `BUILT_IN`, or a name of `wc.build_model`.
        options: of a built-in one: width, depth, heads, …; of another those of its constructor, configuration or
            function, after what the task asks for: classes, channels, size, vocabulary, tokens, which a function of
            the user's own is given under the names that it has parameters for. Built-in ones, and those of timm that
            have them, take `qk_norm = true`, a norm of queries and keys, and `layer_scale = 0.1`, the first value of
            LayerScale. For any, `without_layernorm = true` takes the norms of its blocks away, see
            `wc.without_layernorm`.
        task: what it must fit.
        seed: of its weights.

    >>> from wellcond.lab.tasks import task
    >>> model = lab_model("vit", {"width": 32, "depth": 2, "heads": 2, "patch": 2}, task("digits"), seed=0)
    >>> model(torch.zeros(3, 1, 8, 8)).shape
    torch.Size([3, 10])
    """
    options = dict(options)
    bare = options.pop("without_layernorm", False)
    model = _built(name, options, task, seed)
    if bare:
        wc.without_layernorm(model)
    return model


def _built(name: str, options: Mapping[str, Any], task: Task, seed: int) -> nn.Module:
    reserved = {"seed", "device"} & options.keys()
    if reserved:
        raise WellcondError(f"model '{name}' takes no {reserved.pop()} here: the laboratory gives it one")
    if name not in BUILT_IN:
        model = build_fitting(name, task_numbers(task), seed=seed, **model_options(name, options, task))
        check_switches(model, name, options)
        return model
    build, kinds = BUILT_IN[name]
    if task.kind not in kinds:
        others = [other for other, (_, theirs) in BUILT_IN.items() if task.kind in theirs]
        raise WellcondError(
            f"model '{name}' is for {' or '.join(kinds)} tasks, and '{task.name}' is a {task.kind} task"
            + (f": take {' or '.join(others)}" if others else "")
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return build({**task.shape, "sequences": 2 if task.kind == "pair" else 1}, **options)
        except WellcondError:
            raise
        except Exception as error:  # the library's own constructor
            known = ", ".join(list(inspect.signature(build).parameters)[1:])
            raise WellcondError(
                f"model '{name}' cannot be built with {dict(options)} ({error or type(error).__name__}); it takes "
                f"{known}"
            ) from error


def check_fits(model: nn.Module, task: Task, batch: Batch, name: str = "") -> None:
    """Run two examples through a model; that it does not fit is said with both shapes.

    Nothing in the model changes: a detector, whose statistics move in training and which has no loss elsewhere, is
    copied. With the model's name, a function of the user's own is told how to be given the task's numbers.
    """
    was = model.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            trial = copy.deepcopy(model).train() if task.kind == "detection" else model.eval()
            output = feed(trial, batch)
            task.loss(output, batch)
    except Exception as error:  # the model's own forward
        given = batch.inputs if isinstance(batch.inputs, Mapping) else {"inputs": batch.inputs}
        if isinstance(batch.inputs, tuple):
            given = {f"image {number}": image for number, image in enumerate(batch.inputs)}
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in given.items() if isinstance(value, Tensor))
        raise WellcondError(
            f"the model does not fit the task '{task.name}', which has {dict(task.shape)}: given {shapes} it fails "
            f"with {type(error).__name__}: {error}{_parameters_for(name, task)}"
        ) from error
    finally:
        model.train(was)
    classes = task.shape.get("classes", 1)
    if classes > 1 and task.kind != "detection" and logits_of(output).shape[-1] != classes:
        raise WellcondError(
            f"the model does not fit the task '{task.name}', which has {dict(task.shape)}: it gives "
            f"{logits_of(output).shape[-1]} classes{_parameters_for(name, task)}"
        )
    task.metric_of(Counts())  # a library that the metric needs is missed now, not after hours of training


def _parameters_for(name: str, task: Task) -> str:
    """Say how a function of the user's own is told the task's numbers."""
    if ".py:" not in name:
        return ""
    names = ", ".join(PARAMETERS[key][0] for key in task.shape if key in PARAMETERS)
    return f"; give the function of {name} parameters of these names, and it is told them: {names}"


def feed(model: nn.Module, batch: Batch) -> Any:
    """Return a model's output for a batch: a mapping is passed by name; a detector in training is given its targets."""
    if isinstance(batch.inputs, tuple):
        images = list(batch.inputs)
        return model(images, list(batch.targets)) if model.training else model(images)
    return model(**batch.inputs) if isinstance(batch.inputs, Mapping) else model(batch.inputs)


def output_of(model: nn.Module, task: Task, batch: Batch) -> Any:
    """Return a model's output for a batch of a task, which may have rules of its own."""
    return feed(model, batch) if task.own is None else task.own.output(model, batch)


def inputs_of(model: nn.Module, task: Task, batch: Batch) -> Any:
    """Return what `wc.Monitor` and `wc.diagnose` run a model on: a tensor, a tuple of arguments or a dict of them."""
    return monitor_inputs(batch) if task.own is None else task.own.inputs(model, batch)


def monitor_inputs(batch: Batch) -> Any:
    """Return the inputs of a batch as `wc.Monitor` and `wc.diagnose` take them, for whom a tuple is arguments.

    >>> monitor_inputs(Batch((torch.zeros(3, 8, 8), torch.zeros(3, 8, 9)), ()))[0][1].shape
    torch.Size([3, 8, 9])
    """
    return (list(batch.inputs),) if isinstance(batch.inputs, tuple) else batch.inputs
