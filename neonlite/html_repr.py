"""HTML for notebooks: escaped text, tables, collapsible objects. No scripts, colors or external resources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from neonlite.messages import describe
from neonlite.optree_structure import info_of


class Html(str):
    """Text that is HTML, which is not escaped again."""

    __slots__ = ()


def escape(text: object) -> Html:
    """Return text as HTML: special characters escaped, those that XML forbids replaced; HTML is returned unchanged."""
    if isinstance(text, Html):
        return text
    from html import escape as escape_special

    return Html(escape_special(re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", "\ufffd", str(text))))


def table(rows: Iterable[Sequence[object]], header: Sequence[object] = ()) -> Html:
    """Return a table with one row for each sequence of cells, after a header if there is one."""

    def line(cells: Sequence[object], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

    head = line(header, "th") if header else ""
    style = "white-space: pre; text-align: left"
    return Html(f'<table style="{style}">{head}{"".join(line(cells, "td") for cells in rows)}</table>')


def details(title: object, *content: object) -> Html:
    """Return a title that opens and closes its content; only the title if there is no content."""
    body = "".join(map(escape, filter(None, content)))
    if not body:
        return Html(f"<div>{escape(title)}</div>")
    return Html(f'<details><summary>{escape(title)}</summary><div style="margin-left: 1.5em">{body}</div></details>')


def report(title: object, *content: object) -> Html:
    """Return a title in bold above its content."""
    return Html(f"<div><b>{escape(title)}</b>{''.join(map(escape, content))}</div>")


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
    rows = [(name, nested_html(x) or short_text(x)) for name, x in settings.items() if name not in nested]
    title = Html(", ".join([f"<b>{escape(class_name)}</b>", *map(escape, facts)]))
    lists = [item for items in nested.values() for item in items]
    return details(title, table(rows) if rows else "", *lists)


def is_list(value: object) -> bool:
    """Return whether a setting is a plain list or tuple of several values."""
    return type(value) in (list, tuple)


def nested_html(value: Any) -> Html | None:
    """Return the HTML of an object that has one; None for tensors, numbers and other plain values."""
    method = None if info_of(value) else getattr(type(value), "_repr_html_", None)
    return Html(method(value)) if method else None


def short_text(value: object) -> str:
    """Return a value as one line of text, truncated."""
    return " ".join(describe(value).split())
