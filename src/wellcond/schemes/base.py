"""What a scheme is, and the registry of schemes by name."""

from __future__ import annotations

import dataclasses
import fnmatch
import importlib.metadata
import typing
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from wellcond.attention.find import AttentionLayers
from wellcond.attention.view import AttentionLayer, Projection
from wellcond.checked import REFUSED, checked, kind_of, short
from wellcond.draw import Draw
from wellcond.errors import SchemeError
from wellcond.schemes.laws import Law
from wellcond.tabular import ResultTable, Tabular

Laws = dict[tuple[str, ...], Law]
ENTRY_POINTS = "wellcond.schemes"
REQUIRED = "(required)"  # shown as the default of an option that has none


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

    >>> import torch, wellcond as wc
    >>> from dataclasses import dataclass
    >>> from wellcond.schemes.laws import Normal
    >>> @dataclass(frozen=True)
    ... class SmallQueries(wc.Scheme):
    ...     std: float = 0.01
    ...     def laws(self, layer):
    ...         return {("query",): Normal(self.std)}
    >>> wc.init_(torch.nn.MultiheadAttention(8, 2), SmallQueries(0.1)).entries[0].law
    'N(0, 0.1²)'
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

    def parameters(
        self, layers: AttentionLayers, seed: int, wanted: Container[str] | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Whole parameters the scheme sets, whatever their roles, by canonical path; if given, only those `wanted`."""
        return iter(())

    def functional(self) -> frozenset[str]:
        """The roles whose weights a user's function returns, so that no law is known for them."""
        return frozenset()

    def returned(self, layer: AttentionLayer, draw: Draw) -> dict[str, Tensor]:
        """What that function returns for a layer: `{role: (heads, D, d)}`."""
        return {}

    def check_layers(self, layers: AttentionLayers) -> None:
        """Raise if what the user asked for has no effect on these layers."""

    def __str__(self) -> str:
        return self.name or type(self).__name__


def shapes(layer: AttentionLayer, roles: tuple[str, ...]) -> tuple[tuple[int, int, int], ...]:
    """`(heads, D, d)` of some roles of a layer."""
    return tuple(projection.shape for _, projection in layer.projections(*roles))


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
    """One row of `wc.schemes`.

    >>> import wellcond as wc
    >>> info = wc.schemes("conditioned")[0]
    >>> info.name, info.options["query"]
    ('conditioned', 'orthogonal')
    >>> info.summary
    "Each head's W_Q and W_K semi-orthogonal, W_V a rectangular identity."
    """

    name: str
    summary: str
    citation: str
    published: str
    options: dict[str, Any]


class SchemeInfos(Tabular, list[SchemeInfo]):
    """A list of schemes that prints as a table.

    >>> import wellcond as wc
    >>> print(wc.schemes("orth*"))
    scheme      what it does
    orthogonal  Q, K, V and O semi-orthogonal, each head by itself or each projection as one matrix.
    """

    def records(self) -> list[dict[str, Any]]:
        """One row per scheme; its options as text.

        >>> import wellcond as wc
        >>> [row["options"] for row in wc.schemes("small_init").records()]
        ['']
        """
        return [dataclasses.asdict(info) | {"options": _written(info.options)} for info in self]

    def _result_table(self) -> ResultTable:
        return ResultTable(["scheme", "what it does"], [[info.name, info.summary] for info in self])


@checked
def schemes(pattern: str = "*") -> SchemeInfos:
    """List the schemes whose name matches a shell pattern, with citation, options and their defaults.

    >>> import wellcond as wc
    >>> [info.name for info in wc.schemes("cond*")]
    ['conditioned']
    >>> wc.schemes("conditioned")[0].options["value_strength"]
    1.0
    """
    names = sorted(name for name in _SCHEMES.keys() | _entry_points() if fnmatch.fnmatchcase(name, pattern))
    return SchemeInfos(_info(_find(name)) for name in names)


def _written(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value if value == REQUIRED else repr(value)}" for name, value in options.items())


def _info(cls: type[Scheme]) -> SchemeInfo:
    summary = (cls.__doc__ or "").strip().splitlines()[0]
    return SchemeInfo(cls.name, summary, cls.citation, cls.published, _options(cls))


def _fields(cls: type[Scheme]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()


def _options(cls: type[Scheme]) -> dict[str, Any]:
    return {field.name: _default(field) for field in _fields(cls)}


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return REQUIRED if field.default is dataclasses.MISSING else field.default


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    """Third-party schemes: entry points in the group `wellcond.schemes` whose value is a `Scheme` sub-class."""
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}


def _find(name: str) -> type[Scheme]:
    """Return a scheme's class; another package is only loaded when its scheme is asked for."""
    if not isinstance(name, str) or (name not in _SCHEMES and name not in _entry_points()):
        raise SchemeError(f"no scheme {name!r}; there are: {', '.join(sorted(_SCHEMES.keys() | _entry_points()))}")
    if name not in _SCHEMES:
        try:
            cls = _entry_points()[name].load()
        except Exception as error:
            raise SchemeError(f"the scheme '{name}' of another package cannot be loaded ({error})") from error
        if not (isinstance(cls, type) and issubclass(cls, Scheme)):
            raise SchemeError(f"the entry point '{name}' in {ENTRY_POINTS} is no sub-class of wc.Scheme")
        if name not in _SCHEMES:  # loading may have registered it
            register(name, citation=cls.citation, published=cls.published)(cls)
    return _SCHEMES[name]


def make(name: str, options: Mapping[str, Any]) -> Scheme:
    """Build a scheme by name, refusing unknown names, options and values."""
    cls = _find(name)
    known = _options(cls)
    unknown = sorted(set(options) - set(known))
    if unknown:
        takes = ", ".join(known) or "none"
        raise SchemeError(f"'{name}' has no option {', '.join(map(repr, unknown))}; its options: {takes}")
    absent = [option for option, default in known.items() if default is REQUIRED and option not in options]
    if absent:
        raise SchemeError(f"'{name}' needs {', '.join(absent)}: wc.init_(model, '{name}', {absent[0]}=…)")
    hints = typing.get_type_hints(cls, include_extras=True)
    return cls(**{option: _option(name, option, value, hints[option]) for option, value in options.items()})


def check_fields(scheme: Scheme) -> None:
    """Refuse a scheme object whose fields hold what the options do not take."""
    if scheme.name in _SCHEMES:
        hints = typing.get_type_hints(type(scheme), include_extras=True)
        for field in _fields(type(scheme)):
            _option(scheme.name, field.name, getattr(scheme, field.name), hints[field.name])


def _option(name: str, option: str, value: Any, hint: Any) -> Any:
    """A value as a field takes it; refuse what its annotation does not allow."""
    kind = kind_of(hint)
    taken = value if kind is None else kind.take(value)
    if taken is REFUSED:
        assert kind is not None
        raise SchemeError(f"'{name}' takes {option} as {kind.words}; got {short(value)}")
    # Larger numbers leave the range of float32, in which weights are drawn.
    if isinstance(taken, (int, float)) and not abs(taken) < 1e38:
        raise SchemeError(f"'{name}' takes a finite {option}, below 1e38; got {short(value)}")
    return taken
