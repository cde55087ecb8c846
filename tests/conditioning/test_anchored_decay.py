"""Weight decay around a folded shift: every optimizer does to W + C what it would do to W inside W + C."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import timm.optim
import torch
import transformers
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.nn.utils import parametrize

import wellcond as wc
from tests.training import Plus, distance, effective
from wellcond.errors import OptimizerError
from wellcond.testing import same_bits

DTYPE = torch.float64
WIDTH, HEADS, STRENGTH, STEPS = 12, 3, 2.0, 16
CLOSE = 1e-10  # rounding in float64 over tens of steps, amplified by a division by small gradients
LR, DECAY = 1e-2, 0.1

Build = Callable[[Iterable[Any]], optim.Optimizer]


class Net(nn.Module):
    """Two attention blocks without biases: a key bias has no gradient, so Adam would make noise of it."""

    def __init__(self) -> None:
        super().__init__()
        options = {"dropout": 0.0, "batch_first": True, "bias": False}
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, HEADS, 16, **options) for _ in range(2))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def net() -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net().to(DTYPE)


def literal(model: Net) -> Net:
    for block in model.blocks:
        correction = torch.zeros(3 * WIDTH, WIDTH, dtype=DTYPE)
        width = WIDTH // HEADS
        for row in range(3 * WIDTH):
            correction[row, row % width] = STRENGTH
        parametrize.register_parametrization(block.self_attn, "in_proj_weight", Plus(correction))
    return model


def condition(model: nn.Module, **options: Any) -> wc.Conditioning:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # strength 2 makes the softmax sharp, which is no concern here
        return wc.condition_(model, "shift", **({"strength": STRENGTH, "mode": "folded"} | options))


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(4, 5, WIDTH, generator=generator, dtype=DTYPE)
    return x, x[..., :3].cumsum(1).tanh()


def loss_of(model: nn.Module, step: int, optimizer: optim.Optimizer | None = None) -> Tensor:
    x, y = batch(step)
    goal = functional.mse_loss(model(x), y)
    return -goal if optimizer and optimizer.defaults.get("maximize") else goal


Loop = Callable[[nn.Module, optim.Optimizer, Callable[[], None]], None]


def plain(model: nn.Module, optimizer: optim.Optimizer, after: Callable[[], None]) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step, optimizer).backward()
        before = {p: p.grad.clone() for p in model.parameters() if p.grad is not None}
        optimizer.step()
        assert all(same_bits(p.grad, gradient) for p, gradient in before.items())
        after()


def compare(build: Build, loop: Loop = plain, groups: Callable[[nn.Module], Any] | None = None, **options: Any) -> None:
    """Train W inside W + C, and W + C with a handle; the weights that are used must agree."""
    groups = groups or (lambda model: model.parameters())
    wanted, model = literal(net()), net()
    loop(wanted, build(groups(wanted)), lambda: None)
    handle = condition(model)
    optimizer = build(groups(model))
    handle.attach(optimizer, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop(model, optimizer, lambda: None)
    assert distance(effective(wanted), effective(net())) > 1e-3
    assert distance(effective(wanted), effective(model)) < CLOSE


class Signs(optim.Optimizer):
    """Unknown to us; elementwise, with decoupled or coupled decay."""

    def __init__(self, params: Any, coupled: bool = False) -> None:
        super().__init__(params, {"lr": 1e-3, "weight_decay": DECAY})
        self.coupled = coupled

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if self.coupled:
                    gradient = p.grad + group["weight_decay"] * p
                else:
                    gradient = p.grad
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * gradient / (gradient.abs() + 0.1))


def adafactor(params: Any, **options: Any) -> optim.Optimizer:
    return transformers.Adafactor(params, **({"lr": 1e-3, "weight_decay": DECAY} | options))


DECAYED = {"lr": LR, "weight_decay": DECAY}
ADAM = {"lr": 1e-3, "weight_decay": DECAY}
MOMENTUM = {**DECAYED, "momentum": 0.9}
OPTIMIZERS: dict[str, Build] = {
    "adamw": partial(optim.AdamW, **ADAM),
    "adamw foreach": partial(optim.AdamW, **ADAM, foreach=True),
    "adamw loop": partial(optim.AdamW, **ADAM, foreach=False),
    "adamw fused": partial(optim.AdamW, **ADAM, fused=True),
    "adamw amsgrad": partial(optim.AdamW, **ADAM, amsgrad=True),
    "adamw maximize": partial(optim.AdamW, **ADAM, maximize=True),
    "adamw maximize fused": partial(optim.AdamW, **ADAM, maximize=True, fused=True),
    "adamw tensor lr": lambda params: optim.AdamW(params, lr=torch.tensor(1e-3, dtype=DTYPE), weight_decay=DECAY),
    "adam": partial(optim.Adam, **ADAM),
    "adam foreach": partial(optim.Adam, **ADAM, foreach=True),
    "adam loop": partial(optim.Adam, **ADAM, foreach=False),
    "adam fused": partial(optim.Adam, **ADAM, fused=True),
    "adam amsgrad": partial(optim.Adam, **ADAM, amsgrad=True),
    "adam amsgrad fused": partial(optim.Adam, **ADAM, amsgrad=True, fused=True),
    "adam maximize": partial(optim.Adam, **ADAM, maximize=True),
    "adam maximize foreach": partial(optim.Adam, **ADAM, maximize=True, foreach=True),
    "adam maximize fused": partial(optim.Adam, **ADAM, maximize=True, fused=True),
    "adam decoupled": partial(optim.Adam, **ADAM, decoupled_weight_decay=True),
    "sgd": partial(optim.SGD, **DECAYED),
    "sgd foreach": partial(optim.SGD, **DECAYED, foreach=True),
    "sgd loop": partial(optim.SGD, **DECAYED, foreach=False),
    "sgd fused": partial(optim.SGD, **DECAYED, fused=True),
    "sgd maximize": partial(optim.SGD, **DECAYED, maximize=True),
    "momentum": partial(optim.SGD, **MOMENTUM),
    "momentum fused": partial(optim.SGD, **MOMENTUM, fused=True),
    "momentum maximize": partial(optim.SGD, **MOMENTUM, maximize=True),
    "momentum maximize fused": partial(optim.SGD, **MOMENTUM, maximize=True, fused=True),
    "nesterov": partial(optim.SGD, **MOMENTUM, nesterov=True),
    "dampening": partial(optim.SGD, **MOMENTUM, dampening=0.3),
    "rmsprop": partial(optim.RMSprop, **ADAM, momentum=0.5),
    "rmsprop maximize": partial(optim.RMSprop, **ADAM, maximize=True),
    "adagrad": partial(optim.Adagrad, **ADAM),
    "adagrad fused": partial(optim.Adagrad, **ADAM, fused=True),
    "adadelta": partial(optim.Adadelta, **DECAYED),
    "adamax": partial(optim.Adamax, **ADAM),
    "nadam": partial(optim.NAdam, **ADAM),
    "nadam decoupled": partial(optim.NAdam, **ADAM, decoupled_weight_decay=True),
    "radam": partial(optim.RAdam, **ADAM),
    "radam decoupled": partial(optim.RAdam, **ADAM, decoupled_weight_decay=True),
    "timm lion": partial(timm.optim.Lion, **ADAM),
    "hf adafactor": partial(adafactor, scale_parameter=False, relative_step=False),
    "timm adamp": partial(timm.optim.AdamP, **ADAM),  # projects its step on the weight
    "timm sgdp": partial(timm.optim.SGDP, **DECAYED),
    "timm lion corrected": partial(timm.optim.Lion, **ADAM, corrected_weight_decay=True),  # decays by lr²
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_same_as_literal(name: str) -> None:
    compare(OPTIMIZERS[name])


@pytest.mark.parametrize("coupled", [False, True])
def test_an_optimizer_nobody_knows(coupled: bool) -> None:
    """The optimizer is shown W, so it does not matter what it does with it."""
    compare(partial(Signs, coupled=coupled))


SOME = ["adamw", "adamw fused", "adam", "adam fused", "nesterov", "momentum fused"]


@pytest.mark.parametrize("name", SOME)
def test_without_attach_it_differs(name: str) -> None:
    wanted, model = literal(net()), net()
    plain(wanted, OPTIMIZERS[name](wanted.parameters()), lambda: None)
    handle = condition(model)
    with pytest.warns(UserWarning, match="attach"):
        plain(model, OPTIMIZERS[name](model.parameters()), lambda: None)
    assert distance(effective(wanted), effective(model)) > 1e4 * CLOSE
    assert handle.active


@pytest.mark.parametrize("name", SOME)
def test_groups(name: str) -> None:
    def groups(model: nn.Module) -> list[dict[str, Any]]:
        def named(prefix: str) -> list[Tensor]:
            return [p for n, p in model.named_parameters() if n.startswith(prefix)]

        first = {"params": named("blocks.0"), "lr": 3e-3, "weight_decay": 0.3}
        return [first, {"params": named("blocks.1"), "weight_decay": 0.05}, {"params": named("head")}]

    compare(OPTIMIZERS[name], groups=groups)


@pytest.mark.parametrize("name", SOME)
def test_schedule_clipping_accumulation_and_frozen_steps(name: str) -> None:
    def loop(model: nn.Module, optimizer: optim.Optimizer, after: Callable[[], None]) -> None:
        schedule = optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5) * 0.95**step)
        for step in range(2 * STEPS):
            (loss_of(model, step) / 2).backward()
            if step % 2:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                if step % 3 == 0:  # such a parameter does not decay either
                    for n, p in model.named_parameters():
                        p.grad = None if n.startswith("blocks.1") else p.grad
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()

    compare(OPTIMIZERS[name], loop)


@pytest.mark.parametrize("keyword", [False, True])
@pytest.mark.parametrize("name", SOME)
def test_closure(name: str, keyword: bool) -> None:
    def loop(model: nn.Module, optimizer: optim.Optimizer, after: Callable[[], None]) -> None:
        for step in range(STEPS):

            def closure(step: int = step) -> Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, step)
                loss.backward()
                return loss

            given = optimizer.step(closure=closure) if keyword else optimizer.step(closure)
            assert given is not None

    compare(OPTIMIZERS[name], loop)


@pytest.mark.parametrize("unscale", [False, True], ids=["scaled", "unscaled"])
@pytest.mark.parametrize("name", [*SOME, "adagrad fused", "adam maximize fused"])
def test_grad_scaler_with_an_infinite_step(name: str, unscale: bool) -> None:
    def loop(model: nn.Module, optimizer: optim.Optimizer, after: Callable[[], None]) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, step, optimizer) * (float("inf") if step == 7 else 1.0)
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scale, grads = scaler.get_scale(), [p.grad.clone() for p in model.parameters()]
            weights = [p.detach().clone() for p in model.parameters()]
            scaler.step(optimizer)
            scaler.update()
            moved = any(not torch.equal(p, w) for p, w in zip(model.parameters(), weights, strict=True))
            assert moved == (step != 7)
            fused = getattr(optimizer, "_step_supports_amp_scaling", False)
            if unscale or (fused and step == 7):
                scale = 1.0  # else the scaler, or a fused step, takes the scale out of the gradients
            if fused or step != 7:
                assert all(same_bits(p.grad, g / scale) for p, g in zip(model.parameters(), grads, strict=True))

    compare(OPTIMIZERS[name], loop)


@pytest.mark.parametrize("late", ["now", "late", "no argument"])
@pytest.mark.parametrize("name", SOME)
def test_after_step_instead_of_attach(name: str, late: str) -> None:
    """Also after the gradients are gone and the rate has changed, and after a step that was skipped."""

    def loop(model: nn.Module, optimizer: optim.Optimizer, after: Callable[[], None]) -> None:
        schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(STEPS):
            scaler.scale(loss_of(model, step) * (float("inf") if step == 7 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            if late == "now":
                after()
            optimizer.zero_grad()
            schedule.step()
            if late != "now" and step != 7:  # a loop may leave out the call where nothing was done
                after()

    wanted, model = literal(net()), net()
    loop(wanted, OPTIMIZERS[name](wanted.parameters()), lambda: None)
    handle = condition(model)
    optimizer = OPTIMIZERS[name](model.parameters())
    after = handle.after_step if late == "no argument" else partial(handle.after_step, optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop(model, optimizer, after)
    assert distance(effective(wanted), effective(model)) < CLOSE


def test_after_step_does_nothing_where_attached() -> None:
    model, other = net(), net()
    for each, explicit in ((model, False), (other, True)):
        handle = condition(each)
        optimizer = OPTIMIZERS["adamw"](each.parameters())
        handle.attach(optimizer).attach(optimizer)
        plain(each, optimizer, partial(handle.after_step, optimizer) if explicit else lambda: None)
    assert distance(effective(model), effective(other)) == 0


@pytest.mark.parametrize("name", ["adamw", "adam", "momentum fused"])
def test_a_parameter_that_is_not_contiguous(name: str) -> None:
    def transposed(model: Net) -> Net:
        for block in model.blocks:
            block.self_attn.in_proj_weight = nn.Parameter(block.self_attn.in_proj_weight.detach().T.contiguous().T)
        return model

    wanted, model = literal(net()), transposed(net())
    plain(wanted, OPTIMIZERS[name](wanted.parameters()), lambda: None)
    original = effective(model)
    handle = condition(model)
    handle.remove_()
    assert distance(effective(model), original) == 0
    handle = condition(model)
    optimizer = OPTIMIZERS[name](model.parameters())
    handle.attach(optimizer)
    plain(model, optimizer, lambda: None)
    assert not model.blocks[0].self_attn.in_proj_weight.is_contiguous()
    assert distance(effective(wanted), effective(model)) < CLOSE


@pytest.mark.parametrize("name", ["adamw", "adam"])
def test_two_handles_share_an_optimizer(name: str) -> None:
    """Each on layers of its own; the gradients are put back by both."""
    wanted, model = literal(net()), net()
    plain(wanted, OPTIMIZERS[name](wanted.parameters()), lambda: None)
    handles = [condition(model, layers=f"blocks.{index}.*") for index in range(len(model.blocks))]
    assert len(handles) > 1
    optimizer = OPTIMIZERS[name](model.parameters())
    for handle in handles:
        handle.attach(optimizer)
    plain(model, optimizer, lambda: None)
    assert distance(effective(wanted), effective(model)) < CLOSE


def test_two_optimizers() -> None:
    wanted, model = literal(net()), net()
    handle = condition(model)
    for each in (wanted, model):
        halves = [OPTIMIZERS["adam"](each.blocks.parameters()), OPTIMIZERS["sgd"](each.head.parameters())]
        assert [handle.concerns(half) for half in halves] == ([True, False] if each is model else [False, False])
        if each is model:
            handle.attach(halves[0])
        for step in range(STEPS):
            loss_of(each, step).backward()
            for half in halves:
                half.step()
                half.zero_grad()
    assert distance(effective(wanted), effective(model)) < CLOSE


# Refusals and warnings.

REFUSED: dict[str, Build] = {
    "timm lamb": partial(timm.optim.Lamb, **ADAM),
    "timm lars": partial(timm.optim.Lars, **ADAM),
    "torch adafactor": partial(optim.Adafactor, **ADAM),
    "hf adafactor scale": partial(adafactor, scale_parameter=True, relative_step=False),
    "hf adafactor relative": partial(adafactor, lr=None, scale_parameter=False, relative_step=True),
}


@pytest.mark.parametrize("weight_decay", [0.0, DECAY])
@pytest.mark.parametrize("name", REFUSED)
def test_steps_that_depend_on_the_weight_are_refused(name: str, weight_decay: float) -> None:
    model = net()
    handle = condition(model)
    optimizer = REFUSED[name](model.parameters())
    for group in optimizer.param_groups:
        group["weight_decay"] = weight_decay
    with pytest.raises(OptimizerError, match="mode='live'"):
        handle.attach(optimizer)


def test_live_takes_any_optimizer() -> None:
    model = net()
    handle = condition(model, mode="live")
    handle.attach(REFUSED["timm lamb"](model.parameters()))
    with pytest.raises(OptimizerError, match="takes a torch optimizer"):
        handle.attach(object())


class Master(optim.SGD):
    """Keeps its own copy of the weights, as mixed-precision optimizers do."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                copy = self.state[parameter].setdefault("master", self.master[id(parameter)])
                copy.sub_(parameter.grad, alpha=group["lr"])
                parameter.copy_(copy)


