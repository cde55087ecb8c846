r"""The exact Jacobian J of one attention head with respect to its weights, and its condition number.

A head reads tokens X, `(N, D)`, and writes $A = \operatorname{softmax}(s\, X W_Q (X W_K)^T)\, X W_V$, `(N, d_v)`. Its
Jacobian is $J_W[(n, a), (i, b)] = \partial A_{na} / \partial W_{ib}$, for W_Q and W_K, `(D, d)`, and W_V, `(D, d_v)`.
Two conventions put the three blocks together:

- `"side-by-side"`: $J = [J_Q\ J_K\ J_V]$, `(N·d_v, 2·D·d + D·d_v)`, the derivative in the usual sense;
- `"vertical"`: the same blocks one below another, `(3·N·d_v, D·d)`, which the papers bound.

κ(J) is σ_max ÷ σ at the structural rank. Biases are constants; several sequences add rows.

>>> import torch, wellcond as wc
>>> _ = torch.manual_seed(0)
>>> head = wc.jacobian.softmax_head(torch.randn(6, 8), *torch.randn(3, 8, 4))
>>> wc.jacobian.spectrum(head).status
'ok'
"""

from wellcond.jacobian.condition_number import spectrum
from wellcond.jacobian.head import Head, softmax_head
from wellcond.jacobian.head_jacobian import Estimate, estimate, matrix, singular_values, tangent_kernel
from wellcond.jacobian.layer_heads import head_of, heads_of
from wellcond.jacobian.papers_bound import bound, softmax_condition
from wellcond.jacobian.result import Bound, ConditionNumber, SpectrumStatus

__all__ = [
    "Bound",
    "ConditionNumber",
    "Estimate",
    "Head",
    "SpectrumStatus",
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
