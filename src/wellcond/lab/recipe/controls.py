"""Controls of an arm: arms of their own that keep part of what its initialisation does, so that the rest shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Control = Literal["scale", "rotation", "sign", "calibrated"]


@dataclass(frozen=True)
class ControlKind:
    """A kind of control: the end of its arms' names, and the scheme that initialises them."""

    suffix: str
    scheme: str | None  # its option `of` is what the arm itself begins with; None: the default, scaled on a batch


CONTROLS: dict[Control, ControlKind] = {
    "scale": ControlKind(", scale only", "scale_matched"),
    "rotation": ControlKind(", rotated", "rotated"),
    "sign": ControlKind(", sign flipped", "flipped"),
    "calibrated": ControlKind(", calibrated default", None),
}


def control_name(arm: str, control: Control) -> str:
    """Return the name of an arm's control.

    >>> control_name("conditioned", "scale")
    'conditioned, scale only'
    """
    return f"{arm}{CONTROLS[control].suffix}"
