"""Models for the laboratory's tasks."""

from wellcond.lab.models.build import (
    BUILT_IN,
    check_fits,
    feed,
    inputs_of,
    lab_model,
    monitor_inputs,
    output_of,
)
from wellcond.lab.models.own_model import OwnModel

__all__ = ["BUILT_IN", "OwnModel", "check_fits", "feed", "inputs_of", "lab_model", "monitor_inputs", "output_of"]
