"""Models that cannot be copied, run or trained, for `wc.recommend`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.advice.bad_calls import NAN, Bad, fail, model
from tests.advice.models import fresh
from wellcond.errors import ArgumentError, BatchError, NotFiniteError, OptimizerError, WeightError, WellcondError


class Around(nn.Module):
    """A ViT and something that is wrong."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.inner = fresh("vit")
        vars(self).update(attributes)

    def forward(self, x: Tensor) -> Any:
        return self.inner(x)


class RaisesInTraining(Around):
    def forward(self, x: Tensor) -> Any:
        return fail("only in training") if self.training else self.inner(x)


class TakesNothing(Around):
    def forward(self) -> Any:  # type: ignore[override]
        return self.inner(torch.zeros(1, 3, 16, 16))


class Exits(Around):
    def forward(self, x):
        sys.exit(3)


class GivesNothing(Around):
    def forward(self, x: Tensor) -> Any:
        return None


class Uncopied(Around):
    def __deepcopy__(self, memo: Any) -> Any:
        return fail("locked\nforever")


class CopiesItself(Around):
    def __deepcopy__(self, memo: Any) -> Any:
        return self


class CopiesNothing(Around):
    def __deepcopy__(self, memo: Any) -> Any:
        return None


def keeping_the_original() -> nn.Module:
    """A forward that a function keeps, with the module that it was made for: copies run the user's weights."""
    made = fresh("vit")
    inner = made.forward_features
    made.forward_features = lambda x, **rest: inner(x, **rest)
    return made


def edited(edit: Callable[[Any], object]) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        found = fresh("vit")
        edit(found)
        return found

    return made


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return Around()


def with_handle() -> nn.Module:
    return Around(handle=(i for i in "ab"))


@torch.no_grad()
def not_a_number(made: Any) -> None:
    made.blocks[1].mlp.fc1.weight[0, 0] = NAN


def frozen(made: Any) -> None:
    made.requires_grad_(False)


MODELS = [
    model("nothing", ArgumentError, "model is", lambda: None),
    model("a name", ArgumentError, "got 'vit'", lambda: "vit"),
    model("a class", ArgumentError, "model is", lambda: Around),
    model("no parameters", WeightError, "Identity has no parameters", nn.Identity),
    model("no attention", WellcondError, "no attention", lambda: nn.Sequential(nn.Flatten(), nn.Linear(768, 5))),
    model("frozen", OptimizerError, "no parameter of the model is trained", edited(frozen)),
    model("on the meta device", WeightError, "is on the meta device", on_meta),
    model("lazy", WeightError, "has no shape yet", lambda: nn.Sequential(fresh("vit"), nn.LazyLinear(5))),
    model("a weight that is no number", NotFiniteError, "'blocks.1.mlp.fc1.weight' holds", edited(not_a_number)),
    model("a copy that raises", WellcondError, "Uncopied cannot be copied (ValueError: locked forever)", Uncopied),
    model("a copy that is itself", WellcondError, "copy.deepcopy of CopiesItself", CopiesItself),
    model("a copy that is nothing", WellcondError, "mend its __deepcopy__", CopiesNothing),
    model("a generator inside", WellcondError, "cannot be copied (TypeError", with_handle),
    model("a copy of the user's weights", WellcondError, "weights of the model itself", keeping_the_original),
    model("raises in training", BatchError, "ValueError: only in training", RaisesInTraining),
    model("takes nothing", BatchError, "TakesNothing cannot be run on Tensor", TakesNothing),
    model("exits", BatchError, "cannot be run on Tensor (4, 3, 16, 16) of float32: SystemExit: 3", Exits),
    model("gives nothing", BatchError, "cross_entropy(output, target) raised", GivesNothing),
    Bad("gives nothing, with its own loss", BatchError, "GivesNothing gives None", GivesNothing, options={}),
]
