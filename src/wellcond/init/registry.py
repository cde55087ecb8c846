"""The registry of schemes by name: registered where they are defined, listed, and made from options."""

from __future__ import annotations

import dataclasses
import fnmatch
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from wellcond._core.argument_kinds import REFUSED, kind_of
from wellcond._core.checked import checked
from wellcond._core.short_repr import short_repr
from wellcond.errors import SchemeError
from wellcond.init.scheme import Scheme
from wellcond.init.scheme_info import ENTRY_POINTS, REQUIRED, SchemeInfo, SchemeInfos, scheme_entry_points

S = TypeVar("S", bound=type[Scheme])
_SCHEMES: dict[str, type[Scheme]] = {}


def register_scheme(name: str, *, citation: str, published: str = "") -> Callable[[S], S]:
    """Register a scheme where it is defined; a name can be taken once.

    Args:
        name: what users write.
        citation: the paper.
        published: the settings the paper used, in words.
    """

    def decorate(cls: S) -> S:
        known = _SCHEMES if cls.__module__.startswith("wellcond.init.schemes.") else registered_schemes()
        if name in known:
            raise SchemeError(f"a scheme called '{name}' is registered already ({known[name].__module__})")
        cls.name, cls.citation, cls.published = name, citation, published
        _SCHEMES[name] = cls
        return cls

    return decorate


def registered_schemes() -> dict[str, type[Scheme]]:
    """Return the registered schemes by name; the library's own register themselves when they are first needed."""
    import wellcond.init.schemes  # noqa: F401

    return _SCHEMES


@checked
def schemes(pattern: str = "*") -> SchemeInfos:
    """List the schemes whose name matches a shell pattern, with citation, options and their defaults.

    >>> import wellcond as wc
    >>> [info.name for info in wc.schemes("cond*")]
    ['conditioned']
    >>> wc.schemes("conditioned")[0].options["value_strength"]
    1.0
    """
    names = sorted(
        name for name in registered_schemes().keys() | scheme_entry_points() if fnmatch.fnmatchcase(name, pattern)
    )
    return SchemeInfos(_info(find_scheme(name)) for name in names)


def _info(cls: type[Scheme]) -> SchemeInfo:
    summary = (cls.__doc__ or "").strip().splitlines()[0]
    return SchemeInfo(cls.name, summary, cls.citation, cls.published, _options(cls))


def _options(cls: type[Scheme]) -> dict[str, Any]:
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    return {field.name: _default(field) for field in fields}


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return REQUIRED if field.default is dataclasses.MISSING else field.default


def find_scheme(name: str) -> type[Scheme]:
    """Return a scheme's class; another package is only loaded when its scheme is asked for."""
    known = registered_schemes()
    if isinstance(name, str) and name in known:  # looking through the packages of an environment is slow
        return known[name]
    others = scheme_entry_points()
    if not isinstance(name, str) or name not in others:
        raise SchemeError(f"no scheme {name!r}; there are: {', '.join(sorted(known.keys() | others))}")
    try:
        cls = others[name].load()
    except Exception as error:
        raise SchemeError(f"the scheme '{name}' of another package cannot be loaded ({error})") from error
    if not (isinstance(cls, type) and issubclass(cls, Scheme)):
        raise SchemeError(f"the entry point '{name}' in {ENTRY_POINTS} is no sub-class of wc.Scheme")
    if name not in known:  # loading may have registered it
        register_scheme(name, citation=cls.citation, published=cls.published)(cls)
    return known[name]


def make_scheme(name: str, options: Mapping[str, Any]) -> Scheme:
    """Build a scheme by name, refusing unknown names, options and values."""
    cls = find_scheme(name)
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
        for option in _options(type(scheme)):
            _option(scheme.name, option, getattr(scheme, option), hints[option])


def _option(name: str, option: str, value: Any, hint: Any) -> Any:
    """Return a value as a field takes it; refuse what its annotation does not allow."""
    kind = kind_of(hint)
    taken = value if kind is None else kind.take(value)
    if taken is REFUSED:
        assert kind is not None
        raise SchemeError(f"'{name}' takes {option} as {kind.words}; got {short_repr(value)}")
    # Larger numbers leave the range of float32, in which weights are drawn.
    if isinstance(taken, (int, float)) and not abs(taken) < 1e38:
        raise SchemeError(f"'{name}' takes a finite {option}, below 1e38; got {short_repr(value)}")
    return taken
