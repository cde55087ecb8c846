"""A training run that is killed and resumed ends with the bits of one that never stopped."""

from __future__ import annotations

import signal
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.commands import wait_until
from tests.preloaded import Program, start
from wellcond.testing import same_bits

ROOT = Path(__file__).parents[2]
STEPS, KILLED = 20, 7
WORKER = """
import os, shutil, sys, timm, torch, warnings
from pathlib import Path
from transformers import GPT2Config, GPT2LMHeadModel
import wellcond as wc

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
folder, steps = Path(sys.argv[1]), int(sys.argv[2])
HOW = {
    "folded": dict(method="shift", strength=2, mode="folded"),
    "live shift": dict(method="shift", strength=2, mode="live"),
    "live polar": dict(method="polar"),
    "every 3": dict(method="polar", every=3),
}

def vit():
    return timm.models.vision_transformer.VisionTransformer(
        img_size=16, patch_size=8, embed_dim=24, depth=2, num_heads=3, num_classes=5, mlp_ratio=2
    )

def gpt2():
    sizes = dict(vocab_size=31, n_positions=16, n_embd=24, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))

class Run:
    def __init__(self, name, how):
        self.key, self.name = f"{name} {how}", name
        self.model = {"vit": vit, "gpt2": gpt2}[name]()
        self.handle = wc.condition_(self.model, **HOW[how])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3, weight_decay=0.1)
        self.handle.attach(self.optimizer)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 30)
        self.parts = dict(model=self.model, optimizer=self.optimizer, schedule=self.schedule, handle=self.handle)

    def step(self, number):
        generator = torch.Generator().manual_seed(number)
        self.optimizer.zero_grad()
        if self.name == "vit":
            images = torch.randn(4, 3, 16, 16, generator=generator)
            targets = torch.randint(5, (4,), generator=generator)
            torch.nn.functional.cross_entropy(self.model(images), targets).backward()
        else:
            tokens = torch.randint(31, (4, 9), generator=generator)
            self.model(tokens, labels=tokens).loss.backward()
        self.optimizer.step()
        self.schedule.step()

    def save(self, folder):
        torch.save({name: part.state_dict() for name, part in self.parts.items()}, folder / self.key)

    def load(self, folder):
        state = torch.load(folder / self.key, weights_only=True)
        # The handle's state may come before or after the model's.
        for name in sorted(self.parts, reverse=self.name == "vit"):
            self.parts[name].load_state_dict(state[name])

runs = [Run(name, how) for name in ("vit", "gpt2") for how in HOW]      # random weights, other ones in each process
current, start = folder / "current", 0
if current.exists():
    for run in runs:
        run.load(current)
    start = int(current.resolve().name)
    print("resumed", start, flush=True)
else:
    for run in runs:
        torch.manual_seed(0)
        fresh = {"vit": vit, "gpt2": gpt2}[run.name]()
        run.handle.load_weights_(fresh.state_dict(), as_original=True)
for number in range(start + 1, steps + 1):
    for run in runs:
        run.step(number)
    saved = folder / str(number)
    shutil.rmtree(saved, ignore_errors=True)                            # half of one, from a run that was killed
    saved.mkdir()
    for run in runs:
        run.save(saved)
    link = folder / "next"
    link.unlink(missing_ok=True)
    link.symlink_to(saved.name)
    os.replace(link, current)                                           # a step is there whole or not at all
    print("step", number, flush=True)
torch.save({run.key: dict(run.model.named_parameters()) for run in runs}, folder / "stored.pt")
"""


def started(folder: Path) -> Program:
    folder.mkdir(exist_ok=True)
    environment = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    return start(WORKER, str(folder), str(STEPS), cwd=folder, env=environment)


def ends(folder: Path) -> tuple[Path, Path]:
    """The folders of a run that was not killed, and of one that was, and was resumed."""
    whole, killed = started(folder / "whole"), started(folder / "killed")

    def reached() -> bool:
        assert killed.alive(), killed.stderr.read_text()
        return f"step {KILLED}\n" in killed.stdout.read_text()

    wait_until(reached)
    killed.kill()
    assert killed.wait().returncode == -signal.SIGKILL
    resumed, undisturbed = started(folder / "killed").wait(), whole.wait()
    said = resumed.stdout.splitlines()
    assert undisturbed.stdout.splitlines()[-1] == f"step {STEPS}"
    assert resumed.returncode == undisturbed.returncode == 0
    assert said[-1] == f"step {STEPS}"
    assert KILLED <= int(said[0].removeprefix("resumed ")) < STEPS
    return folder / "whole", folder / "killed"


def flat(state: Any, name: str = "") -> dict[str, Any]:
    if isinstance(state, dict):
        return {key: value for inner in state for key, value in flat(state[inner], f"{name}/{inner}").items()}
    return {name: state}


def test_a_killed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    first, second = ends(tmp_path)  # all runs in one process, which takes longer to start than to train
    for name, how in product(["vit", "gpt2"], ["folded", "live shift", "live polar", "every 3"]):
        key = f"{name} {how}"
        whole, killed = (
            flat(
                {
                    "stored": torch.load(end / "stored.pt", weights_only=True)[key],
                    "rest": torch.load(end / "current" / key, weights_only=True),
                }
            )
            for end in (first, second)
        )
        assert whole.keys() == killed.keys()
        for part, value in whole.items():
            other = killed[part]
            same = same_bits(value, other) if isinstance(value, Tensor) else value == other
            assert same, (key, part)
        weight = "blocks.0.attn.qkv.weight" if name == "vit" else "transformer.h.0.attn.c_attn.weight"
        stored, used = whole[f"/stored/{weight}"], whole[f"/rest/model/{weight}"]
        assert same_bits(stored, used) == (how == "folded"), key
