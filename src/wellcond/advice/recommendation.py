"""The result of `wc.recommend`: what the model is, what is advised and why, with every candidate and its fate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import nn

from wellcond._core.argument_types import File, Seed
from wellcond._core.atomic import also_written
from wellcond._core.checked import checked
from wellcond._core.json_safe import to_json
from wellcond._core.result_table import ResultTable, Tabular
from wellcond.advice.candidates import Candidate
from wellcond.advice.large_stream import LARGE_STREAM
from wellcond.advice.model_state import SHARP, ModelState
from wellcond.advice.prediction import Prediction
from wellcond.advice.probe import ProbeResult
from wellcond.advice.verdict import Difference
from wellcond.errors import WellcondError
from wellcond.inputs.objective import moved

SCHEMA = 1
MOST_NAMED = 6  # candidates of one fate that are named below the table


@dataclass(frozen=True, eq=False)
class Advice:
    """One candidate in a recommendation: what became of it.

    Args:
        candidate: what it is.
        outcome: `"advised"`, `"keep"`, `"finalist"`, `"probed"`, `"not tried"`, `"ruled out"` or `"not applicable"`.
        reason: why, in words.
        prediction: of the theory; None where it has none.
        loss: mean after the last steps of the last rung that it was in; None if it was in none.
        steps: of that rung.
        difference: to the model's own weights, in the last rung.

    >>> Advice(Candidate("conditioned"), "probed", "").code
    'wc.init_(model, "conditioned", seed=0)'
    """

    candidate: Candidate
    outcome: str
    reason: str
    prediction: Prediction | None = None
    loss: float | None = None
    steps: int | None = None
    difference: Difference | None = None
    _inputs: Any = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """What it is called."""
        return self.candidate.name

    @property
    def code(self) -> str:
        """The lines of Python that apply it."""
        return self.candidate.code()

    @checked
    def apply_(self, model: nn.Module, *, seed: Seed = 0) -> None:
        """Initialise a model so, all or nothing; a calibration takes the batch that was judged by."""
        first = next(model.parameters(), torch.zeros(0))
        self.candidate.apply_(model, moved(self._inputs, first), seed)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and strings."""
        return {
            "name": self.name,
            "outcome": self.outcome,
            "reason": self.reason,
            "code": self.code,
            "citation": self.candidate.citation,
            "loss": self.loss,
            "steps": self.steps,
            "prediction": self.prediction and asdict(self.prediction),
            "difference": self.difference and asdict(self.difference) | {"better": self.difference.better},
        }


