"""wellcond: know whether a Transformer's attention is well conditioned, and make it so."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the one list of public names; `__getattr__` imports each from where this says it is
    from wellcond import errors as errors
    from wellcond import jacobian as jacobian
    from wellcond import optim as optim
    from wellcond.advice.api import recommend as recommend
    from wellcond.advice.recommendation import Advice as Advice
    from wellcond.advice.recommendation import Recommendation as Recommendation
    from wellcond.attention.find import attention_layers as attention_layers
    from wellcond.attention.find import register_attention as register_attention
    from wellcond.attention.head_blocks import HeadBlock as HeadBlock
    from wellcond.attention.head_blocks import HeadBlocks as HeadBlocks
    from wellcond.attention.head_partition import head_blocks as head_blocks
    from wellcond.attention.layers import AttentionLayers as AttentionLayers
    from wellcond.attention.projection import Projection as Projection
    from wellcond.attention.view import AttentionLayer as AttentionLayer
    from wellcond.attention.view import ResidualBlock as ResidualBlock
    from wellcond.checkpoint.files import load_weights_ as load_weights_
    from wellcond.checkpoint.files import save_weights as save_weights
    from wellcond.conditioning.api import condition_ as condition_
    from wellcond.conditioning.cost import ConditioningCost as ConditioningCost
    from wellcond.conditioning.existing_handles import handles_of as handles_of
    from wellcond.conditioning.guarantee import ConditioningSummary as ConditioningSummary
    from wellcond.conditioning.guarantee import GuaranteeStatus as GuaranteeStatus
    from wellcond.conditioning.guarantee import HeadCondition as HeadCondition
    from wellcond.conditioning.handle import Conditioning as Conditioning
    from wellcond.conditioning.handle import ConditioningMode as ConditioningMode
    from wellcond.conditioning.layernorm import WithoutLayerNorm as WithoutLayerNorm
    from wellcond.conditioning.layernorm import without_layernorm as without_layernorm
    from wellcond.control.api import control_ as control_
    from wellcond.control.control import Control as Control
    from wellcond.control.log import ControlLog as ControlLog
    from wellcond.control.log import ControlRecord as ControlRecord
    from wellcond.diagnosis.api import diagnose as diagnose
    from wellcond.diagnosis.monitor import Monitor as Monitor
    from wellcond.diagnosis.monitor import MonitorTier as MonitorTier
    from wellcond.diagnosis.result import Diagnosis as Diagnosis
    from wellcond.init.api import init_ as init_
    from wellcond.init.api import plan as plan
    from wellcond.init.audit import Audit as Audit
    from wellcond.init.audit import AuditFinding as AuditFinding
    from wellcond.init.audit import audit as audit
    from wellcond.init.plan import Plan as Plan
    from wellcond.init.plan import PlanEntry as PlanEntry
    from wellcond.init.registry import schemes as schemes
    from wellcond.init.scheme import OnInapplicable as OnInapplicable
    from wellcond.init.scheme import Scheme as Scheme
    from wellcond.init.scheme_info import SchemeInfo as SchemeInfo
    from wellcond.init.streaming import init_to_files as init_to_files
    from wellcond.inputs.models import build_model as build_model
    from wellcond.jacobian.result import JacobianConvention as JacobianConvention
    from wellcond.jacobian.result import JacobianMethod as JacobianMethod
    from wellcond.jacobian.result import SpectrumStatus as SpectrumStatus
    from wellcond.lab.compare_own import compare as compare
    from wellcond.placement.check import PropagationCheck as PropagationCheck
    from wellcond.placement.check import check_propagation as check_propagation
    from wellcond.placement.locate import locate as locate
    from wellcond.placement.result import LayerPlacement as LayerPlacement
    from wellcond.placement.result import Placement as Placement
    from wellcond.propagation.collapse import collapse_exponent as collapse_exponent
    from wellcond.propagation.collapse import critical_residual as critical_residual
    from wellcond.propagation.diagram import Diagram as Diagram
    from wellcond.propagation.propagate import propagate as propagate
    from wellcond.propagation.stack import Propagation as Propagation
    from wellcond.propagation.thresholds import ConcernKind as ConcernKind
    from wellcond.propagation.thresholds import Severity as Severity
    from wellcond.propagation.thresholds import Thresholds as Thresholds
    from wellcond.propagation.trainability import trainability as trainability
    from wellcond.scale.balance import balance_ as balance_
    from wellcond.scale.balance_result import Balance as Balance
    from wellcond.scale.calibrate import calibrate_ as calibrate_
    from wellcond.scale.calibration_result import Calibration as Calibration

    __version__: str
else:

    def _modules() -> dict[str, str]:
        """Public name → the module it is defined in, read from the imports above."""
        import ast

        block = next(node for node in ast.parse(__loader__.get_source(__name__)).body if isinstance(node, ast.If))
        lines = [node for node in block.body if isinstance(node, ast.ImportFrom)]
        return {alias.name: node.module for node in lines for alias in node.names}

    _MODULES = _modules()
    __all__ = list(_MODULES)

    def __getattr__(name: str) -> object:
        """Import a public name when it is first asked for: `import wellcond` alone does not import torch."""
        from importlib import import_module, metadata

        if name == "__version__":  # so that a copy that is not installed can be imported
            return metadata.version("wellcond")
        if name not in _MODULES:
            raise AttributeError(f"module 'wellcond' has no attribute {name!r}")
        module = _MODULES[name]
        value = import_module(f"wellcond.{name}") if module == "wellcond" else getattr(import_module(module), name)
        return globals().setdefault(name, value)

    def __dir__() -> list[str]:
        """Public names only: not the modules that were imported to make them."""
        return sorted([*_MODULES, "__version__"])