def test_an_optimizer_with_its_own_copy_of_the_weights_is_noticed() -> None:
    model = net()
    handle = condition(model)
    optimizer = Master(model.parameters(), lr=1e-3)
    optimizer.master = {id(p): p.detach().clone() for p in model.parameters()}
    handle.attach(optimizer)
    before = effective(model)
    loss_of(model, 0).backward()
    with pytest.raises(OptimizerError, match="its own copy"):
        optimizer.step()
    assert distance(before, effective(model)) < 0.1  # W + C, stepped; not shifted twice


def test_a_step_that_fails_leaves_what_the_model_uses() -> None:
    class Failing(optim.AdamW):
        def step(self, closure=None):
            raise MemoryError

    model = net()
    handle = condition(model)
    optimizer = Failing(model.parameters(), weight_decay=DECAY)
    handle.attach(optimizer)
    before = effective(model)
    loss_of(model, 0).backward()
    with pytest.raises(MemoryError):
        optimizer.step()
    assert distance(before, effective(model)) == 0


def test_an_optimizer_of_other_weights_is_refused() -> None:
    model = net()
    handle = condition(model)
    with pytest.raises(OptimizerError, match=r"none of the 2 conditioned weights \('blocks.0.self_attn"):
        handle.attach(OPTIMIZERS["adamw"](model.head.parameters()))
    with pytest.raises(OptimizerError, match="none of the 2"):
        handle.attach(OPTIMIZERS["adamw"](net().parameters()))


