"""`wc.recommend` from a Trainer: the same advice as by hand, and nothing of the Trainer changes."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)
from transformers.trainer_pt_utils import LabelSmoother

import wellcond as wc
from tests.advice.models import equal_states
from tests.integrations.asking import ASKED, found_by, generators
from wellcond.errors import ArgumentError, BatchError, OptimizerError, WellcondError
from wellcond.integrations.transformers import recommend_for_trainer

ROWS, BATCH, EPSILON = 40, 4, 0.1


@pytest.fixture(autouse=True)
def _fresh_accelerate(again: Any) -> Iterator[None]:
    """Accelerate keeps what the first Accelerator of a process was told."""
    yield
    for shared in (AcceleratorState, GradientState, PartialState):
        shared._reset_state()


def gpt2() -> nn.Module:
    sizes = {"vocab_size": 31, "n_positions": 12, "n_embd": 24, "n_layer": 2, "n_head": 3}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))  # with dropout


def vit() -> nn.Module:
    sizes = {"image_size": 16, "patch_size": 4, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ViTForImageClassification(ViTConfig(**sizes, intermediate_size=48, num_labels=5))


def rows(kind: str) -> list[dict[str, Any]]:
    drawn = torch.Generator().manual_seed(1)
    if kind == "gpt2":
        ids = torch.randint(31, (ROWS, 12), generator=drawn)
        return [{"input_ids": row, "labels": row} for row in ids]
    images = torch.randn(ROWS, 3, 16, 16, generator=drawn)
    return [{"pixel_values": x, "labels": torch.tensor(i % 5)} for i, x in enumerate(images)]


class OwnLoss(Trainer):
    """Takes labels out of its batch, keeps and logs what it saw, and draws numbers for its batches."""

    def get_train_dataloader(self):
        torch.rand(()), np.random.rand(), random.random()
        return super().get_train_dataloader()

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        self.seen.append(len(inputs))
        self.log({"mine": 1.0})
        assert model is self.model or not model.training
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = functional.cross_entropy(outputs.logits, labels) * 0.5
        return (loss, outputs) if return_outputs else loss


class Counting(TrainerCallback):
    def __init__(self) -> None:
        self.calls = 0

    def on_log(self, *args, **kwargs):
        self.calls += 1


def trainer_of(folder, kind: str, kind_of: type[Trainer] = Trainer, **options: Any) -> Trainer:
    given = {"max_steps": 5, "per_device_train_batch_size": BATCH, "learning_rate": 3e-3, "weight_decay": 0.1}
    given |= {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    given |= {"label_smoothing_factor": EPSILON} if kind == "vit" and kind_of is Trainer else {}
    arguments = TrainingArguments(str(folder), **given | options)
    model = {"gpt2": gpt2, "vit": vit}[kind]()
    made = kind_of(model, arguments, train_dataset=rows(kind))
    made.seen = []
    return made


def smooth(output: Any, batch: Any) -> torch.Tensor:
    return LabelSmoother(epsilon=EPSILON)(output, batch["labels"])


def half(output: Any, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(output.logits, batch["labels"]) * 0.5


CASES = [("gpt2", Trainer, None), ("vit", Trainer, smooth), ("vit", OwnLoss, half)]


@pytest.mark.parametrize(("kind", "kind_of", "loss"), CASES)
def test_a_trainers_advice_is_that_of_its_batches_loss_and_optimizer(tmp_path, again, kind, kind_of, loss):
    trainer = trainer_of(tmp_path, kind, kind_of, train_sampling_strategy="sequential")
    found = recommend_for_trainer(trainer, **ASKED)
    assert found.probe.rungs
    assert found.settings["loss"] == f"{kind_of.__name__}.compute_loss"
    assert found.settings["lr"] == 3e-3
    again()
    other = trainer_of(tmp_path, kind, kind_of, train_sampling_strategy="sequential")
    optimizer = other.create_optimizer()
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    own = list(DataLoader(rows(kind), BATCH))
    by_hand = wc.recommend(other.model, own, loss=loss, optimizer=optimizer, **ASKED)
    assert found_by(found) == found_by(by_hand)


def test_the_trainers_own_optimizer_is_taken_at_the_peak_of_its_schedule(tmp_path, again):
    asked = []
    for made in (False, True):
        again()
        trainer = trainer_of(tmp_path, "gpt2", train_sampling_strategy="sequential", warmup_steps=2)
        if made:
            trainer.create_optimizer_and_scheduler(5)
            assert trainer.optimizer.param_groups[0]["lr"] == 0
        asked.append(found_by(recommend_for_trainer(trainer, **ASKED)))
    assert asked[0] == asked[1]


def everything(trainer: Trainer) -> dict[str, Any]:
    """What a Trainer is made of, by name: plain values in words, and the identity of the rest."""
    plain = (int, float, str, bool, list, dict, tuple)
    found = {name: repr(x) if isinstance(x, plain) else id(x) for name, x in vars(trainer).items()}
    found["state"], found["control"] = repr(trainer.state), repr(trainer.control)
    found["args"] = trainer.args.to_json_string()
    found["loaders"] = list(map(id, trainer.accelerator._dataloaders))
    found["gradients"] = repr(GradientState._shared_state)
    found["callbacks"] = list(map(id, trainer.callback_handler.callbacks))
    found["signature"] = list(vars(trainer.model))
    return found


@pytest.mark.parametrize(("kind", "kind_of"), [("gpt2", Trainer), ("vit", OwnLoss)])
def test_nothing_of_the_trainer_changes_and_training_goes_the_same_way(tmp_path, kind, kind_of):
    def trained(ask: bool) -> nn.Module:
        trainer = trainer_of(tmp_path, kind, kind_of, dataloader_num_workers=0)
        counting = Counting()
        trainer.add_callback(counting)
        trainer.model.train()
        trainer.model.base_model.eval()
        torch.manual_seed(7)
        before, model, drawn = everything(trainer), copy.deepcopy(trainer.model), generators()
        modes = [module.training for module in trainer.model.modules()]
        if ask:
            assert recommend_for_trainer(trainer, **ASKED).probe.rungs
        assert everything(trainer) == before
        assert equal_states(trainer.model, model)
        assert [module.training for module in trainer.model.modules()] == modes
        assert all(p.grad is None for p in trainer.model.parameters())
        assert generators() == drawn
        assert not counting.calls
        trainer.train()
        return trainer.model

    plain, asked = trained(False), trained(True)
    assert equal_states(plain, asked)
    assert not equal_states(plain, {"gpt2": gpt2, "vit": vit}[kind]())


def test_asking_a_trainer_that_has_trained_leaves_its_optimizer(tmp_path):
    trainer = trainer_of(tmp_path, "gpt2")
    trainer.train()
    state, before = copy.deepcopy(trainer.optimizer.state_dict()), copy.deepcopy(trainer.model)
    found = recommend_for_trainer(trainer, **ASKED)
    assert found.probe.rungs
    now = trainer.optimizer.state_dict()
    assert now["param_groups"] == state["param_groups"]
    assert all(torch.equal(now["state"][i][k], v) for i, each in state["state"].items() for k, v in each.items())
    assert equal_states(trainer.model, before)


def test_a_trainer_whose_loss_alone_knows_its_batches(tmp_path):
    """The model's forward takes nothing of a batch, so the loss runs it."""

    class Renaming(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model(input_ids=inputs["words"], labels=inputs["words"]).loss

    trainer = trainer_of(tmp_path, "gpt2", Renaming, remove_unused_columns=False)
    trainer.train_dataset = [{"words": row["input_ids"]} for row in rows("gpt2")]
    found = recommend_for_trainer(trainer, **ASKED)
    assert len(found.state.scales) == 2
    assert found.probe.rungs
    assert "forward" not in vars(trainer.model)


@pytest.mark.parametrize(
    ("edit", "error", "words"),
    [
        (lambda t: vars(t).update(train_dataset=None), BatchError, "get_train_dataloader raised ValueError: Trainer"),
        (lambda t: vars(t).update(train_dataset=rows("gpt2")[:0]), BatchError, "num_samples=0"),
        (lambda t: vars(t).update(train_dataset=[{"labels": 1}] * 8), BatchError, "Trainer.compute_loss raised"),
        (lambda t: vars(t).update(compute_loss=lambda model, inputs: 1.0), BatchError, "one number as a tensor; got"),
        (lambda t: vars(t).update(create_optimizer=lambda: None), OptimizerError, "create_optimizer returns a torch"),
        (lambda t: t.model.requires_grad_(False), OptimizerError, "no parameter of the model is trained"),
        (lambda t: vars(t).update(model=None), ArgumentError, "Trainer has no model"),
        (lambda t: t.args.__dict__.update(_n_gpu=0, distributed_state=Two()), WellcondError, "one of 2 processes"),
    ],
)
def test_what_a_trainer_cannot_be_asked_is_refused_in_words(tmp_path, edit, error, words):
    trainer = trainer_of(tmp_path, "gpt2")
    edit(trainer)
    drawn = generators()
    with pytest.raises(error, match=words) as caught:
        recommend_for_trainer(trainer, **ASKED, out=tmp_path / "probe")
    assert "\n" not in str(caught.value)
    assert generators() == drawn
    assert not (tmp_path / "probe").exists()


class Two:
    """A process of two, as Accelerate says it."""

    num_processes, process_index, local_process_index, device = 2, 0, 0, torch.device("cpu")


def test_what_is_no_trainer_is_refused():
    with pytest.raises(ArgumentError, match=r"a transformers\.Trainer; got"):
        recommend_for_trainer(gpt2())
