"""wellcond: know whether a Transformer's attention is well conditioned, and make it so."""

from typing import TYPE_CHECKING

from wellcond import errors, jacobian
from wellcond.attention.find import AttentionLayers, attention_layers, register_attention
from wellcond.attention.view import AttentionLayer, Block, Projection
from wellcond.auditing import Audit, Finding, audit
from wellcond.diagnose.diagnosis import Diagnosis
from wellcond.diagnose.monitor import Monitor
from wellcond.diagnose.run import diagnose
from wellcond.files import load_weights_, save_weights
from wellcond.initialise import init_, plan
from wellcond.mapping.check import PropagationCheck, check_propagation
from wellcond.mapping.locate import LayerPlacement, Placement, locate
from wellcond.models import build_model
from wellcond.planning import Entry, Plan
from wellcond.propagation.collapse import collapse_exponent, critical_residual
from wellcond.propagation.diagram import Diagram, trainability
from wellcond.propagation.propagate import propagate
from wellcond.propagation.stack import Propagation
from wellcond.propagation.verdict import Severity, Thresholds
from wellcond.schemes.base import Scheme, SchemeInfo, schemes
from wellcond.spectral.condition import condition_
from wellcond.spectral.cost import Cost
from wellcond.spectral.guarantee import HeadCondition, Summary
from wellcond.spectral.handle import Conditioning, handles_of
from wellcond.spectral.layernorm import WithoutLayerNorm, without_layernorm
from wellcond.streaming import init_to_files

__all__ = [
    # the exceptions
    "errors",
    # attention in any model
    "AttentionLayer",
    "AttentionLayers",
    "Block",
    "Projection",
    "attention_layers",
    "register_attention",
    # initialise
    "Audit",
    "Entry",
    "Finding",
    "Plan",
    "audit",
    "init_",
    "plan",
    "Scheme",
    "SchemeInfo",
    "schemes",
    # condition
    "Conditioning",
    "Cost",
    "HeadCondition",
    "Summary",
    "WithoutLayerNorm",
    "condition_",
    "handles_of",
    "without_layernorm",
    # diagnose
    "Diagnosis",
    "Monitor",
    "Severity",
    "diagnose",
    "jacobian",
    # predict
    "Diagram",
    "Propagation",
    "PropagationCheck",
    "LayerPlacement",
    "Placement",
    "Thresholds",
    "check_propagation",
    "collapse_exponent",
    "critical_residual",
    "locate",
    "propagate",
    "trainability",
    # models by name, weights in files
    "build_model",
    "init_to_files",
    "load_weights_",
    "save_weights",
]

__version__: str


def __dir__() -> list[str]:
    """Public names only: not the modules that were imported to make them."""
    return sorted([*__all__, "__version__"])


if not TYPE_CHECKING:  # for a type checker a name that is not there stays an error

    def __getattr__(name: str) -> str:
        """Look up the version when it is asked for, so that a copy that is not installed can be imported."""
        if name != "__version__":
            raise AttributeError(f"module 'wellcond' has no attribute {name!r}")
        from importlib.metadata import version

        return version("wellcond")
