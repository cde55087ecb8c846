"""`wc.recommend` from a LightningModule: the same advice as by hand, and nothing of the module changes."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import wellcond as wc
from tests.advice.models import broken, equal_states, fresh
from tests.advice.models import data as batches_of
from tests.integrations.asking import ASKED, found_by, generators
from wellcond.errors import ArgumentError, BatchError, OptimizerError, WellcondError
from wellcond.integrations.lightning import called_by_training_step, recommend_for_module
from wellcond.scale.measure_scales import measure_scales

pytestmark = pytest.mark.usefixtures("again")
ROWS, BATCH = 40, 4


class Module(pl.LightningModule):
    """A timm ViT inside; logs, and is called with a batch's input."""

    def __init__(self, net: nn.Module | None = None) -> None:
        super().__init__()
        self.net = fresh("vit") if net is None else net

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        x, y = batch
        loss = functional.cross_entropy(self(functional.dropout(x, 0.1, self.training)), y)
        self.log("loss", loss)
        self.log_dict({"a": loss}, prog_bar=True)
        return {"loss": loss, "more": y}

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=0.2)


class WithoutForward(Module):
    forward = pl.LightningModule.forward

    def training_step(self, batch):
        self.print("a step")
        return functional.cross_entropy(self.net(batch[0]), batch[1])


class OtherForward(Module):
    """Whose forward is for something else: names of classes."""

    def forward(self, names):
        return [self.net.head.weight[int(name)] for name in names]

    def training_step(self, *args):
        assert args[1] == 0
        return functional.cross_entropy(self.net(args[0][0]), args[0][1])


def dropped(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output, target)


@pytest.mark.parametrize("kind", [WithoutForward, OtherForward])
def test_a_modules_advice_is_that_of_its_network(again, kind):
    batches, _ = batches_of("vit")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = recommend_for_module(kind(), batches, **ASKED)
    assert found.probe.rungs
    assert (found.settings["loss"], found.settings["lr"]) == (f"{kind.__name__}.training_step", 3e-3)
    again()
    net = fresh("vit")
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.2)
    by_hand = wc.recommend(net, batches, loss=dropped, optimizer=optimizer, **ASKED)
    # A scheme's draws have the names of layers as their keys, so only the model's own weights are the same in both.
    trials = [[(r.steps, r.losses["yours"]) for r in each.probe.rungs] for each in (found, by_hand)]
    assert trials[0] == trials[1]
    assert [name.removeprefix("net.") for name in found.state.scales] == list(by_hand.state.scales)


def test_a_modules_trials_are_those_of_the_module_by_hand(again):
    """With the same names, all losses are the same to the bit."""
    batches, _ = batches_of("vit")

    class Plain(Module):
        def training_step(self, batch, index):
            return functional.cross_entropy(self(batch[0]), batch[1])

    found = recommend_for_module(Plain(), batches, **ASKED)
    again()
    module = Plain()
    by_hand = wc.recommend(module, batches, loss=dropped, optimizer=module.configure_optimizers(), **ASKED)
    assert found_by(found) == found_by(by_hand)


class Data(pl.LightningDataModule):
    def setup(self, stage):
        assert stage == "fit"
        drawn = torch.Generator().manual_seed(1)
        images = torch.randn(ROWS, 3, 16, 16, generator=drawn) + torch.rand(())  # of the global generator
        self.rows = TensorDataset(images, torch.arange(ROWS) % 5)

    def train_dataloader(self):
        return DataLoader(self.rows, BATCH, shuffle=True)


def test_nothing_of_the_module_changes_and_fitting_goes_the_same_way(tmp_path):
    def fitted(ask: bool) -> nn.Module:
        module, data = Module(), Data()
        module.net.blocks[1].eval()
        drawn, before, own = generators(), copy.deepcopy(module), dict(vars(module))
        modes = [each.training for each in module.modules()]
        if ask:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert recommend_for_module(module, data, **ASKED).probe.rungs
        assert generators() == drawn
        assert equal_states(module, before)
        assert vars(module) == own
        assert not hasattr(data, "rows")
        assert [each.training for each in module.modules()] == modes
        assert all(p.grad is None for p in module.parameters())
        pl.seed_everything(3, verbose=False)
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        pl.Trainer(max_steps=4, accelerator="cpu", enable_checkpointing=False, **quiet).fit(module, data)
        return module

    plain, asked = fitted(False), fitted(True)
    assert equal_states(plain, asked)
    assert not equal_states(plain, Module())
    assert recommend_for_module(asked, Data(), **ASKED | {"seconds": 0}).best.name == "yours"  # it has had a Trainer


