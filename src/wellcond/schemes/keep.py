"""Leave everything as it is."""

from __future__ import annotations

from dataclasses import dataclass

from wellcond.schemes.base import Scheme, register


@register("keep", citation="none: the model's own initialisation", published="the baseline of every comparison")
@dataclass(frozen=True)
class Keep(Scheme):
    """Change nothing: the model stays bit-equal."""
