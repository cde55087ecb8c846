"""Fill a template with data: one file that needs no network, and runs no script but its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any

from wellcond._core.numbers import three_digits
from wellcond.errors import WellcondError


def render(
    template: str, scripts: Sequence[str], shown: Mapping[str, Any], payload: Any, **filters: Callable[..., Any]
) -> str:
    """Return a page, complete in itself; write it as UTF-8.

    Text is escaped wherever it goes (HTML, JSON, plotly's labels), and a content security policy forbids what could
    slip through: the page runs only its own two scripts and requests nothing.

    Args:
        template: name of its file.
        scripts: names of theirs, which run after `shared.js`.
        shown: what the template knows, plain data.
        payload: what the scripts know, plain data.
        filters: of the template, by name, besides `plain` and `number`.

    Raises:
        WellcondError: jinja2 or plotly is not installed.
    """
    try:
        import jinja2
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise WellcondError(f"The HTML page cannot be made ({error}): pip install 'wellcond[report]'") from error

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("wellcond.html", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"plain": plain_text, "number": three_digits, **filters}
    source = resources.files("wellcond.html")
    return environment.get_template(template).render(
        **shown,
        payload=script_json(payload),
        # A digest of all that is shown, which can therefore not contain it; the same data give the same page.
        nonce=hashlib.sha256(json.dumps([shown, payload], default=str).encode()).hexdigest(),
        plotly=get_plotlyjs(),
        script="\n".join((source / name).read_text(encoding="utf-8") for name in ("shared.js", *scripts)),
    )


def plain_text(value: Any) -> str:
    """Write a value as a page prints it: text as it is, numbers as JSON has them."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def script_json(value: Any) -> str:
    r"""Write JSON that neither ends a script element nor starts a comment in it; U+2028 and U+2029 are escaped as well.

    >>> script_json(["</script>", "&"])
    '["\\u003c/script\\u003e","\\u0026"]'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
