"""HTML for notebooks: escaped text, tables, collapsible objects. No scripts, colors or external resources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from neonlite.messages import describe_setting
from neonlite.tree_structure import info_of

NUMBER = re.compile(r"-?[\d.,]+(e[+-]?\d+)?%?|nan|-?inf")


class Html(str):
    """Text that is HTML, which is not escaped again.

    ``_repr_html_`` must return a plain string: convert this with ``str``. marimo does not display subclasses.
    """

    __slots__ = ()


def escape(text: object) -> Html:
    """Return text as HTML: special characters escaped, those that XML forbids replaced; HTML is returned unchanged."""
    if isinstance(text, Html):
        return text
    from html import escape as escape_special

    return Html(escape_special(re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", "\ufffd", str(text))))


def table(rows: Iterable[Sequence[object]], header: Sequence[object] = ()) -> Html:
    """Return a table with one row for each sequence of cells, after a header if there is one; text is left-aligned."""

    def cell(x: object) -> str:
        style = "" if NUMBER.fullmatch(str(x)) else ' style="text-align: left; white-space: pre"'
        return f"<td{style}>{escape(x)}</td>"

    lines = ["".join(f"<th>{escape(x)}</th>" for x in header)] if header else []
    lines += ["".join(map(cell, cells)) for cells in rows]
    return Html(f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>")


def title(name: str, *facts: str) -> Html:
    """Return a name in bold and what is known about it."""
    return Html(f"<b>{escape(name)}</b> {escape(', '.join(facts))}".rstrip())


def code(text: str) -> Html:
    """Return text in a fixed-width font, whose long lines scroll instead of being wrapped."""
    return Html(f'<pre style="white-space: pre; overflow: auto">{escape(text)}</pre>')


def details(summary: object, *content: object) -> Html:
    """Return a title that opens and closes its content; only the title if there is no content."""
    body = "".join(map(escape, filter(None, content)))
    if not body:
        return Html(f"<div>{escape(summary)}</div>")
    return Html(f'<details><summary>{escape(summary)}</summary><div style="margin-left: 1.5em">{body}</div></details>')


def stack(*parts: object) -> Html:
    """Return parts below each other."""
    return Html("".join(f"<div>{escape(part)}</div>" for part in parts))


def format_object(class_name: str, facts: Iterable[str], settings: Mapping[str, Any]) -> Html:
    """Return an object as its class and facts, which open a table of its settings.

    Parameters
    ----------
    class_name : str
        The name of the class.
    facts : iterable of str
        What the title says besides the class, such as the name and shapes.
    settings : mapping
        {name: value}. Objects with ``_repr_html_`` are nested; a list of them follows the table.
    """
    nested = {name: [x for x in map(nested_html, value) if x] for name, value in settings.items() if is_list(value)}
    nested = {name: items for name, items in nested.items() if items}
    rows = [(name, nested_html(x) or describe_setting(x)) for name, x in settings.items() if name not in nested]
    lists = [item for items in nested.values() for item in items]
    return details(title(class_name, *facts), table(rows) if rows else "", *lists)


def is_list(value: object) -> bool:
    """Return whether a setting is a plain list or tuple of several values."""
    return type(value) in (list, tuple)


def nested_html(value: Any) -> Html | None:
    """Return the HTML of an object that has one; None for tensors, numbers and other plain values."""
    method = getattr(type(value), "_repr_html_", None) if info_of(value) is None else None
    return Html(method(value)) if method else None
