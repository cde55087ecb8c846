"""Every exception is what a Python programmer would catch, and says the same after a pickle."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import wellcond as wc
from wellcond import errors

BUILT_IN = (ValueError, TypeError, RuntimeError, LookupError, OSError)
OURS = [
    thing
    for thing in vars(errors).values()
    if isinstance(thing, type) and issubclass(thing, errors.WellcondError) and thing is not errors.WellcondError
]


@pytest.mark.parametrize("error", OURS, ids=lambda error: error.__name__)
def test_an_error_is_a_built_in_and_its_message_stays(error: type[errors.WellcondError]) -> None:
    assert issubclass(error, BUILT_IN)
    base = next(kind for kind in BUILT_IN if issubclass(error, kind))
    assert f"`{base.__name__}`" in (error.__doc__ or "")
    words = "there is no layer 'a\x1b[2J'; there are: 'b'"
    made = error(words)
    assert made.args == (words,)
    assert str(made) == "there is no layer 'a\\x1b[2J'; there are: 'b'"
    for again in (pickle.loads(pickle.dumps(made)), copy.copy(made)):
        assert type(again) is error
        assert again.args == made.args
        assert str(again) == str(made)
    with pytest.raises(base) as caught:
        raise made
    assert caught.value is made


def test_built_ins_catch_what_functions_refuse() -> None:
    model = nn.MultiheadAttention(8, 2)
    with pytest.raises(ValueError, match="no scheme 'conditiond'"):
        wc.init_(model, "conditiond")
    with pytest.raises(LookupError, match="no attention layer matches 'decoder'"):
        wc.init_(model, "conditioned", layers="decoder")
    with pytest.raises(ValueError, match="has no attention layer"):
        wc.init_(nn.Linear(4, 4), "conditioned")
    with pytest.raises(TypeError, match="seed is a whole number"):
        wc.init_(model, "conditioned", seed="zero")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="there is no file or directory"):
        wc.load_weights_(model, "there-is-none.safetensors")
    with pytest.raises(RuntimeError, match="cannot be run on"):
        wc.diagnose(nn.TransformerEncoderLayer(8, 2), torch.randn(2, 3, 5))
