"""How a mistaken call of `wc.recommend` is written down: the call, the error that it deserves, and words of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.nn import functional

from tests.advice.models import data, fresh
from wellcond.errors import WellcondError

INF, NAN = float("inf"), float("nan")


@dataclass(frozen=True)
class Bad:
    """A call that is wrong in one thing."""

    name: str
    error: type[WellcondError]
    word: str  # or "one|another"
    model: Callable[[], Any] = lambda: fresh("vit")
    batches: Callable[[], Any] = lambda: pairs()
    options: dict[str, Any] = field(default_factory=lambda: {"loss": functional.cross_entropy})
    using: Callable[[Any], dict[str, Any]] = lambda model: {}  # options that are made of the model


def pairs(count: int = 6) -> list[Any]:
    return data("vit", count, 4)[0]


def one(x: Any = None, y: Any = None) -> Callable[[], list[Any]]:
    """Six batches with another input, or another target."""
    return lambda: [(a if x is None else x, b if y is None else y) for a, b in pairs()]


def later(number: int, wrong: Any) -> Callable[[], list[Any]]:
    """Six batches of which one, counted from one, is wrong."""
    return lambda: [wrong if i == number else batch for i, batch in enumerate(pairs(), 1)]


def batches(name: str, error: type[WellcondError], word: str, made: Callable[[], Any]) -> Bad:
    return Bad(name, error, word, batches=made)


def loss(name: str, error: type[WellcondError], word: str, function: Any) -> Bad:
    return Bad(name, error, word, options={"loss": function})


def optimizer(name: str, error: type[WellcondError], word: str, given: Any, **options: Any) -> Bad:
    return Bad(name, error, word, options={"loss": functional.cross_entropy, "optimizer": given} | options)


def model(name: str, error: type[WellcondError], word: str, made: Callable[[], Any]) -> Bad:
    return Bad(name, error, word, model=made)


def text(name: str, error: type[WellcondError], word: str, change: Callable[[dict[str, Tensor]], Any]) -> Bad:
    made = [change(dict(batch)) for batch in data("gpt2", 6, 2)[0]]
    return Bad(name, error, word, model=lambda: fresh("gpt2"), batches=lambda: made, options={})


def fail(text: str = "a bug\nin two lines") -> Any:
    raise ValueError(text)


def asked(name: str, error: type[WellcondError], word: str, **options: Any) -> Bad:
    return Bad(name, error, word, options={"loss": functional.cross_entropy} | options)
