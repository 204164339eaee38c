"""Printing and drawing of op-trees: nested tuples, infix formulas, text, Mermaid, Graphviz and SVG graphs, step tables.

A tree may be 100,000 nodes deep, and a small tree with shared sub-expressions may expand to exponentially many nodes.
So no function here recurses, and the size of each output is limited.
"""

from neonlite.visualize.drawing import draw
from neonlite.visualize.text import Steps, format_infix, format_triple

__all__ = ["Steps", "draw", "format_infix", "format_triple"]
