"""Model types that read series of numbers."""

from __future__ import annotations

from typing import Any

import torch

from tests.census.batch import Batch
from tests.census.overrides.override import Override

SHORT = {"prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2, 3]}


def past_and_future(b: Batch) -> dict[str, Any]:
    """Past and future of a series, with no features of time."""
    past, ahead = 8 + 3, 4
    features = int(b.config.num_time_features)
    return {
        "past_values": b.random(2, past),
        "past_time_features": b.random(2, past, features),
        "past_observed_mask": torch.ones(2, past),
        "future_values": b.random(2, ahead),
        "future_time_features": b.random(2, ahead, features),
    }


SERIES: dict[str, Override] = {
    "autoformer": Override({**SHORT, "label_length": 4, "num_time_features": 1}, inputs=past_and_future),
    "informer": Override({**SHORT, "num_time_features": 1}, inputs=past_and_future),
    "time_series_transformer": Override({**SHORT, "num_time_features": 1}, inputs=past_and_future),
    "timesfm": Override(
        inputs=lambda b: {
            "past_values": b.random(2, 64),
            "past_values_padding": torch.zeros(2, 64, dtype=torch.long),
            "freq": torch.zeros(2, 1, dtype=torch.long),
        }
    ),
    "timesfm2_5": Override(inputs=lambda b: {"past_values": [b.random(64), b.random(64)]}),
}
