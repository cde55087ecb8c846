"""The tables of a recipe: arms, training, augmentation, monitor, tuning, stages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from wellcond.lab.recipe.controls import Control

OFF = BeforeValidator(lambda value: None if value is False else value)  # of a table that `false` leaves out
SCALE_ALONE = BeforeValidator(lambda value: {True: ("scale",), False: ()}[value] if isinstance(value, bool) else value)

# Settings of training that arms may differ in: they see the same data in the same order all the same.
OF_THE_OPTIMIZER = (
    "optimizer", "sphere", "weight_decay", "undecayed", "betas", "eps", "clip", "warmup", "first_lr", "final_lr",
)  # fmt: skip


class RecipeTable(BaseModel):
    """A table of the recipe; a key that it does not have is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Named(BaseModel):
    """A task or a model: its name, and its own options beside it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @property
    def options(self) -> dict[str, Any]:
        """Return all keys but the name."""
        return dict(self.model_extra or {})


class Targets(RecipeTable):
    """Targets of a calibration, the same for all heads and layers."""

    beta: float = Field(gt=0, allow_inf_nan=False)
    branch: float = Field(gt=0, allow_inf_nan=False)


class ArmSettings(RecipeTable):
    """Settings of an arm: how weights begin, how they are conditioned, and at what learning rate.

    Args:
        init: a scheme of `wc.init_`, or a composition by roles; none leaves the model as its library makes it.
        options: of that scheme.
        calibrate: sharpness and gains of what it begins with are set on a batch, as `wc.calibrate_` does by default;
            or to the targets of a table, as in `{ beta = 0.2, branch = 0.1 }`.
        coordinates: r of W_Q r, W_K ÷ r, W_V r and W_O ÷ r, which leave the function as it is.
        balance: coordinates of each head are balanced before training, as `wc.balance_` does.
        condition: a method of `wc.condition_`.
        strength: of the method; several make as many arms.
        control: controls to add, each an arm of its own: `scale`, Gaussian weights of the same scale; `rotation`, the
            products' singular values with other singular vectors; `sign`, the products' sign changed;
            `calibrated`, the default weights at the arm's sharpness and branch gain. `true` is scale.
        bands: arguments of `wc.control_`, which then keeps the arm's attention within them while it trains.
        penalty: on heads whose W_Q and W_K are far from semi-orthogonal, as `wc.optim.OrthogonalityPenalty` has it,
            times this number, in the loss.
        lr: in place of the recipe's.
        train: settings of the optimizer in place of the recipe's, as in `clip`; what is seen, and when, stays.
        model: options of the model beside the recipe's, as in `qk_norm`.
    """

    init: str | dict[str, str] | None = None
    options: dict[str, Any] = {}
    calibrate: bool | Targets = False
    coordinates: float = Field(1.0, gt=0, allow_inf_nan=False)
    balance: bool = False
    condition: str | None = None
    strength: float | tuple[float, ...] | None = None
    control: Annotated[tuple[Control, ...], SCALE_ALONE] = ()
    bands: dict[str, Any] | None = None
    penalty: float = Field(0.0, ge=0)
    lr: float | None = Field(None, gt=0)
    train: dict[str, Any] = {}
    model: dict[str, Any] = {}

    @model_validator(mode="after")
    def _controlled(self) -> ArmSettings:
        if self.control and self.init is None:
            raise ValueError("control needs init: it keeps part of what an initialisation does")
        if self.control and self.calibrate:
            raise ValueError("control is of a scheme as it draws: leave out calibrate, or make it an arm of its own")
        if len(set(self.control)) < len(self.control):
            raise ValueError(f"control has each kind once, got {list(self.control)}")
        if self.strength is not None and self.condition is None:
            raise ValueError("strength needs condition")
        foreign = [key for key in self.train if key not in OF_THE_OPTIMIZER]
        if foreign:
            raise ValueError(
                f"train.{foreign[0]} is the same for all arms; of an arm are {', '.join(OF_THE_OPTIMIZER)}"
            )
        return self


class Training(RecipeTable):
    """Settings of the training loop: optimizer, schedule, and how often to look.

    Args:
        steps: updates of the weights; 0 only tests.
        epochs: in place of steps.
        batch: examples of an update, over all processes.
        lr: its peak.
        schedule: after the warm-up; `steps` divides by ten at each of the milestones.
        milestones: parts of the training, from 0 to 1.
        warmup: part of the training.
        first_lr: where the warm-up begins.
        final_lr: where a falling schedule ends.
        optimizer: SGD has the first of the betas for its momentum. `muon` and `head-muon` train matrices by
            `wc.optim.Muon`, whole or a head at a time, with a rate that matches AdamW's, and the rest by AdamW.
        sphere: radius c of `muon` and `head-muon`, whose weights then keep ‖W‖₂ = c √(out/in).
        undecayed: parts of the names of parameters that do not decay, besides biases and gains.
        momentum_cycle: the first beta falls from the second of these to the first and comes back, as the learning rate
            of one-cycle rises and falls.
        clip: of the gradient's norm.
        smoothing: of labels.
        accumulate: parts of a batch, one after the other.
        ema: decay of an average of the weights, which is then what is tested.
        precision: of automatic mixed precision.
        dtype: of weights and data.
        compile: with torch.compile.
        sharding: of weights and optimizer over the processes; without it each process has all.
        workers: processes that read and augment ahead.
        keep: the last weights, for another comparison to begin from.
        test_first: test the untrained model, too.
        trackers: of accelerate, as in `tensorboard`; each run's is in its folder.
    """

    steps: int = Field(300, ge=0)
    epochs: float | None = Field(None, gt=0)
    batch: int = Field(64, ge=1)
    lr: float = Field(1e-3, gt=0)
    schedule: Literal["cosine", "constant", "linear", "one-cycle", "steps"] = "cosine"
    milestones: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = ()
    warmup: float = Field(0.1, ge=0, le=1)
    first_lr: float = Field(0.0, ge=0)
    final_lr: float = Field(0.0, ge=0)
    optimizer: Literal["adamw", "sgd", "muon", "head-muon"] = "adamw"
    sphere: float | None = Field(None, gt=0)
    weight_decay: float = Field(0.05, ge=0)
    undecayed: tuple[str, ...] = ()
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)
    momentum_cycle: tuple[float, float] | None = None
    clip: float | None = Field(1.0, gt=0)
    smoothing: float = Field(0.0, ge=0, lt=1)
    accumulate: int = Field(1, ge=1)
    ema: float | None = Field(None, gt=0, lt=1)
    precision: Literal["no", "bf16", "fp16"] = "no"
    dtype: Literal["float32", "float64"] = "float32"
    compile: bool = False
    sharding: Literal["none", "fsdp2"] = "none"
    workers: int = Field(0, ge=0)
    keep: bool = False
    test_first: bool = False
    trackers: tuple[str, ...] = ()
    log_every: int = Field(10, ge=1)
    test_every: int = Field(50, ge=1)
    checkpoint_every: int = Field(100, ge=1)

    @model_validator(mode="after")
    def _aligned(self) -> Training:
        # A checkpoint between two entries would have to carry half a mean along.
        if self.checkpoint_every % self.log_every:
            raise ValueError(f"checkpoint_every is a multiple of log_every, which is {self.log_every}")
        if self.epochs is not None and "steps" in self.model_fields_set:
            raise ValueError("steps or epochs, not both")
        if self.sphere is not None and "muon" not in self.optimizer:
            raise ValueError("sphere is of the optimizers muon and head-muon")
        if (self.schedule == "steps") != bool(self.milestones):
            raise ValueError("milestones belong to schedule = 'steps', and it to them")
        return self


class Augment(RecipeTable):
    """Augmentation of training images, by timm; none unless it is asked for.

    Args:
        crop: `resized`, a random part of the image scaled to its size (Szegedy et al. 2015), or `padded`, the image
            moved by up to an eighth.
        scale: smallest and largest part, for `resized`.
        flip: probability of a mirror image.
        policy: of timm's RandAugment or AutoAugment, as in `rand-m9-mstd0.5-inc1`.
        jitter: of brightness, contrast and saturation; in timm a policy takes its place, but for `3a`.
        erasing: probability that a rectangle is erased.
        mixup: α of Zhang et al. 2018, 0 for none.
        cutmix: α of Yun et al. 2019, 0 for none; with both, each batch takes one of them at random.
        repeats: how often an image is in a batch, each time augmented anew (Hoffer et al. 2020).
    """

    crop: Literal["none", "resized", "padded"] = "none"
    scale: tuple[float, float] = (0.08, 1.0)
    flip: float = Field(0.0, ge=0, le=1)
    policy: str = ""
    jitter: float = Field(0.0, ge=0)
    erasing: float = Field(0.0, ge=0, le=1)
    mixup: float = Field(0.0, ge=0)
    cutmix: float = Field(0.0, ge=0)
    repeats: int = Field(1, ge=1)


class Looking(RecipeTable):
    """The monitor, at fixed steps so that its records are the same each time."""

    every: int = Field(100, ge=1)
    heads: int = Field(2, ge=1)
    examples: int = Field(8, ge=1)
    tiers: tuple[Literal["weights", "attention", "jacobian"], ...] = ("weights", "attention", "jacobian")


class Tuning(RecipeTable):
    """Learning rates to try for each arm, on seeds that are not reported."""

    lr: tuple[Annotated[float, Field(gt=0)], ...] = Field(min_length=2)
    seeds: tuple[int, ...] = Field((1000,), min_length=1)

    @model_validator(mode="after")
    def _different(self) -> Tuning:
        if len(set(self.lr)) < len(self.lr) or len(set(self.seeds)) < len(self.seeds):
            raise ValueError("lr and seeds are different numbers")
        return self


class SurfaceGrid(RecipeTable):
    """Starts that `wellcond surface` trains: every β with every g, calibrated on a batch.

    Args:
        beta: sharpness of all heads.
        branch: gain of all branches.
        seeds: of its runs, those of the arms included.
    """

    beta: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = Field(
        (0.005, 0.02, 0.08, 0.25, 0.8), min_length=3
    )
    branch: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = Field(
        (0.015, 0.06, 0.25, 1.0, 4.0), min_length=3
    )
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1)

    @model_validator(mode="after")
    def _different(self) -> SurfaceGrid:
        for name, values in (("beta", self.beta), ("branch", self.branch), ("seeds", self.seeds)):
            if len({f"{value:g}" for value in values}) < len(values):  # as they are written in the names of arms
                raise ValueError(f"{name} are different numbers")
        return self


class Weights(RecipeTable):
    """Weights that a comparison begins from: the last weights of another one, arm by arm and seed by seed.

    Args:
        runs: folder of that comparison, made with `train.keep`.
        take: `load` those that have the same name and shape; `select` a smaller model's from a larger one's
            (Xu et al. 2024).
        under: the part of this model that they are for, as in `backbone`.
    """

    runs: str
    take: Literal["load", "select"] = "load"
    under: str = ""


class Stage(RecipeTable):
    """One of several comparisons that follow each other; what it does not say is as in the recipe.

    Args:
        name: of its folder.
        after: the stage whose weights it begins from; none begins with the arms.
        take: see `Weights`.
        under: see `Weights`.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    after: str | None = None
    take: Literal["load", "select"] = "load"
    under: str = ""
    task: Named | None = None
    model: Named | None = None
    train: dict[str, Any] = {}
    augment: Annotated[Augment | None, OFF] = None
    monitor: Annotated[Looking | None, OFF] = None
