"""Cost of a recipe before it is started: parameters, operations, memory, hours; counted without weights."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import wellcond as wc
from wellcond.errors import WellcondError
from wellcond.lab.models import lab_model
from wellcond.lab.models.layers import SelfAttention
from wellcond.lab.recipe.recipe import Recipe
from wellcond.lab.tasks.base import Task
from wellcond.reproduce.detector_cost import run_at_limits

# Dense peak of one device in half and in single precision, from the makers' data sheets; a training reaches some 40 %.
PEAK_SPEEDS = {"A100 80GB": (312e12, 19.5e12), "A6000": (155e12, 38.7e12), "H100": (989e12, 67e12)}
REACHED_PART = 0.4
VIT_TOKENS = 197  # of 224 × 224 pixels
STATE_BYTES = 16  # a parameter: weight, gradient and the two moments of Adam in float32


@dataclass(frozen=True)
class RecipeCost:
    """Cost of one run: one arm with one seed.

    Args:
        parameters: of the model.
        forward: floating-point operations of one example, forwards.
        saved: bytes that one example keeps for the way back, in float32.
        steps: updates.
        batch: examples of an update.
        accumulate: parts that a device takes them in.
        runs: arms × seeds.
        tested: examples of all tests on the way.
        averaged: whether an average of the weights is kept.
    """

    parameters: int
    forward: float
    saved: float
    steps: int
    batch: int
    accumulate: int
    runs: int
    tested: int = 0
    averaged: bool = False

    @property
    def step(self) -> float:
        """Return the operations of an update, 3 × forward × batch: the way back takes twice as many."""
        return 3 * self.forward * self.batch

    def hours(self, speed: float) -> float:
        """Return the hours of all runs, one after the other, tests included, at so many operations a second."""
        return self.runs * (self.steps * self.step + self.tested * self.forward) / speed / 3600

    def gigabytes(self, devices: int, *, sharded: bool, half: bool) -> float:
        """Return the gigabytes of a device: 16 bytes a parameter, 20 with an average, and what examples keep."""
        examples = math.ceil(self.batch / devices / self.accumulate)  # of the device that has the most
        kept = self.saved * examples * (0.5 if half else 1.0)
        state = (STATE_BYTES + 4 * self.averaged) * self.parameters
        return (state / (devices if sharded else 1) + kept) / 1e9


def cost_of(recipe: Recipe, task: Task, runs: int) -> RecipeCost:
    """Count one example through the model at its full size, on the meta device.

    Operations are those of matrix products, convolutions and attention, as torch's own counter has them; bytes are
    those of the tensors that autograd keeps, parameters and buffers apart. Attention by a kernel that does not keep its
    matrix needs fewer bytes; a detector is counted at its limits, see `detector_cost.run_at_limits`.

    >>> from wellcond.lab.recipe.recipe import load_recipe
    >>> from wellcond.lab.tasks import task
    >>> recipe = load_recipe("digits")
    >>> cost = cost_of(recipe, task("digits"), runs=21)
    >>> cost.parameters, cost.steps
    (86506, 300)
    """
    with torch.device("meta"):
        model = lab_model(recipe.model.name, recipe.model.options, task, seed=0)
    try:
        forward, saved = _counted(model, task)
    except Exception as error:  # the model's own forward
        raise WellcondError(
            f"what model '{recipe.model.name}' costs cannot be counted: given one example of the task '{task.name}', "
            f"which has {dict(task.shape)}, it fails with {type(error).__name__}: {error}"
        ) from error
    train = recipe.train
    tested = (-(-train.steps // train.test_every)) * len(task.test)
    trained = sum(parameter.numel() for parameter in model.parameters())  # tied ones count once
    return RecipeCost(
        trained, forward, saved, train.steps, train.batch, train.accumulate, runs, tested, bool(train.ema)
    )


def _counted(model: nn.Module, task: Task) -> tuple[float, float]:
    """Return operations, and bytes kept, of one example in training."""
    own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    held: dict[int, torch.UntypedStorage] = {}  # all of them until the end, so that no other takes its number

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()  # views are kept once
        if storage._cdata not in own:
            held[storage._cdata] = storage
        return tensor

    for module in model.modules():
        if isinstance(module, SelfAttention):
            module.single = False  # autocast, which it would turn off, does not know the meta device
    counter = FlopCounterMode(display=False)
    with counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _run(model.train(), task)
    return float(counter.get_total_flops()), float(sum(storage.nbytes() for storage in held.values()))


def _run(model: nn.Module, task: Task) -> None:
    """Run one fake example of the task's shape, without content, through the model."""
    shape = task.shape
    if task.kind == "detection":
        run_at_limits(model, task)
    elif task.kind == "image":
        model(torch.zeros(1, shape["channels"], shape["size"], shape["size"], device="meta"))
    else:
        many = (1, 2, shape["tokens"]) if task.kind == "pair" else (1, shape["tokens"])
        model(input_ids=torch.zeros(*many, dtype=torch.int64, device="meta"))


def conditioning_cost_tables() -> str:
    """Write Spectral Conditioning's Tables 8 and 9: memory and operations of the query, key and value projections.

    They are those of one block of a ViT-B, by formula and counted here. Theirs adds C to the weight in each pass
    (`live`): operations of a head grow from `6 N D d` to `6 N D d + 3 N d`, by `1 / 2D`. Folded it adds nothing.
    """
    found = []
    for mode in ("live", "folded"):
        model = wc.build_model("timm:vit_base_patch16_224", depth=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that attention starts one-hot is no matter here
            found.append(str(wc.condition_(model, "shift", strength=10.0, mode=mode).cost(tokens=VIT_TOKENS)))
    return "\n\n".join(found)


def this_machine() -> float:
    """Measure the operations a second of this machine, by a product of matrices."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a = torch.ones(1024, 1024, device=device)
    a @ a
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < 0.2:
        a @ a
        if device == "cuda":
            torch.cuda.synchronize()
        count += 1
    return count * 2 * 1024**3 / (time.perf_counter() - begin)