@pytest.mark.parametrize("name", ["adamw", "adam", "adam fused", "timm lamb", "signs"])
def test_a_forgotten_attach_warns_once(name: str) -> None:
    model = net()
    handle = condition(model)
    optimizer = ({"signs": Signs} | REFUSED | OPTIMIZERS)[name](model.parameters())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(5):
            loss_of(model, step).backward()
            optimizer.step()
    (warning,) = [w for w in caught if "c.attach(optimizer)" in str(w.message)]
    assert type(optimizer).__name__ in str(warning.message)
    assert handle.mode == "folded"


@pytest.mark.parametrize("how", ["attach", "after_step", "no decay", "live", "other weights", "removed"])
@pytest.mark.parametrize("name", ["adamw", "adam"])
def test_no_warning(name: str, how: str) -> None:
    model = net()
    handle = condition(model, mode="live" if how == "live" else "folded")
    optimizer = OPTIMIZERS[name]((net() if how == "other weights" else model).parameters())
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.0 if how == "no decay" else DECAY
    if how == "attach":
        handle.attach(optimizer)
    if how == "removed":
        handle.remove_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
            if how == "after_step":
                handle.after_step(optimizer)


def test_nothing_outlives_an_optimizer() -> None:
    """A new optimizer may be born at a dead one's address."""
    model = net()
    handle = condition(model)
    optimizer = Signs(model.parameters(), coupled=True)
    handle.attach(optimizer)
    plain(model, optimizer, lambda: None)
    del optimizer
    gc.collect()
    assert not handle._applied.decay.attached
    assert not handle._applied.decay.expected
