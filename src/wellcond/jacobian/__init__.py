"""The exact attention Jacobian: closed form, spectrum to a stated precision, the papers' bound.

>>> import torch, wellcond as wc
>>> _ = torch.manual_seed(0)
>>> head = wc.jacobian.softmax_head(torch.randn(6, 8), *torch.randn(3, 8, 4))
>>> wc.jacobian.spectrum(head).status
'ok'
"""

from wellcond.jacobian.bound import bound, softmax_condition
from wellcond.jacobian.estimate import Estimate
from wellcond.jacobian.head import Head, head_of, heads_of, softmax_head
from wellcond.jacobian.result import Bound, ConditionNumber
from wellcond.jacobian.spectrum import estimate, matrix, singular_values, spectrum, tangent_kernel

__all__ = [
    "Bound",
    "ConditionNumber",
    "Estimate",
    "Head",
    "bound",
    "estimate",
    "head_of",
    "heads_of",
    "matrix",
    "singular_values",
    "softmax_condition",
    "softmax_head",
    "spectrum",
    "tangent_kernel",
]
