"""What a scheme is, and the registry of schemes by name."""

from __future__ import annotations

import dataclasses
import fnmatch
import importlib.metadata
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from wellcond.attention.find import AttentionLayers, attention_layers
from wellcond.attention.view import AttentionLayer, Projection
from wellcond.draw import Draw
from wellcond.errors import SchemeError
from wellcond.schemes.laws import Law

Laws = dict[tuple[str, ...], Law]
ENTRY_POINTS = "wellcond.schemes"


@dataclass(frozen=True)
class Target:
    """A matrix outside Q, K, V and O that a scheme sets.

    Args:
        scope: what its draws are keyed by: the block's or the module's canonical path.
        role: `"mlp_in.0"`, `"mlp_out.0"`, `"embedding"`, `"position"`.
    """

    scope: str
    role: str
    projection: Projection
    law: Law


class Scheme:
    """An initialisation: which law each role of a layer gets. Sub-classes are frozen dataclasses; fields are options.

    Attributes:
        name, citation, published: set by `@register`.
    """

    name: ClassVar[str] = ""
    citation: ClassVar[str] = ""
    published: ClassVar[str] = ""
    composable: ClassVar[bool] = True  # False for a scheme that sets whole parameters, whatever their roles

    def applies(self, layer: AttentionLayer) -> str | None:
        """Why the scheme does not apply to a layer, or None if it does."""
        return None

    def applies_to(self, layer: AttentionLayer, roles: frozenset[str]) -> str | None:
        """The same where only some roles are wanted, as in a composition."""
        return self.applies(layer)

    def laws(self, layer: AttentionLayer) -> Laws:
        """The laws of the layer's roles; a role without one is left alone."""
        return {}

    def beyond(self, layers: AttentionLayers) -> Iterator[Target]:
        """What the scheme sets outside Q, K, V and O: MLP matrices, embeddings, positions."""
        return iter(())

    def zeroed(self) -> frozenset[str]:
        """The roles (and `"mlp"`) whose biases are set to zero."""
        return frozenset()

    def parameters(self, layers: AttentionLayers, seed: int) -> Iterator[tuple[str, Tensor]]:
        """Whole parameters the scheme sets, by canonical path, whatever their roles: a teacher's weights."""
        return iter(())

    def functional(self) -> frozenset[str]:
        """The roles whose weights a user's function returns, so that no law is known for them."""
        return frozenset()

    def check_layers(self, layers: AttentionLayers) -> None:
        """Raise if what the user asked for has no effect on these layers."""

    def __str__(self) -> str:
        return self.name or type(self).__name__

    def weights(self, layer: AttentionLayer, draw: Draw) -> dict[str, Tensor]:
        """Draw the weights of a layer: `{role: (heads, D, d)}`."""
        drawn: dict[str, Tensor] = {}
        for roles, law in self.laws(layer).items():
            drawn.update(zip(roles, law.sample(draw, roles, shapes(layer, roles)), strict=True))
        return drawn


def shapes(layer: AttentionLayer, roles: tuple[str, ...]) -> tuple[tuple[int, int, int], ...]:
    """`(heads, D, d)` of some roles of a layer."""
    return tuple(projection.shape for _, projection in layer.projections(*roles))


def is_whole(layers: AttentionLayers) -> bool:
    """Whether these are all layers of their model, rather than some a filter picked."""
    root = layers[0].root
    return root is not None and len(attention_layers(root)) == len(layers)


def missing(layer: AttentionLayer, *roles: str) -> str | None:
    """Say which of these roles a layer lacks, or None."""
    lacking = [role for role in roles if getattr(layer, role) is None]
    return f"{layer.kind} attention without {' and '.join(lacking)}" if lacking else None


def fans(role: str, projection: Projection, granularity: str) -> tuple[int, int]:
    """`(fan_in, fan_out)` of a map: of one head, of the role's whole projection, or of the stored matrix.

    An output projection (and an MLP's second matrix) reads its `d` side and writes its `D` side.
    """
    heads, width, d = projection.shape
    if granularity == "matrix":
        near, far = projection.stored_shape
    else:
        near, far = width, d if granularity == "head" else heads * d
    return (far, near) if role in ("output", "mlp_out") else (near, far)


S = TypeVar("S", bound=type[Scheme])
_SCHEMES: dict[str, type[Scheme]] = {}


def register(name: str, *, citation: str, published: str = "") -> Callable[[S], S]:
    """Register a scheme where it is defined; a name can be taken once.

    Args:
        name: what users write.
        citation: the paper.
        published: the settings the paper used, in words.
    """

    def decorate(cls: S) -> S:
        if name in _SCHEMES:
            raise SchemeError(f"a scheme called '{name}' is registered already ({_SCHEMES[name].__module__})")
        cls.name, cls.citation, cls.published = name, citation, published
        _SCHEMES[name] = cls
        return cls

    return decorate


