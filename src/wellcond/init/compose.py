"""Make a `Scheme` of what users write: a name, a function, a composition per role."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor, nn

from wellcond._core.keyed_random import Draw
from wellcond.attention.layers import AttentionLayers
from wellcond.attention.roles import LETTERS, ROLES
from wellcond.attention.view import AttentionLayer
from wellcond.errors import SchemeError
from wellcond.init.registry import check_fields, make_scheme
from wellcond.init.scheme import Laws, Scheme, Target

SchemeFunction = Callable[[AttentionLayer, Draw], Mapping[str, Tensor]]
SchemeLike = Annotated[
    str | Scheme | SchemeFunction | Mapping[str, Any],
    "a name (a string), a Scheme, a function of a layer and its draws, or a dict by letters of roles: q, k, v, o",
]


@dataclass(frozen=True)
class Function(Scheme):
    """A user's function `(layer, draw) -> {role: (heads, D, d)}`."""

    function: SchemeFunction

    def returned(self, layer: AttentionLayer, draw: Draw) -> dict[str, Tensor]:
        """Call the function."""
        result = self.function(layer, draw)
        if not isinstance(result, Mapping) or not all(isinstance(w, Tensor) for w in result.values()):
            raise SchemeError(f"a scheme function returns {{role: tensor}}, got {type(result).__name__}")
        return dict(result)

    def functional(self) -> frozenset[str]:
        """All roles."""
        return frozenset(ROLES)

    def __str__(self) -> str:
        return "function"


@dataclass(frozen=True)
class Composed(Scheme):
    """Different schemes for different roles, as `{roles: scheme}`."""

    parts: tuple[tuple[frozenset[str], Scheme], ...]

    def applies(self, layer: AttentionLayer) -> str | None:
        """Reason of the first part that does not apply."""
        return next((reason for roles, scheme in self.parts if (reason := scheme.applies_to(layer, roles))), None)

    def laws(self, layer: AttentionLayer) -> Laws:
        """Each part's laws for its own roles."""
        merged: Laws = {}
        for roles, scheme in self.parts:
            for key, law in scheme.laws(layer).items():
                if set(key) <= roles:
                    merged[key] = law
                elif set(key) & roles:
                    raise SchemeError(f"'{scheme.name}' sets {' and '.join(key)} together: give it both or neither")
        return merged

    def beyond(self, layers: AttentionLayers) -> Iterator[Target]:
        """Positions go with the query, the MLP and the embeddings with the part that names the MLP."""
        for roles, scheme in self.parts:
            for target in scheme.beyond(layers):
                if ("query" if target.role == "position" else "mlp") in roles:
                    yield target

    def zeroed(self) -> frozenset[str]:
        """Each part's, for its own roles."""
        return frozenset(role for roles, scheme in self.parts for role in scheme.zeroed() & roles)

    def functional(self) -> frozenset[str]:
        """Each part's, among its own roles."""
        return frozenset(role for roles, scheme in self.parts for role in scheme.functional() & roles)

    def check_layers(self, layers: AttentionLayers) -> None:
        """Refuse a part that sets nothing, unless it says so."""
        for roles, scheme in self.parts:
            scheme.check_layers(layers)
            if not layers or scheme.name == "keep" or scheme.functional() & roles:
                continue
            mine = Composed(((roles, scheme),))
            if "query" not in roles and any(target.role == "position" for target in scheme.beyond(layers)):
                raise SchemeError(f"'{scheme}' sets the position embedding with its query; give it q and k too")
            if not any(mine.laws(layer) for layer in layers) and next(mine.beyond(layers), None) is None:
                raise SchemeError(f"'{scheme}' sets nothing of '{_key(roles)}'; leave it out, or use 'keep'")

    def __str__(self) -> str:
        return ",".join(f"{_key(roles)}={scheme}" for roles, scheme in self.parts)

    def returned(self, layer: AttentionLayer, draw: Draw) -> dict[str, Tensor]:
        """Weights that each part's function returns for its own roles."""
        return {
            role: weight
            for roles, scheme in self.parts
            for role, weight in scheme.returned(layer, draw).items()
            if role in roles
        }


def as_scheme(scheme: SchemeLike, options: Mapping[str, Any] | None = None) -> Scheme:
    """Turn what the user gave into a `Scheme`.

    Args:
        scheme: a registered name; a `Scheme`; a function `(layer, draw) -> {role: tensor}`; or a composition such as
            `{"qk": "conditioned", "vo": ("mimetic", {"vo_alpha": 0.3})}` with keys made of q, k, v, o or `"mlp"`.
        options: for a registered name.
    """
    if isinstance(scheme, str):
        return make_scheme(scheme, options or {})
    if options:
        raise SchemeError(f"options ({', '.join(options)}) go with a scheme's name; put them inside the scheme")
    if isinstance(scheme, Scheme):
        check_fields(scheme)
        return scheme
    if isinstance(scheme, Mapping):
        return _compose(scheme)
    if callable(scheme) and not isinstance(scheme, (type, nn.Module)):
        return Function(scheme)
    got = f"the class {scheme.__name__}" if isinstance(scheme, type) else type(scheme).__name__
    raise SchemeError(f"a scheme is a name, a Scheme, a function or a dict of roles; got {got}")


def _compose(parts: Mapping[str, Any]) -> Composed:
    if not parts:
        raise SchemeError("an empty composition: name the roles, as in {'qk': 'conditioned', 'vo': 'mimetic'}")
    taken: set[str] = set()
    composed = []
    for key, value in parts.items():
        roles = _roles(key)
        if taken & roles:
            raise SchemeError(f"{', '.join(sorted(taken & roles))} in more than one part of the composition")
        taken |= roles
        if isinstance(value, tuple) and not (len(value) == 2 and isinstance(value[1], Mapping)):
            raise SchemeError(f"a part with options is (name, {{option: value}}), got {value!r} for '{key}'")
        name, options = value if isinstance(value, tuple) else (value, {})
        scheme = as_scheme(name, options)
        if not scheme.composable:
            raise SchemeError(f"'{scheme.name}' sets whole parameters, whatever their roles: use it on its own")
        composed.append((roles, scheme))
    return Composed(tuple(composed))


def _key(roles: frozenset[str]) -> str:
    return "".join(letter for letter, role in LETTERS.items() if role in roles) or "mlp"


def _roles(key: str) -> frozenset[str]:
    if key == "mlp" or key in ROLES:
        return frozenset([key])
    if not isinstance(key, str) or not key or set(key) - set(LETTERS) or len(set(key)) < len(key):
        raise SchemeError(f"roles are written with the letters q, k, v, o, each once, or 'mlp'; got {key!r}")
    return frozenset(LETTERS[letter] for letter in key)