def warming(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 100)


def one_cycle(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, 100)


@pytest.mark.parametrize(
    "form",
    [
        lambda o: [o],
        lambda o: ([o], [warming(o)]),
        lambda o: {"optimizer": o, "lr_scheduler": warming(o)},
        lambda o: {"optimizer": o, "lr_scheduler": {"scheduler": warming(o), "interval": "step"}},
        lambda o: [{"optimizer": o, "lr_scheduler": one_cycle(o)}],
    ],
)
def test_each_form_of_an_optimizer_gives_the_same_but_for_its_schedule(form):
    class Formed(Module):
        def configure_optimizers(self):
            return form(torch.optim.SGD(self.parameters(), lr=3e-3))

    found = recommend_for_module(Formed(), batches_of("vit")[0], **ASKED | {"seconds": 0})
    assert found.settings["lr"] == 3e-3


class Several(Module):
    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=1.0) for part in (self.net.blocks, self.net.head)]


class Lacking(Module):
    def configure_optimizers(self):
        return None


class Attached(Module):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1 / self.trainer.estimated_stepping_batches)


class ByHand(Module):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class Skipping(Module):
    def training_step(self, batch, index):
        return None


class Failing(Module):
    def training_step(self, batch, index):
        raise KeyError("image")


PAIRS = batches_of("vit")[0]


@pytest.mark.parametrize(
    ("module", "batches", "error", "words"),
    [
        (Several, PAIRS, OptimizerError, "gives 2 optimizers"),
        (Lacking, PAIRS, OptimizerError, "gives None"),
        (Attached, PAIRS, OptimizerError, "not attached to a `Trainer`"),
        (ByHand, PAIRS, OptimizerError, "by hand"),
        (Skipping, PAIRS, BatchError, r"Skipping\.training_step returns one number as a tensor; got None"),
        (Failing, PAIRS, BatchError, r"batch 1 of 12: Failing\.training_step raised KeyError: 'image'"),
        (Module, None, BatchError, "no batches to train on"),
        (Module, {"a": DataLoader(PAIRS), "b": DataLoader(PAIRS)}, BatchError, "several loaders"),
        (Module, [DataLoader(PAIRS), DataLoader(PAIRS)], BatchError, "several loaders"),
        (Module, [], BatchError, "no batch"),
        (lambda: fresh("vit"), PAIRS, ArgumentError, "a LightningModule; got"),
        (lambda: Module(nn.Identity()), PAIRS, WellcondError, "no parameters"),
        (lambda: Module(nn.Sequential(nn.Flatten(), nn.Linear(768, 5))), PAIRS, WellcondError, "no attention layer"),
    ],
)
def test_what_a_module_cannot_be_asked_is_refused_in_words(tmp_path, module, batches, error, words):
    made = module()
    drawn = generators()
    with pytest.raises(error, match=words) as caught:
        recommend_for_module(made, batches, **ASKED, out=tmp_path / "probe")
    assert "\n" not in str(caught.value)
    assert generators() == drawn
    assert not (tmp_path / "probe").exists()


def test_an_optimizer_may_be_said_instead_and_a_module_has_its_own_loader():
    class Loading(Attached):
        def train_dataloader(self):
            return DataLoader(TensorDataset(torch.randn(ROWS, 3, 16, 16), torch.arange(ROWS) % 5), BATCH)

    found = recommend_for_module(Loading(), optimizer="adamw", lr=2e-3, **ASKED)
    assert found.settings["lr"] == 2e-3
    assert found.settings["batches"] == ROWS // BATCH


def test_advice_that_calibrates_is_applied_through_the_training_step():
    module = WithoutForward(broken("vit", "q"))
    found = recommend_for_module(module, batches_of("vit")[0], seconds=0, schemes=["fan_in"])
    assert found.state.findings[0].what == "queries and keys"
    one, before = found["fan_in + calibrated"], dict(vars(module))
    with pytest.raises(BatchError, match="forward"):
        one.apply_(module)
    with called_by_training_step(module):
        one.apply_(module)
    assert vars(module) == before
    scales = measure_scales(module.net, PAIRS[0][0])
    assert [beta for scale in scales.values() for beta in scale.beta] == pytest.approx([0.35] * 9, rel=0.01)
