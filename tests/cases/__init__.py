"""The lazy table of model cases that feeds every test: real classes, tiny, with D, H, G and d all different."""

from tests.cases.case import Case
from tests.cases.hf import HF_CASES
from tests.cases.timm import TIMM_CASES
from tests.cases.torch import TORCH_CASES

CASES: dict[str, Case] = {case.name: case for case in (*TORCH_CASES, *TIMM_CASES, *HF_CASES)}
