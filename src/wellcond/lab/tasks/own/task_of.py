"""Make a task of data, loss and metric of the user's own, or say in one line which of them will not do."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from wellcond._core.safe_text import briefly
from wellcond._core.short_repr import short_repr
from wellcond.errors import DataError, WellcondError
from wellcond.inputs.objective import Objective, function_name
from wellcond.lab.tasks.base import Examples, Task
from wellcond.lab.tasks.metrics import METRICS
from wellcond.lab.tasks.own.examples import OwnExamples, TensorExamples
from wellcond.lab.tasks.own.rules import OwnRules, TextRules, metric_name
from wellcond.lab.tasks.text.blocks import text_task
from wellcond.lab.tasks.text.tokens import BYTES

KEYS = ("train", "test", "loss", "metric", "higher_is_better", "collate", "length")
OF_A_TEXT = 128  # bytes of a sequence, unless it is said
FORMS = "a dataset with a length and examples by number, a pair of tensors (inputs, targets), or a text"
KNOWN = tuple(name for name in METRICS if name != "ap")  # which is of detections
LESS_IS_BETTER = "perplexity"


def task_of(given: Any, name: str) -> Task:
    """Return a task of a dict `{"train": …, "test": …, "loss": …, "metric": …}`.

    Args:
        given: `train` and `test`: a dataset with a length, of pairs `(input, target)` or of dicts by number; a pair of
            tensors; or a text. `loss`: of `(output, target)`, or `(output, batch)` where examples are dicts; none for
            the output's own. `metric`: such a function, which returns a mean over its batch, or one of accuracy,
            perplexity, matthews, f1, pearson; none for the loss. `higher_is_better`: of a metric that is a function.
            `collate`: makes a batch of a list of examples. `length`: bytes of a sequence, of a text.
        name: to call it.

    >>> import torch
    >>> pair = torch.zeros(8, 3), torch.zeros(8, 1)
    >>> found = task_of({"train": pair, "test": pair, "loss": torch.nn.functional.mse_loss}, "my.py:task")
    >>> found.metric, found.higher_is_better, found.description
    ('loss', False, 'my.py:task: 8 examples to train on, 8 to test')
    >>> task_of({"train": pair, "tests": pair}, "my.py:task")
    Traceback (most recent call last):
    wellcond.errors.DataError: my.py:task: there is no 'tests'; did you mean test?
    """
    if not isinstance(given, Mapping):
        raise DataError(f"{name} gives {short_repr(given)}; expected a dict with train and test, or a Task")
    for key in given:
        if key not in KEYS:
            close = difflib.get_close_matches(str(key), KEYS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(KEYS)}"
            raise DataError(f"{name}: there is no {short_repr(key)}; {hint}")
    for key in ("train", "test"):
        if given.get(key) is None:
            raise DataError(f"{name}: {key} is missing: it is {FORMS}")
    texts = [isinstance(given[key], str) for key in ("train", "test")]
    if any(texts):
        return _of_text(given, name, all(texts))
    if given.get("length") is not None:
        raise DataError(f"{name}: length is of a text, and these are examples: leave it out")
    loss, collate = (_function(name, key, given.get(key)) for key in ("loss", "collate"))
    metric = _metric(name, given.get("metric"))
    rules = OwnRules(Objective(loss), metric, _higher(name, metric, given.get("higher_is_better")))
    train, test = (_examples(given[key], collate, f"{name}: {key}") for key in ("train", "test"))
    described = f"{name}: {len(train)} examples to train on, {len(test)} to test"
    return Task(name, "custom", {}, train, test, metric_name(metric), described, own=rules)


def _of_text(given: Mapping[str, Any], name: str, both: bool) -> Task:
    if not both:
        other = "test" if isinstance(given["train"], str) else "train"
        raise DataError(
            f"{name}: one of train and test is a text, {other} is {short_repr(given[other])}: give two texts"
        )
    for key in ("loss", "metric", "higher_is_better", "collate"):
        if given.get(key) is not None:
            raise DataError(f"{name}: a text has its own loss and metric, of the next byte: leave {key} out")
    length = OF_A_TEXT if given.get("length") is None else given["length"]
    train, test = (BYTES.ids(given[key]) for key in ("train", "test"))
    try:
        task = text_task(name, train, test, BYTES, length=length, objective="causal", source=name)
    except WellcondError as error:
        raise DataError(f"{name}: {str(error).removeprefix(f'{name} ')}") from None
    return replace(task, own=TextRules(task))


def _examples(data: Any, collate: Callable[[list[Any]], Any] | None, where: str) -> Examples:
    """Examples by number; what has none is refused with what would."""
    if isinstance(data, (tuple, list)) and len(data) == 2 and all(isinstance(x, (Tensor, np.ndarray)) for x in data):
        pair = _two_tensors(data, where)
        whole = TensorDataset(pair.inputs, pair.targets)
        return pair if collate is None else OwnExamples(whole, len(pair), collate, where)
    refused = {
        (Tensor, np.ndarray): "has no targets: give a pair (inputs, targets)",
        (DataLoader,): "is in batches already: give its dataset, and its collate_fn as collate",
        (Mapping,): "has no examples by number: give a list of dicts, or datasets.Dataset.from_dict(…)",
        (bytes,): "is not a text: decode it",
    }
    why = next((words for kinds, words in refused.items() if isinstance(data, kinds)), "")
    if not why and not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        streamed = isinstance(data, Iterable) and not callable(data)
        why = "can only be read in order: give list(…) of it" if streamed else f"is no data: give {FORMS}"
    if why:
        raise DataError(f"{where} is {short_repr(data)}, which {why}")
    try:
        length = len(data)
    except Exception as error:
        raise DataError(f"{where}: its length raised {briefly(error, 200)}") from error
    if not length:
        raise DataError(f"{where} has no example")
    return OwnExamples(data, length, collate, where)


def _two_tensors(data: Any, where: str) -> TensorExamples:
    try:
        inputs, targets = (x.detach() if isinstance(x, Tensor) else torch.as_tensor(x) for x in data)
    except TypeError as error:
        raise DataError(f"{where} is a pair of arrays that make no tensors: {briefly(error, 120)}") from error
    lengths = [len(x) if x.ndim else 0 for x in (inputs, targets)]
    if lengths[0] != lengths[1]:
        raise DataError(f"{where} has {lengths[0]} inputs and {lengths[1]} targets: give as many of both")
    if not lengths[0]:
        raise DataError(f"{where} has no example")
    return TensorExamples(inputs, targets)


def _function(name: str, key: str, value: Any) -> Any:
    if value is not None and not callable(value):
        of = "a list of examples" if key == "collate" else "(output, target)"
        raise DataError(f"{name}: {key} is a function of {of}, got {short_repr(value)}")
    return value


def _metric(name: str, metric: Any) -> Callable[[Any, Any], Any] | str | None:
    if metric is None or callable(metric) or (isinstance(metric, str) and metric in KNOWN):
        return metric  # type: ignore[no-any-return]
    raise DataError(
        f"{name}: metric is a function of (output, target), or one of {', '.join(KNOWN)}; got {short_repr(metric)}"
    )


def _higher(name: str, metric: Callable[[Any, Any], Any] | str | None, higher: Any) -> bool:
    """Whether more of a metric is better, which of a function only its author knows."""
    if higher is not None and not isinstance(higher, bool):
        raise DataError(f"{name}: higher_is_better is True or False, got {short_repr(higher)}")
    if callable(metric):
        if higher is None:
            raise DataError(
                f"{name}: say whether more of {function_name(metric)} is better: higher_is_better=True or False"
            )
        return higher
    known = metric is not None and metric != LESS_IS_BETTER
    if higher is not None and higher != known:
        what, better = "the loss" if metric is None else metric, "more" if known else "less"
        raise DataError(f"{name}: {better} of {what} is better: leave higher_is_better out")
    return known
