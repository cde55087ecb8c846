"""One thread per test process, so that two fit two cores, and property tests that draw the same cases every time."""

from __future__ import annotations

import torch
from hypothesis import settings

settings.register_profile("wellcond", derandomize=True, deadline=None)
settings.load_profile("wellcond")
torch.set_num_threads(1)
