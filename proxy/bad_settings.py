"""Explain in one plain sentence why a setting is invalid, instead of with pydantic's message.

Its tests: tests/test_settings.py.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Final

_ALIKE: Final = 0.8
"""Minimum similarity of a name that is suggested for a typo. (`lisen`: 0.91 to `listen`, 0.5 to `max_clients`.)"""

_LONGEST: Final = 60
"""How many characters of an invalid value to show."""

_BOUNDS: Final = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar name, if it is similar enough."""
    found = difflib.get_close_matches(name, list(names), n=1, cutoff=_ALIKE)
    return found[0] if found else None


def describe(detail: Mapping[str, Any], units: Mapping[str, str | None], hidden: frozenset[str]) -> str:
    """Explain why a setting is invalid.

    Args:
        detail: one of pydantic's error entries.
        units: setting → its unit; None if the setting is not a number.
        hidden: settings whose values must not be shown, because they may contain a password.
    """
    name = ".".join(str(part) for part in detail["loc"])
    setting = str(detail["loc"][0]) if detail["loc"] else ""
    kind = str(detail["type"])
    if kind == "extra_forbidden":
        meant = nearest(name, units)
        return f"{name}: there is no such setting" + (f"; did you mean {meant}?" if meant else "")
    text = _plain(kind, detail.get("ctx", {}), units.get(setting))
    if text is None:
        text = str(detail["msg"]).removeprefix("Value error, ")
    elif setting not in hidden:
        value = detail["input"]
        shown = repr(value) if len(repr(value)) <= _LONGEST else repr(value)[:_LONGEST] + "…"
        text = f"{shown} {text}"
    return f"{name}: {text}" if name else text


def _plain(kind: str, context: Mapping[str, Any], unit: str | None) -> str | None:
    """Return what is wrong, as text to put after the value; None if pydantic's own message will do."""
    counted = f" ({unit})" if unit else ""
    if kind in ("int_parsing", "int_type", "int_from_float", "int_parsing_size"):
        return f"is not a whole number{counted}"
    if kind in ("float_parsing", "float_type", "finite_number"):
        return f"is not a number{counted}"
    if kind in ("bool_parsing", "bool_type"):
        return "is neither true nor false"
    if kind == "literal_error":
        return f"is none of {str(context['expected']).replace(' or ', ', ').replace(chr(39), '')}"
    if kind == "list_type":
        return 'is not a list of addresses: ["127.0.0.1:6380"]'
    if kind == "too_short":
        return "names no address, for example 127.0.0.1:6380"
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        return f"is not {words} {format(context[key], ',').removesuffix('.0')}{counted}"
    if kind == "string_type":
        return "is not text: put it in quotes"
    if kind in ("string_pattern_mismatch", "string_too_short", "string_too_long"):
        return "is not 1 to 64 characters without blanks and braces"
    return None
