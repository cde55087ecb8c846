"""Records of what was measured, as frozen dataclasses of plain numbers. `docs/diagnose.md` has the JSON schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wellcond._core.safe_text import visible
from wellcond.jacobian.result import Bound, ConditionNumber
from wellcond.propagation.thresholds import ConcernKind, Severity

REFUSED = "refused"  # how the note of a layer begins whose attention nothing has rebuilt


@dataclass(frozen=True)
class Spectrum:
    """Singular values of one weight.

    Args:
        condition: κ = σ_max ÷ σ_min; None where the matrix is rank deficient.
        sigma_max: the largest singular value.
        sigma_min: the smallest of the min(D, d).
        values: all of them, largest first; empty if not kept.
    """

    condition: float | None
    sigma_max: float
    sigma_min: float
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class WeightRecord:
    """One head of one role, or the matrix of all heads together.

    Args:
        role: `"query"`, `"key"`, `"value"` or `"output"`.
        head: its index; None for all heads side by side, `(D, heads · d)`.
        effective: what the layer multiplies by: W, or W + C while conditioning is on.
        trained: W alone while conditioning is on; None where nothing is added.
        scaled: `effective` with the gain of the norm before the layer and of the QK-norm; None where there is neither.
        gradient: Frobenius norm of the loss's gradient; None without a loss.
        update: spectral entropy of what training changed since the last record, from 0 to 1; None without one.
        update_trend: that ÷ its median over earlier records; None where there are too few.
    """

    role: str
    head: int | None
    effective: Spectrum
    trained: Spectrum | None = None
    scaled: Spectrum | None = None
    gradient: float | None = None
    update: float | None = None
    update_trend: float | None = None


@dataclass(frozen=True)
class HeadRecord:
    """Attention of one query head on this batch; None where the layer has no softmax over tokens.

    Args:
        head: its index.
        entropy: mean over rows of the entropy ÷ log of the number of visible keys, from 0 (one-hot) to 1 (uniform).
        participation: mean over rows of Σ p², from 1/N (uniform) to 1 (one-hot).
        max_logit: the largest |logit|, masks left out.
        verdict: what is wrong and what to do about it; empty if nothing is.
        code: the verdict in a word: `"entropy collapse"`, `"uniform"`, `"ill conditioned"`…; empty if nothing is wrong.
        own: mean over rows of the weight of the own token; None where queries and keys read different tokens.
        severity: of the gravest that is wrong; None if nothing is.
        remedy: a line of code against that, given `model`.
        beta: sharpness β, mean over rows of the logits' standard deviation ÷ √(2 log of visible keys).
    """

    head: int
    entropy: float | None
    participation: float | None
    max_logit: float | None
    verdict: str = ""
    code: str = ""
    own: float | None = None
    severity: Severity | None = None
    remedy: str = ""
    beta: float | None = None


@dataclass(frozen=True)
class ProductRecord:
    """W_Q W_Kᵀ or W_V W_O of one query head, which stay the same in whatever coordinates its factors are written.

    Args:
        pair: `"qk"` or `"vo"`.
        head: its index.
        spectrum: of the product, min(D, d) singular values.
    """

    pair: str
    head: int
    spectrum: Spectrum


@dataclass(frozen=True)
class JacobianRecord:
    """The exact Jacobian of one head's output with respect to its W_Q, W_K and W_V.

    Args:
        head: its index.
        condition: κ of the three blocks side by side.
        bound: the papers' bound; a bound for the vertical convention only, a reference for `condition`.
        ratio: measured κ ÷ bound, vertical if that was measured.
        rows: how many query rows were measured.
        total_rows: how many there are in the sequences that were measured.
        spectrum: all singular values, largest first; empty unless asked for.
    """

    head: int
    condition: ConditionNumber
    bound: Bound | None
    ratio: float | None
    rows: int
    total_rows: int
    spectrum: tuple[float, ...] = ()


@dataclass(frozen=True)
class AppliedRecord:
    """A conditioning that is active in a layer.

    Args:
        method: as given to `wc.condition_`.
        mode: `"folded"` or `"live"`.
        strength: by role.
    """

    method: str
    mode: str
    strength: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Concern:
    """One thing that is wrong in one layer; prints as a line that ends with code.

    Args:
        layer: name of the layer.
        heads: which of its heads; empty for the layer as a whole.
        code: in a word or three.
        severity: how grave it is.
        text: with the number, and what to do.
        remedy: a line of code that does it, given `model`.

    >>> print(Concern("attn", (0, 2), ConcernKind.UNIFORM, Severity.NOTE, "uniform; enlarge W_Q", "wc.init_(model)"))
    attn heads 0, 2: uniform; enlarge W_Q: wc.init_(model)
    """

    layer: str
    heads: tuple[int, ...]
    code: ConcernKind
    severity: Severity
    text: str
    remedy: str

    @property
    def where(self) -> str:
        """The layer and, if it is not about the whole layer, its heads."""
        layer = visible(self.layer)
        if not self.heads:
            return layer
        if len(self.heads) > 4:
            return f"{len(self.heads)} heads of {layer}"
        return f"{layer} head{'s' if len(self.heads) > 1 else ''} {', '.join(map(str, self.heads))}"

    def __str__(self) -> str:
        return f"{self.where}: {self.text}: {self.remedy}"


@dataclass(frozen=True)
class LayerRecord:
    """One attention layer on one batch.

    Args:
        name: canonical path of the module.
        kind: `"softmax"`, `"xca"`, …
        shape: `(H, G, d, D)`: query heads, key/value heads, head width, width.
        tokens: how many tokens a query sequence has.
        stable_rank: ‖X‖_F² ÷ σ_max(X)² of the tokens the queries read, mean over sequences.
        cosine: mean cosine between different tokens of a sequence.
        weights: one record per role and head, and one per role for all heads.
        heads: one record per query head.
        jacobian: one record per head whose Jacobian was measured.
        verdict: what is wrong with the layer as a whole (its tokens, its fused weights); empty if nothing is.
        code: the verdict in a word: `"rank collapse"`…
        note: why something was not measured.
        causal: whether no token sees a later one.
        conditioning: what `wc.condition_` has applied.
        severity: of the gravest concern, heads included; None if there is none.
        concerns: everything that is wrong, one for all heads that have it, gravest first.
        branch: g, the root mean square of what the layer adds to the residual stream ÷ that of the stream; None where
            the pass did not show it.
        trace: τ = tr(W_V W_O) ÷ D, summed over heads; None where it has no sense.
        products: one record per product and query head.
    """

    name: str
    kind: str
    shape: tuple[int, int, int, int]
    tokens: int
    stable_rank: float | None
    cosine: float | None
    weights: tuple[WeightRecord, ...]
    heads: tuple[HeadRecord, ...]
    jacobian: tuple[JacobianRecord, ...] = ()
    verdict: str = ""
    code: str = ""
    note: str = ""
    causal: bool = False
    conditioning: tuple[AppliedRecord, ...] = ()
    severity: Severity | None = None
    concerns: tuple[Concern, ...] = ()
    branch: float | None = None
    trace: float | None = None
    products: tuple[ProductRecord, ...] = ()
