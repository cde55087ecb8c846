"""Questions that schemes ask about the roles of an attention layer: which it lacks, their shapes, their fans."""

from __future__ import annotations

from wellcond.attention.projection import Projection
from wellcond.attention.view import AttentionLayer


def missing_roles(layer: AttentionLayer, *roles: str) -> str | None:
    """Return in words which of these roles a layer lacks, or None."""
    lacking = [role for role in roles if getattr(layer, role) is None]
    return f"{layer.kind} attention without {' and '.join(lacking)}" if lacking else None


def role_shapes(layer: AttentionLayer, roles: tuple[str, ...]) -> tuple[tuple[int, int, int], ...]:
    """Return `(heads, D, d)` of each of these roles of a layer."""
    return tuple(projection.shape for _, projection in layer.projections(*roles))


def fans(role: str, projection: Projection, granularity: str) -> tuple[int, int]:
    """Return `(fan_in, fan_out)` of a map: of one head, of the role's whole projection, or of the stored matrix.

    An output projection (and an MLP's second matrix) reads its `d` side and writes its `D` side.
    """
    heads, width, d = projection.shape
    if granularity == "matrix":
        near, far = projection.stored_shape
    else:
        near, far = width, d if granularity == "head" else heads * d
    return (far, near) if role in ("output", "mlp_out") else (near, far)