@dataclass(frozen=True)
class SchemeInfo:
    """One row of `wc.schemes`."""

    name: str
    summary: str
    citation: str
    published: str
    options: dict[str, Any]


def schemes(pattern: str = "*") -> list[SchemeInfo]:
    """List the schemes whose name matches a shell pattern, with citation, options and their defaults.

    >>> import wellcond as wc
    >>> [info.name for info in wc.schemes("cond*")]
    ['conditioned']
    >>> wc.schemes("conditioned")[0].options["value_strength"]
    1.0
    """
    _load_entry_points()
    names = sorted(name for name in _SCHEMES if fnmatch.fnmatchcase(name, pattern))
    return [_info(_SCHEMES[name]) for name in names]


def _info(cls: type[Scheme]) -> SchemeInfo:
    summary = (cls.__doc__ or "").strip().splitlines()[0]
    return SchemeInfo(cls.name, summary, cls.citation, cls.published, _options(cls))


def _fields(cls: type[Scheme]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()


def _options(cls: type[Scheme]) -> dict[str, Any]:
    required = "(required)"
    return {f.name: required if f.default is dataclasses.MISSING else f.default for f in _fields(cls)}


def _load_entry_points() -> None:
    """Third-party schemes: an entry point in the group `wellcond.schemes` whose value is a `Scheme` sub-class."""
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if entry.name in _SCHEMES:
            continue
        try:
            cls = entry.load()
        except Exception as error:
            raise SchemeError(f"the scheme '{entry.name}' of another package cannot be loaded ({error})") from error
        if not (isinstance(cls, type) and issubclass(cls, Scheme)):
            raise SchemeError(f"the entry point '{entry.name}' in {ENTRY_POINTS} is no sub-class of wc.Scheme")
        if entry.name not in _SCHEMES:  # loading may have registered it
            register(entry.name, citation=getattr(cls, "citation", ""), published=getattr(cls, "published", ""))(cls)


def make(name: str, options: Mapping[str, Any]) -> Scheme:
    """Build a scheme by name, refusing unknown names, options and values."""
    _load_entry_points()
    if not isinstance(name, str) or name not in _SCHEMES:
        raise SchemeError(f"no scheme {name!r}; there are: {', '.join(sorted(_SCHEMES))}")
    cls = _SCHEMES[name]
    known = _options(cls)
    unknown = sorted(set(options) - set(known))
    if unknown:
        takes = ", ".join(known) or "none"
        raise SchemeError(f"'{name}' has no option {', '.join(map(repr, unknown))}; its options: {takes}")
    absent = [option for option, default in known.items() if default == "(required)" and option not in options]
    if absent:
        raise SchemeError(f"'{name}' needs {', '.join(absent)}: wc.init_(model, '{name}', {absent[0]}=…)")
    hints = typing.get_type_hints(cls)
    for option, value in options.items():
        _check_option(name, option, value, hints[option])
    return cls(**options)


def check_fields(scheme: Scheme) -> None:
    """Refuse a scheme object whose fields hold what the options do not take."""
    if scheme.name in _SCHEMES:
        hints = typing.get_type_hints(type(scheme))
        for field in _fields(type(scheme)):
            _check_option(scheme.name, field.name, getattr(scheme, field.name), hints[field.name])


def _check_option(name: str, option: str, value: Any, hint: Any) -> None:
    """Check a value against a field's annotation: literals by value, numbers finite, the rest by type."""
    if hint is Any:
        return
    allowed = typing.get_args(hint) if typing.get_origin(hint) is not None else (hint,)
    if typing.get_origin(hint) is typing.Literal:
        if not isinstance(value, (str, int, float)) or value not in allowed:
            raise SchemeError(f"'{name}' takes {option} in {', '.join(map(repr, allowed))}; got {value!r}")
        return
    kinds = tuple(t for t in allowed if isinstance(t, type))
    if float in kinds:
        kinds += (int,)
    if kinds and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
        names = " or ".join("nothing" if t is type(None) else t.__name__ for t in kinds)
        raise SchemeError(f"'{name}' takes {option} as {names}; got {value!r}")
    # Larger numbers leave the range of float32, in which weights are drawn.
    if float in kinds and isinstance(value, (int, float)) and not abs(value) < 1e38:
        raise SchemeError(f"'{name}' takes a finite {option}, below 1e38; got {str(value)[:40]}")