@dataclass(frozen=True, eq=False)
class Recommendation(Tabular):
    """What `wc.recommend` found; prints as a few lines and a table.

    Args:
        model: its class.
        state: what was measured of it.
        ranking: all candidates, best first: finalists, those that were probed, then the others.
        summary: what to do, in a sentence or two.
        unpredicted: why the theory says nothing, or not of all layers.
        probe: what was trained.
        memory: bytes that the probe was estimated to take.
        settings: what was asked for.

    >>> import wellcond as wc
    >>> _ = torch.manual_seed(0)
    >>> model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
    >>> batches = [(x, x.flip(1)) for x in torch.randn(8, 4, 6, 16)]
    >>> found = wc.recommend(model, batches, loss=nn.functional.mse_loss, seconds=0, schemes=["fan_in"])
    >>> [one.name for one in found.ranking], found.own.code
    (['yours', 'yours + calibrated', 'fan_in', 'fan_in + calibrated'], '# nothing to do')
    """

    model: str
    state: ModelState
    ranking: tuple[Advice, ...]
    summary: str
    unpredicted: str
    probe: ProbeResult
    memory: int
    settings: Mapping[str, Any]
    _stack: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)  # what its diagram is drawn for

    @property
    def best(self) -> Advice:
        """What is advised: the model's own weights, unless something was shown to be better."""
        return next((one for one in self.ranking if one.outcome == "advised"), self.own)

    @property
    def own(self) -> Advice:
        """The model's own weights."""
        return next(one for one in self.ranking if one.candidate.is_own)

    def __getitem__(self, name: str) -> Advice:
        for one in self.ranking:
            if one.name == name:
                return one
        raise WellcondError(f"there is no candidate '{name}'; there are {', '.join(one.name for one in self.ranking)}")

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and strings."""
        last = self.probe.last
        return {
            "schema": SCHEMA,
            "model": self.model,
            "summary": self.summary,
            "findings": [asdict(finding) for finding in self.state.findings],
            "state": {
                "layers": {name: asdict(scale) for name, scale in self.state.scales.items()},
                "ranges": self.state.ranges(),
                "much": {"beta": SHARP, "stream": LARGE_STREAM},
                "entry": self.state.entry and asdict(self.state.entry),
                "unknown": self.state.unknown,
            },
            "own": self.own.name,
            "best": self.best.name,
            "code": self.best.code,
            "ranking": [one.to_dict() for one in self.ranking],
            "unpredicted": self.unpredicted,
            "probe": {
                "seconds": self.probe.seconds,
                "note": self.probe.note,
                "rungs": [_rung(rung) for rung in self.probe.rungs],
                "last": last and _rung(last),
            },
            "memory": self.memory,
            "settings": dict(self.settings),
        }

    @checked
    def to_json(self, path: File | None = None) -> str:
        """Return the recommendation as a JSON document, also written to a file if a path is given."""
        return also_written(to_json(self.to_dict()), path)

    @checked
    def to_html(self, path: File | None = None) -> str:
        """Return one self-contained page that works offline, also written to a file if a path is given."""
        from wellcond.advice.diagram import advice_diagram
        from wellcond.html.recommendation_page import recommendation_page

        diagram, reason = advice_diagram(self._stack, self.ranking)
        shown = {"diagram": diagram, "no_diagram": self.unpredicted or reason}
        return also_written(recommendation_page(self.to_dict() | shown), path)

    def records(self) -> list[dict[str, Any]]:
        """One row per candidate."""
        return [_flat(one) for one in self.ranking]

    def _result_table(self) -> ResultTable:
        """What was tried, and below it what was not."""
        tried = [one for one in self.ranking if one.loss is not None]
        shown = tried or [one for one in self.ranking if one.prediction is not None]
        rows = [
            [one.name, *_predicted(one.prediction), _loss(one), _interval(one.difference), one.outcome] for one in shown
        ]
        header = ["candidate", "β", "g", "similar", "loss", "− yours", "outcome"]
        named = ", ".join(finding.what for finding in self.state.findings)
        findings = [f"Out of line: {named}."] if named else []
        findings += [f"- {finding.text}" for finding in self.state.findings]
        notes = [self.best.code] if not self.best.candidate.is_own else []
        for outcome in dict.fromkeys(one.outcome for one in self.ranking if one not in shown):
            names = [one.name for one in self.ranking if one not in shown and one.outcome == outcome]
            more = ", …" if len(names) > MOST_NAMED else ""
            notes.append(f"{outcome} ({len(names)}): {', '.join(names[:MOST_NAMED])}{more}")
        notes += [self.probe.note] if self.probe.note else []
        notes += [f"no prediction: {self.unpredicted}"] if self.unpredicted else []
        return ResultTable(header, rows, "\n".join([*findings, self.summary]), notes)


def _flat(one: Advice) -> dict[str, Any]:
    found, predicted = one.difference, one.prediction
    low, high = (found and found.interval) or (None, None)
    row: dict[str, Any] = {"candidate": one.name, "outcome": one.outcome, "loss": one.loss}
    row |= {"difference": found and found.mean, "low": low, "high": high, "p_holm": found and found.p_holm}
    row |= {"beta": predicted and predicted.beta[0], "branch": predicted and predicted.branch[0]}
    return row | {"similarity": predicted and predicted.similarity, "reason": one.reason}


def _rung(rung: Any) -> dict[str, Any]:
    return asdict(replace(rung, seeds=list(rung.seeds)))


def _predicted(found: Prediction | None) -> list[str]:
    if found is None:
        return ["", "", ""]
    return [_range(found.beta), _range(found.branch), f"{found.similarity:.2f}"]


def _range(values: tuple[float, ...]) -> str:
    low, high = f"{values[0]:.2g}", f"{values[-1]:.2g}"
    return low if low == high else f"{low}…{high}"


def _loss(one: Advice) -> str:
    return "" if one.loss is None else f"{one.loss:.4g} at {one.steps}"


def _interval(found: Difference | None) -> str:
    if found is None:
        return ""
    if found.interval is None:
        return f"{found.mean:+.2g}"
    return f"{found.mean:+.2g} [{found.interval[0]:+.2g}, {found.interval[1]:+.2g}]"
