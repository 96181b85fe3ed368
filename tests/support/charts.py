"""Which charts of a program have an axis without a label, or no title: for notebooks, run in their own kernel.

`WATCH` before the first cell keeps each figure that the cells make; `JUDGE` after the last prints the findings as JSON.
"""

from __future__ import annotations

WATCH = """
import matplotlib.figure as _figure
_figures, _make = [], _figure.Figure.__init__
def _kept(self, *args, **kwargs):
    _make(self, *args, **kwargs)
    _figures.append(self)
_figure.Figure.__init__ = _kept
"""

JUDGE = """
import json as _json
_figure.Figure.__init__ = _make
_missing = []
for _number, _one in enumerate(_figures, start=1):
    _shared = _one._suptitle.get_text() if _one._suptitle is not None else ""
    for _axes in _one.axes:
        _parts = {"title": _axes.get_title() or _shared, "x": _axes.get_xlabel(), "y": _axes.get_ylabel()}
        _missing += [f"chart {_number} has no {_name}" for _name, _text in _parts.items() if not _text]
print(_json.dumps({"charts": len(_figures), "missing": _missing}))
"""
