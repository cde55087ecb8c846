"""Optimizers that know the heads of attention: `wellcond.optim.Muon`, whole or per head, and what goes where.

>>> import torch, wellcond as wc
>>> model = torch.nn.TransformerEncoderLayer(8, 2, 16)
>>> [len(group["params"]) for group in wc.optim.Muon(model, lr=0.02, per_head=True).param_groups]
[4, 8]
"""

from wellcond.optim.assignment import Assignment, assign
from wellcond.optim.block_check import BlockCheck, check_blocks
from wellcond.optim.muon import Muon
from wellcond.optim.orthogonality_penalty import OrthogonalityPenalty

__all__ = ["Assignment", "BlockCheck", "Muon", "OrthogonalityPenalty", "assign", "check_blocks"]
