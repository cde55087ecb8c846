"""`wc.Placement`, the result of `wc.locate`: each layer's numbers from weights and on a batch, with verdicts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from wellcond._core.argument_types import File
from wellcond._core.checked import checked
from wellcond._core.result_table import Graded, ResultTable, Tabular
from wellcond._core.terminal import prose
from wellcond.diagnosis.records import Concern
from wellcond.diagnosis.verdicts import by_kind, common_remedy, gravest_first
from wellcond.placement.mean_block import mean_block
from wellcond.placement.notes import closing_notes
from wellcond.propagation.block import Architecture
from wellcond.propagation.diagram import Diagram, Resolution
from wellcond.propagation.thresholds import Severity, Thresholds
from wellcond.propagation.trainability import trainability


@dataclass(frozen=True)
class LayerPlacement:
    """One layer's place: `…_weights` from its weights at the tokens' measured size and similarity, `…_batch` measured.

    Args:
        layer: name of the attention layer.
        block: its place in the stack, from 0.
        norm: where its block's norms stand: `"pre"`, `"post"` or `"none"`.
        tokens: T, visible columns of a row.
        beta_weights: β = σ_a ÷ √log T, the query's bias included; None where weights do not set it.
        beta_batch: the same, measured.
        self_bias_weights: tr(W_Q W_Kᵀ) times the logits' scale, mean over heads: draws attention to the own token.
        shift_weights: of the own logit against the others.
        shift_batch: the same, measured.
        value_gain: of what differs between tokens, of what they have in common, and trace of W_V W_O ÷ D.
        mlp_gain: of the two matrices (the gate's, in a gated MLP).
        gate_gain: of the matrix that the gate multiplies, if there is one.
        bias: mean squares of what biases add: after attention, to the MLP's hidden layer, after the MLP.
        head_dim_effective: d_eff, the dimensions in which query norms scatter.
        cosine: mean over pairs of the stream's tokens before the block; `cosine_read` over those that attention reads.
        size: mean square of the stream's tokens before the block.
        entropy_predicted: of the rows ÷ log T.
        entropy_batch: the same, measured.
        participation_predicted: Σ p².
        participation_batch: the same, measured.
        own_predicted: weight of the own token.
        own_batch: the same, measured.
        discrepancy: β on the batch ÷ β from weights − 1.
        notes: what to know of the layer.
        verdict: what is wrong with it on the batch, in a word or three each, gravest first; empty if nothing is.
        severity: of the gravest; None if nothing is wrong.
        concerns: the same with numbers, advice and code: those that `wc.diagnose` has of its attention.

    >>> import torch, wellcond as wc
    >>> _ = torch.manual_seed(0)
    >>> layer = wc.locate(torch.nn.TransformerEncoderLayer(64, 2, batch_first=True), torch.randn(4, 32, 64)).layers[0]
    >>> layer.norm, layer.tokens, [round(gain, 1) for gain in layer.mlp_gain]
    ('post', 32.0, [0.3, 0.3])
    """

    layer: str
    block: int
    norm: str
    tokens: float
    beta_weights: float | None
    beta_batch: float | None
    self_bias_weights: float | None
    shift_weights: float | None
    shift_batch: float
    value_gain: tuple[float, float, float]
    mlp_gain: tuple[float, float]
    gate_gain: float | None
    bias: tuple[float, float, float]
    head_dim_effective: float | None
    cosine: float
    cosine_read: float
    size: float
    entropy_predicted: float
    entropy_batch: float
    participation_predicted: float
    participation_batch: float
    own_predicted: float
    own_batch: float
    discrepancy: float | None
    notes: tuple[str, ...]
    verdict: str = ""
    severity: Severity | None = None
    concerns: tuple[Concern, ...] = ()


@dataclass(frozen=True)
class Placement(Tabular):
    """The place of a model on its trainability diagram, layer by layer.

    Args:
        layers: those that the theory covers, in order.
        skipped: why it does not cover the others, by name.
        notes: what to know, in words.
        thresholds: of the verdicts.
        blocks: the layers' blocks in the terms of the recursion, for the diagram.

    >>> import torch, wellcond as wc
    >>> _ = torch.manual_seed(0)
    >>> placement = wc.locate(torch.nn.TransformerEncoderLayer(64, 2, batch_first=True), torch.randn(4, 32, 64))
    >>> layer, dia = placement.layers[0], placement.diagram(resolution=9)
    >>> layer.verdict or "ok", dia.verdict(beta=layer.beta_weights, value_gain=layer.value_gain)
    ('ok', 'trainable')
    """

    layers: tuple[LayerPlacement, ...]
    skipped: dict[str, str] = field(hash=False)
    notes: tuple[str, ...]
    thresholds: Thresholds = field(default_factory=Thresholds)
    blocks: tuple[Architecture, ...] = field(default=(), repr=False, compare=False)

    @property
    def concerns(self) -> list[Concern]:
        """Return everything that is wrong with the attention of the layers, gravest first."""
        return gravest_first([concern for layer in self.layers for concern in layer.concerns])

    def to_dict(self) -> dict[str, Any]:
        """Return everything as numbers and strings."""
        return {
            "layers": [asdict(layer) for layer in self.layers],
            "skipped": self.skipped,
            "notes": self.notes,
            "thresholds": asdict(self.thresholds),
        }

    @checked
    def diagram(self, resolution: Resolution = 100) -> Diagram:
        """Draw the trainability diagram of a stack of their mean block, over a plane that holds all layers.

        The sharpness β of attention against the gain of its branch.
        """
        layers = self.layers
        betas = [beta for layer in layers for beta in (layer.beta_weights, layer.beta_batch) if beta]
        gains = [layer.value_gain[0] for layer in layers if layer.value_gain[0] > 0]
        return trainability(
            ("beta", min([0.05, *(0.8 * beta for beta in betas)]), max([4.0, *(1.3 * beta for beta in betas)]), "log"),
            ("value_gain", min([0.01, *(0.5 * g for g in gains)]), max([2.0, *(2 * g for g in gains)]), "log"),
            resolution=resolution,
            thresholds=self.thresholds,
            **mean_block(self.blocks, layers[0].cosine_read),
        )

    @checked
    def plot(self, path: File | None = None) -> Any:
        """Draw the layers on their diagram, predicted and measured, as a matplotlib figure; also written to a file."""
        from wellcond.plots.placement import located_figure

        return located_figure(self, path)

    def records(self) -> list[dict[str, Any]]:
        """Return one row per layer and quantity: `layer`, `quantity`, `predicted`, `measured`."""
        return [
            {"layer": layer.layer, "quantity": quantity, "predicted": predicted, "measured": measured}
            for layer in self.layers
            for quantity, predicted, measured in (
                ("beta", layer.beta_weights, layer.beta_batch),
                ("shift", layer.shift_weights, layer.shift_batch),
                ("entropy", layer.entropy_predicted, layer.entropy_batch),
                ("participation", layer.participation_predicted, layer.participation_batch),
                ("own", layer.own_predicted, layer.own_batch),
            )
        ]

    def _result_table(self) -> ResultTable:
        """Predicted / measured, layer by layer, the gravest first, then what to do and what to know."""
        layers = gravest_first(self.layers)
        rows = [
            [
                shorten_name(layer.layer),
                f"{layer.tokens:.0f}",
                f"{layer.cosine:.2f}",
                _pair(layer.beta_weights, layer.beta_batch),
                _pair(layer.shift_weights, layer.shift_batch),
                _pair(layer.entropy_predicted, layer.entropy_batch),
                _pair(layer.participation_predicted, layer.participation_batch),
                f"{layer.value_gain[0]:.3g}",
                layer.verdict or "ok",
            ]
            for layer in layers
        ]
        header = ["layer", "T", "cosine", "β", "shift", "entropy", "Σ p²", "gain", "verdict"]
        said = [
            Graded(c.severity, f"{prose(f'{c.severity}: {c.where}: {c.text}:')}\n  {common_remedy([c, *others])}")
            for c, *others in by_kind(self.concerns)
        ]
        notes: list[str | Graded] = [*said, closing_notes(self.notes, self.skipped)]
        return ResultTable(header, rows, "from weights / on the batch", notes, [layer.severity for layer in layers])


def _pair(predicted: float | None, measured: float | None) -> str:
    return " / ".join("–" if x is None else f"{x:.3f}" if abs(x) < 10 else f"{x:.4g}" for x in (predicted, measured))


def shorten_name(name: str, room: int = 24) -> str:
    """Cut a layer's name to fit a column: its end says more than its start."""
    return name if len(name) <= room else "…" + name[1 - room :]
