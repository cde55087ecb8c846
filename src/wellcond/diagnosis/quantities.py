"""Every measured quantity, one row each: all that a table, a page, a figure, a tracker or a verdict knows of it.

To add one, measure it (`diagnosis/measure`), give it a field in its record (`diagnosis/records`), and a row here. No
torch here: pages are made where there is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wellcond.diagnosis import readings, remedies
from wellcond.diagnosis.quantity import Column, Quantity, Scale, VerdictRule
from wellcond.diagnosis.readings import DEFICIENT, NOT_FINITE, ROLES, SYMBOLS

SHARE = Scale(log=False, low=0.0, high=1.0, fixed=True)
LOGIT = Scale(log=False, low=0.0, high=10.0)  # a softmax of smaller ones is far from one-hot
RANK = Scale(log=False, low=1.0, high=10.0)
KAPPA = Scale(log=True, low=1.0, high=100.0)
KAPPA_JACOBIAN = Scale(log=True, low=1.0, high=1e4)
GAIN = Scale(log=True, low=0.1, high=10.0)
GRADIENT = Scale(log=True)
RATIO = Scale(log=True, low=0.01, high=100.0, diverging=True)
BETA = Scale(log=True, low=0.03, high=3.0)
TRACE = Scale(log=False, low=-1.0, high=1.0)

STATES = {"scaled": "With the gains of the norms", "trained": "Trained, before conditioning"}  # and their groups
PRODUCT_LABELS = {"qk": "W_Q W_Kᵀ", "vo": "W_V W_O"}
SPECTRUM = {"kappa": ("κ", "condition"), "sigma_min": ("σ_min", "sigma_min"), "sigma_max": ("σ_max", "sigma_max")}
JACOBIAN: dict[str, Any] = {"source": "jacobian", "scale": KAPPA_JACOBIAN, "log": True}


def _scale() -> Iterator[Quantity]:
    """Numbers that the function has, in whatever coordinates the weights are written."""
    about: dict[str, Any] = {"group": "Scale and products", "column": True, "log": True}
    yield Quantity(
        "beta",
        "β",
        "heads",
        readings.attention_reader("beta"),
        BETA,
        **about | {"overview": True, "picture": True},
        headline=True,
        words="sharpness β",
        meaning="standard deviation of a row’s logits ÷ √(2 log T); 0: uniform; 1: the largest outweighs all others",
        terminal=Column("β"),
        logged=("mean", "max"),
    )
    read = readings.layer_reader("branch", "what the layer adds ÷ the stream")
    words, meaning = "branch gain g", "size of what the layer adds to the residual stream ÷ size of the stream"
    branch: dict[str, Any] = {"words": words, "meaning": meaning, "terminal": Column("g")}
    branch["logged"] = ("mean", "min", "max")  # a mean hides layers that are not alike
    yield Quantity("branch", "g", "layer", read, GAIN, **about | {"overview": True, "headline": True}, **branch)
    read = readings.layer_reader("trace", "of all heads together")
    words, meaning = "trace τ of W_V W_O", "part of its own token that the layer adds where it attends to itself"
    shown = about | {"log": False, "words": words, "meaning": meaning, "terminal": Column("τ", form=".1g")}
    yield Quantity("trace", "τ", "layer", read, TRACE, **shown)
    for pair, label in PRODUCT_LABELS.items():
        large = VerdictRule("ill conditioned", "{label} is {value:.1e}", remedies.condition_weights, above="product")
        yield Quantity(
            f"kappa_{pair}",
            f"κ({label})",
            "products",
            readings.weight_reader("spectrum", "condition"),
            KAPPA,
            role=pair,
            **about | {"picture": True, "axis": "κ"},
            terminal=Column(f"κ({pair.upper()})"),
            logged=("mean",),
            verdicts=(large,),
        )
        read = readings.weight_reader("spectrum", "sigma_max")
        yield Quantity(f"sigma_max_{pair}", f"σ_max({label})", "products", read, GAIN, about["group"], pair)


def _attention() -> Iterator[Quantity]:
    about: dict[str, Any] = {"source": "heads", "scale": SHARE, "group": "Attention on this batch"}
    tokens = about | {"source": "layer"}
    first: dict[str, Any] = {"column": True, "overview": True, "picture": True}
    broken = VerdictRule(NOT_FINITE, "attention is not finite", remedies.look_upstream, status=NOT_FINITE)
    collapse = VerdictRule("entropy collapse", "entropy collapse ({value:.2f})", remedies.soften, below="entropy")
    text = "attends uniformly, so queries and keys hardly matter"
    uniform = VerdictRule("uniform", text, remedies.sharpen, above="uniform")
    yield Quantity(
        "entropy",
        "entropy",
        read=readings.attention_reader("entropy"),
        **about | first,
        words="entropy ÷ log of visible keys",
        meaning="0: a query sees one key only; 1: all keys alike",
        headline=True,
        terminal=Column("entropy", form=".2f"),
        logged=("mean", "min"),
        figure="entropy",
        log=False,
        verdicts=(broken, collapse, uniform),
    )
    read, meaning = (
        readings.attention_reader("participation"),
        "near 0: many keys share the weight; 1: one key has it all",
    )
    yield Quantity("participation", "concentration Σ p²", read=read, **about | first, meaning=meaning)
    text = "rank collapse: tokens are nearly equal (mean cosine {value:.2f}, stable rank {stable_rank:.1f})"
    yield Quantity(
        "cosine",
        "similarity of tokens",
        read=readings.similarity_of,
        **tokens | first,
        words="cosine between tokens",
        meaning="mean cosine of the layer’s tokens; 0: unrelated; 1: all alike",
        logged=("mean",),
        verdicts=(VerdictRule("rank collapse", text, remedies.keep_apart, above="cosine"),),
    )
    text = "logits up to {value:.3g} saturate the softmax"
    yield Quantity(
        "max_logit",
        "max |logit|",
        read=readings.attention_reader("max_logit"),
        **about | {"scale": LOGIT},
        words="largest attention logit",
        column=True,
        logged=("max",),
        verdicts=(broken, VerdictRule("saturated", text, remedies.soften, above="logit", unless="entropy collapse")),
    )
    text = "tokens attend to themselves ({percent:.0f} % of the weight)"
    own = VerdictRule("self-attending", text, remedies.look_around, above="own")
    read = readings.attention_reader("own")
    yield Quantity("own", "weight of the own token", read=read, **about, verdicts=(own,))
    read, tokens["scale"] = readings.layer_reader("stable_rank", "of the layer’s tokens"), RANK
    yield Quantity("stable_rank", "stable rank of tokens", read=read, **tokens)


def _jacobian() -> Iterator[Quantity]:
    about = JACOBIAN | {"group": "Jacobian of the head"}
    text = "the Jacobian has rank {rank} of {structural_rank}: some directions of the weights are dead"
    lacking = VerdictRule("rank-deficient Jacobian", text, remedies.condition_inputs, status=DEFICIENT)
    text, unless = "κ_eq(J) is {value:.1e}", lacking.code
    large = VerdictRule("ill-conditioned Jacobian", text, remedies.condition_inputs, above="jacobian", unless=unless)
    first: dict[str, Any] = {"column": True, "picture": True, "headline": True, "logged": ("mean",)}
    yield Quantity(
        "kappa_equilibrated",
        "κ_eq(J)",
        read=readings.equilibrated_condition,
        **about | first,
        words="κ_eq(J), of attention’s Jacobian with blocks of norm one",
        meaning="the same in all scalings of W_Q against W_K and of W_V against W_O",
        terminal=Column("κ_eq(J)"),
        verdicts=(lacking, large),
    )
    yield Quantity(
        "kappa_jacobian",
        "κ(J)",
        read=readings.jacobian_condition,
        **about | first,
        words="κ(J), condition number of attention’s Jacobian",
        meaning="as it stands: scalings that leave the function as it is change it",
        terminal=Column("κ(J)"),
        verdicts=(lacking,),
    )
    about |= {"scale": GAIN, "log": None}
    for role in ROLES:
        label = f"‖J_{role[0].upper()}‖"
        read = readings.block_norm_reader(role)
        yield Quantity(f"norm_jacobian_{role}", label, read=read, **about, logged=("mean",))
    yield Quantity("sigma_max_jacobian", "σ_max(J)", read=readings.jacobian_sigma_reader("sigma_max"), **about)
    yield Quantity("sigma_min_jacobian", "σ_min(J)", read=readings.jacobian_sigma_reader("sigma_min"), **about)


def _papers() -> Iterator[Quantity]:
    about = JACOBIAN | {"figure": "jacobian"}
    # Each of these values is exact or a lower bound, so that their mean is a lower bound of the mean.
    least = ("ok", "lower bound", "unresolved")
    for own in _jacobian():
        if own.headline:
            key, label = f"{own.key}_at_least", f"{own.label} is at least"
            yield Quantity(f"{own.key}_exact", own.label, read=own.read, **about, kept=("ok",))
            yield Quantity(key, label, read=own.read, **about, kept=least, line="dotted")
    about["group"] = "The papers’ bound"
    key, label, words = "kappa_jacobian_vertical", "κ(J) stacked vertically", "κ(J), blocks stacked vertically"
    read, shown = readings.vertical_condition, about | {"kept": ("ok",), "line": "dashdot"}
    yield Quantity(key, label, read=read, **shown, words=words)
    words, shown = "bound (vertical convention)", about | {"logged": ("mean",), "line": "dashed"}
    yield Quantity("bound", "papers’ bound", read=readings.bound_of, **shown, words=words)
    about |= {"figure": "", "scale": RATIO, "meaning": "below 1: less than the bound allows"}
    yield Quantity("ratio", "measured ÷ bound", read=readings.ratio_of, **about)


def _weights() -> Iterator[Quantity]:
    yield from (_weight("kappa", role, "effective") for role in SYMBOLS)
    about: dict[str, Any] = {"source": "weights", "scale": GRADIENT, "group": "Gradient norms", "column": True}
    for role, symbol in SYMBOLS.items():
        yield Quantity(
            f"gradient_{role}", f"‖∇{symbol}‖", read=readings.training_reader("gradient"), **about, role=role
        )
    yield from (_weight(name, role, "effective") for name in ("sigma_min", "sigma_max") for role in SYMBOLS)
    yield from (_weight("kappa", role, "scaled") for role in SYMBOLS)
    about = {"source": "weights", "group": "Updates since the last record"}
    text = "updates of {symbol} collapse into few directions (entropy {value:.2f} times its usual)"
    falling = VerdictRule("collapsing updates", text, remedies.slow_down, below="update")
    for role in ROLES:
        label, shown = f"entropy of Δ{SYMBOLS[role]}", about | {"role": role, "scale": SHARE}
        meaning = "1: training moves all directions of a head alike; 0: one alone"
        read = readings.training_reader("update")
        yield Quantity(f"update_{role}", label, read=read, **shown, meaning=meaning, logged=("mean", "min"))
        read, shown = readings.training_reader("update_trend"), about | {"role": role, "scale": RATIO}
        yield Quantity(f"update_trend_{role}", f"{label} ÷ usual", read=read, **shown, verdicts=(falling,))
    yield from (_weight(name, role, "trained") for name in SPECTRUM for role in SYMBOLS)


def _weight(name: str, role: str, state: str) -> Quantity:
    """Return the row of κ, σ_min or σ_max of a role's weight: trained, effective or scaled."""
    kappa, used, drawn = name == "kappa", state == "effective", role in ROLES and state != "scaled"
    symbol, field = SPECTRUM[name]
    key, label = f"{name}_{role}", f"{symbol}({SYMBOLS[role]})"
    return Quantity(
        key if used else f"{key}_{state}",
        label if used else f"{label} {state}",
        "weights",
        readings.weight_reader(state, field),
        KAPPA if kappa else GAIN,
        f"Factors, a matter of coordinates: {symbol}" if used else STATES[state],
        role,
        otherwise=key if state == "trained" else "",
        column=used and kappa,
        picture=used and kappa and drawn,
        terminal=Column("κ(W)", "max") if kappa and used and drawn else None,
        logged=("mean",) if drawn else (),
        figure="weights" if drawn else "",
        axis=symbol,
        line="solid" if used else "dashed",
        log=True if kappa else None,
        verdicts=_weight_verdicts(name) if used else (),
    )


def _weight_verdicts(name: str) -> tuple[VerdictRule, ...]:
    if name == "sigma_max":
        return (VerdictRule(NOT_FINITE, "{symbol} is not finite", remedies.start_anew, status=NOT_FINITE),)
    if name == "kappa":
        lacking = VerdictRule(
            "rank deficient", "{symbol} is rank deficient", remedies.condition_weights, status=DEFICIENT
        )
        text = "{label} is {value:.1e}, a matter of coordinates"
        return lacking, VerdictRule("unbalanced", text, remedies.balance, above="weight")
    return ()


# What matters first: how heads attend and how alike their tokens are, then how well conditioned they are.
QUANTITIES: tuple[Quantity, ...] = (*_scale(), *_attention(), *_jacobian(), *_weights(), *_papers())
HEADLINES = tuple(one for one in QUANTITIES if one.headline)
BY_KEY = {one.key: one for one in QUANTITIES}
BY_NAME = {name: one for one in QUANTITIES for name in one.names}  # by what trackers call their statistics
