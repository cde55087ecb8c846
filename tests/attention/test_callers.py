"""What callers have switched on around a call: inference mode, autocast."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from tests.attention.strange.deceptive import HeadTemperatures, MaskedAfter
from tests.attention.strange.separate import Cosine

MODELS = {"known": lambda: nn.TransformerEncoderLayer(12, 3, 24, batch_first=True)}
MODELS |= {"guessed": HeadTemperatures, "cosine": Cosine, "nameless": MaskedAfter}
BATCH = torch.randn(2, 6, 12, generator=torch.Generator().manual_seed(0))


def model_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]().eval()


def numbers(model: nn.Module, batch: Tensor) -> list[float]:
    (layer,) = wc.diagnose(model, batch, progress=False).layers
    return [x for head in layer.heads for x in (head.entropy, layer.jacobian[head.head].condition.value)]


@pytest.mark.parametrize("name", MODELS)
def test_inference_mode(name: str) -> None:
    model = model_of(name)
    expected = numbers(model, BATCH)
    with torch.inference_mode():
        found = numbers(model, BATCH.clone())  # made in inference mode
        assert torch.is_inference_mode_enabled()
        (layer,) = wc.attention_layers(model, BATCH)
        head = wc.jacobian.head_of(layer, BATCH)
        assert layer.verify(BATCH)
        assert float(wc.jacobian.singular_values(head)[0]) > 0
    assert found == expected


@pytest.mark.parametrize("name", MODELS)
def test_autocast(name: str) -> None:
    """As if autocast were in the model's forward; entropies are not in its precision."""

    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model_of(name)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.model(x)

    expected, exact = numbers(Inside(), BATCH), numbers(model_of(name), BATCH)
    with torch.autocast("cpu", torch.bfloat16):
        found = numbers(model_of(name), BATCH)
        assert torch.is_autocast_enabled("cpu")
    assert found == pytest.approx(expected, rel=1e-6)
    assert found[::2] == pytest.approx(exact[::2], abs=5e-3)  # eight bits of tokens
    assert len({round(x, 7) for x in found[::2]}) == len(found) // 2
