"""Models for the laboratory's tasks."""

from wellcond.lab.models.build import BUILT_IN, check_fits, feed, lab_model, monitor_inputs

__all__ = ["BUILT_IN", "check_fits", "feed", "lab_model", "monitor_inputs"]
