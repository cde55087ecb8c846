"""Contrasts of a recipe: what is expected of two arms, and what would refute it, written down before the runs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from wellcond.lab.recipe.settings import RecipeTable


class Contrast(RecipeTable):
    """One hypothesis about two arms.

    Args:
        question: what it is about, in a word or two.
        hypothesis: in a sentence.
        arm: the one that the hypothesis is about; a control may be named, as in `conditioned, scale only`.
        against: the other.
        claim: `"better"`: the arm is better; `"alike"`: they differ by less than the margin.
        margin: the smallest difference of the metric that matters; of a perplexity, of its logarithm.
    """

    question: str = Field(min_length=1)
    hypothesis: str = Field(min_length=1)
    arm: str
    against: str
    claim: Literal["better", "alike"]
    margin: float = Field(ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _two(self) -> Contrast:
        if self.arm == self.against:
            raise ValueError(f"a contrast is of two arms, got '{self.arm}' twice")
        if self.claim == "alike" and not self.margin:
            raise ValueError("arms are alike within a margin: say it")
        return self
