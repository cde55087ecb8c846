"""The estimate of a probe's memory holds what a process is seen to take."""

from __future__ import annotations

import json

import pytest

from tests.preloaded import run

PROGRAM = """
import json, resource, sys
import torch, timm
from torch.nn import functional
import wellcond as wc

torch.set_num_threads(1)
torch.manual_seed(0)
name, size = json.loads(sys.argv[1])
model = timm.create_model(name, img_size=size, num_classes=10)
images, labels = torch.randn(8, 8, 3, size, size), torch.randint(10, (8, 8))
batches = list(zip(images, labels))

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

wc.recommend(timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32, num_classes=10),
             [(torch.randn(2, 3, 32, 32), labels[i, :2]) for i in range(8)], loss=functional.cross_entropy, seconds=2)
before = peak()
found = wc.recommend(model, batches, loss=functional.cross_entropy, seconds=8, schemes=["conditioned", "fan_in"])
print(json.dumps({"added": peak() - before, "estimate": found.memory, "steps": [r.steps for r in found.probe.rungs]}))
"""


@pytest.mark.long
@pytest.mark.parametrize(("name", "size"), [("vit_small_patch16_224", 128), ("vit_base_patch16_224", 64)])
def test_a_probe_stays_within_its_estimate(name, size, tmp_path):
    done = run(PROGRAM, json.dumps([name, size]), cwd=tmp_path)
    found = json.loads(done.stdout.splitlines()[-1])
    assert 0 < found["added"] <= found["estimate"]
