"""The tables of malformed input, taken together."""

from __future__ import annotations

from tests.attention import test_malformed_models, test_malformed_weights, test_registration
from tests.init import (
    test_compositions,
    test_inapplicable,
    test_malformed_arguments,
    test_malformed_schemes,
    test_malformed_teachers,
)

MODULES = [
    *(test_compositions, test_inapplicable, test_malformed_arguments, test_malformed_schemes, test_malformed_teachers),
    *(test_malformed_models, test_malformed_weights, test_registration),
]


def test_there_are_enough_of_them_and_each_has_a_name() -> None:
    names = [bad.name for module in MODULES for bad in module.TABLE]
    assert len(names) >= 110
    assert len(set(names)) == len(names)
