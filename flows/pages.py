"""Report pages: numbers as readers want them, and templates in which all text is escaped."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from accounting.statement import rounded_up


def percent(share: float) -> str:
    """A share in [0, 1] with one decimal.

    >>> percent(0.9425)
    '94.2%'
    """
    return f"{100 * share:.1f}%"


def points(difference: float) -> str:
    """A difference of shares, in percentage points.

    >>> points(0.031)
    '3.1 points'
    """
    return f"{100 * difference:.1f} points"


def bare(difference: float) -> str:
    """A difference of shares, in percentage points, where the unit has just been named.

    >>> bare(0.031)
    '3.1'
    """
    return f"{100 * difference:.1f}"


def signed(difference: float) -> str:
    """A difference of shares with its sign, in percentage points.

    >>> signed(-0.031), signed(0.0)
    ('−3.1', '0.0')
    """
    shown = f"{100 * difference:+.1f}".replace("-", "−")
    return shown[1:] if shown[1:] == "0.0" else shown


def plain(value: float) -> str:
    """A parameter: as short as it can be written without losing what was set.

    >>> plain(40.0), plain(1e-05), plain(12500)
    ('40', '1e-5', '12,500')
    """
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return repr(float(value)).replace("e-0", "e-")


def order(value: float | None) -> str:
    """A Rényi order; a dash where a number was found without one."""
    return "–" if value is None else f"{value:.4g}"


def render(template: str, **values: Any) -> str:
    """A page of ``templates/``; every value that is not markup is escaped, a missing one is an error."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "epsilon": rounded_up,
        "percent": percent,
        "points": points,
        "bare": bare,
        "signed": signed,
        "plain": plain,
        "order": order,
    }
    return environment.get_template(template).render(**values)
