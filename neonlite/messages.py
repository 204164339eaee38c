"""Text about objects: descriptions in error messages, and HTML for notebooks."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from neonlite import tree_structure, typing

MAX_PRINTED_ELEMENTS = 6  # of an array in an error message; of larger ones the shape
MAX_LISTED_OPERANDS = 8  # in an error message
NO_COMPLEX = "Complex numbers are not supported: compute with NumPy's array, x.numpy(), instead."


class ShortRepr(reprlib.Repr):
    """Truncated texts of objects; of a NumPy array with many elements, shape and dtype."""

    def repr_ndarray(self, x: Any, level: int) -> str:
        """Return the text of a NumPy array."""
        if x.size <= MAX_PRINTED_ELEMENTS:
            return self.repr_instance(x, level)
        example = f", such as {self.repr1(x.tolist()[0], 1)}" if x.dtype.kind in "OUT" and x.ndim == 1 else ""
        return f"an array {x.shape} of {x.dtype}{example}"


_short_repr = ShortRepr()
_short_repr.maxstring = _short_repr.maxother = 60


def label(x: Any) -> str:
    """Return the label of a leaf: a tensor's name, with a suffix for views; or the scalar."""
    if tree_structure.info_of(x) is None:
        return repr(x)
    view_op = getattr(x, "view_op", None)
    if x.name is None or view_op is None or x.name != x.base.name:  # not a view with the name of its base
        return x.name or f"tensor-{id(x):#x}"
    return label(x.base) + {"transpose": ".T", "reshape": ".reshape"}.get(view_op[0], "[...]")


def describe(*operands: object) -> str:
    """Return the names and shapes of operands for an error message, truncated."""

    def describe_one(x: Any) -> str:
        info = tree_structure.info_of(x)
        if info is None:
            is_array = hasattr(x, "operand")  # of neonlite.array_api
            return f"an array {x.shape} of {x.dtype.name}" if is_array else _short_repr.repr(x)
        name = f"{info['op']}-tree" if info.op_def else label(x) if x.name else "a tensor"
        return f"{name} {x.shape}"

    return listed(operands, describe_one)


def expected(where: str, what: str, got: object, hint: str = "") -> str:
    """Return an error message: ``<where>: expected <what>, got <got>. <hint>``; ``got`` is a text, or described."""
    text = f"{where}{': ' if where else ''}expected {what}, got {got if isinstance(got, str) else describe(got)}"
    return f"{text}. {hint}" if hint else text


def listed(items: Sequence[Any], to_text: Callable[[Any], str] = str) -> str:
    """Return the first items as text, separated by commas, and the number of the others."""
    more = [f"{len(items) - MAX_LISTED_OPERANDS} more"] if len(items) > MAX_LISTED_OPERANDS else []
    return ", ".join([*map(to_text, items[:MAX_LISTED_OPERANDS]), *more])


def describe_setting(value: object) -> str:
    """Return the value of a constructor's argument in one line, truncated; functions and classes by their name."""
    name = getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else " ".join(describe(value).split())


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question with the known name that is like an unknown one or starts with it, or an empty string."""
    from difflib import get_close_matches  # not loaded by ``import neonlite``

    names, name = {x.casefold(): x for x in known}, name.casefold()
    close = get_close_matches(name, names, 1) or [x for x in names if len(name) > 3 and x.startswith(name)]
    return f" Did you mean {names[close[0]]!r}?" if close else ""


def owners(*operands: typing.Operand) -> str:
    """Return the operands with their backends, and what to do, for an error message."""
    described = ", ".join(f"{describe(x)} on {x.backend!r}" for x in operands)
    if any(x.backend.closed for x in operands):
        return f"{described}. Create the tensors of the closed backend again, or copy them with be.array(t)"
    return f"{described}. Copy one of them to the other backend with be.array(t)"


def truncate_message(text: object) -> str:
    """Return a message, with the middle of a long one left out."""
    message = str(text)
    return message if len(message) <= 400 else f"{message[:250]} ... {message[-100:]}"


_wordings: dict[str, str] = {}


@contextmanager
def use_wordings(wordings: Mapping[str, str]) -> Iterator[None]:
    """Let ``wording`` return other texts, by key: those of the command line, which has options and not arguments."""
    _wordings.update(wordings)
    try:
        yield
    finally:
        _wordings.clear()


def wording(key: str, text: str, *values: object) -> str:
    """Return the part of a message that names an argument: as in Python, or as in ``use_wordings``, with values."""
    return _wordings[key].format(*values) if key in _wordings else text


# --- HTML for notebooks: escaped text, tables, collapsible objects. No scripts, colors or external resources ---

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
    method = getattr(type(value), "_repr_html_", None) if tree_structure.info_of(value) is None else None
    return Html(method(value)) if method else None
