"""Status: a word that says how something stands, with what to do about it."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Status(StrEnum):
    """Base of enumerations whose members are words, also where they are shown, each with its remedy.

    >>> class Sky(Status):
    ...     CLEAR = "clear"
    ...     RAINY = "rainy", "take an umbrella"
    >>> Sky.RAINY, Sky.RAINY == "rainy", Sky("rainy").remedy, f"{Sky.CLEAR}"
    ('rainy', True, 'take an umbrella', 'clear')
    """

    remedy: str  # what to do, in words; empty where nothing is needed

    def __new__(cls, word: str, remedy: str = "") -> Self:
        """Make a member of its word and its remedy."""
        member = str.__new__(cls, word)
        member._value_, member.remedy = word, remedy
        return member

    def __repr__(self) -> str:
        return repr(self.value)
