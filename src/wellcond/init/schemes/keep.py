"""The baseline: leave everything as it is."""

from __future__ import annotations

from dataclasses import dataclass

from wellcond.init.registry import register_scheme
from wellcond.init.scheme import Scheme


@register_scheme("keep", citation="none: the model's own initialisation", published="the baseline of every comparison")
@dataclass(frozen=True)
class Keep(Scheme):
    """Change nothing: the model stays bit-equal."""
