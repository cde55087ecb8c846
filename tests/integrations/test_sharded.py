"""The page's script for Accelerate with FSDP2, as it stands there, in two real processes."""

from __future__ import annotations

import json
import re
from pathlib import Path

from safetensors.torch import load_file

from tests.preloaded import torchrun
from wellcond.testing import same_bits

ROOT = Path(__file__).parents[2]

# Accelerate shards on accelerators only, though what it calls takes processors too: it is told that these are some.
# Both runs are made by the same two processes, which saves the imports.
DRIVER = """
import os, runpy, sys
import accelerate, torch.distributed as dist
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import FSDPModule

class OnProcessors(accelerate.Accelerator):
    def __init__(self, fsdp_plugin):
        super().__init__(cpu=True)
        self.state.distributed_type, self.state.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
        accelerate.PartialState().distributed_type = DistributedType.FSDP
    def end_training(self):
        self.wait_for_everyone()

accelerate.Accelerator = OnProcessors
script, folder = sys.argv[1:]
for arguments in ([folder], [folder, "--resume"]):
    sys.argv = [script, *arguments]
    names = runpy.run_path(script, run_name="__main__")
    print("sharded", isinstance(names["model"], FSDPModule), flush=True)
    AcceleratorState._reset_state()
dist.barrier()
sys.stdout.flush()
os._exit(0)  # gloo's threads now and then abort the interpreter's own shutdown
"""


def test_accelerate_with_fsdp2_resumes_bit_for_bit(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "integrations.md").read_text()
    (script,) = re.findall(r"<!-- not run: [^\n]+ -->\n```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "driver.py").write_text(DRIVER)
    files = (str(tmp_path / "driver.py"), str(tmp_path / "train.py"), str(tmp_path))
    ran = torchrun(*files, cwd=tmp_path, timeout=300)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.count("True") == 4  # two processes, two runs; their lines may be mixed
    whole, resumed = (load_file(tmp_path / f"{name}.safetensors") for name in ("whole", "resumed"))
    assert whole.keys() == resumed.keys()
    assert [name for name in whole if not same_bits(whole[name], resumed[name])] == []

    def records(name: str) -> list[dict[str, object]]:
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        clock = ("elapsed", "seconds", "overhead")
        return [{key: value for key, value in json.loads(line).items() if key not in clock} for line in lines]

    assert [record["step"] for record in records("whole")] == [step for step in (2, 4, 6, 8) for _ in range(3)]
    # Weights and attention as in the run that was not interrupted; Jacobians begin their round of the heads anew.
    assert [one for one in records("resumed") if one["tier"] != "jacobian"] == [
        one for one in records("whole") if one["tier"] != "jacobian" and one["step"] in (6, 8)
    ]
