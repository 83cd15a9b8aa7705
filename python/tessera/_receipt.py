"""Receipts: what was asked, what ran, and why everything else did not."""

from __future__ import annotations

import html
import json
from typing import Any

from . import _native


class Receipt:
    """What one call leaves behind: docs/receipts.md has its fields. `str` is one line for people.

    >>> import numpy as np, tessera
    >>> attn = tessera.Engine().prepare(tessera.Contract(q_len=256, dim_qk=16, mask="causal"))
    >>> q = np.ones((1, 1, 256, 16), np.float32)
    >>> receipt = attn.bind(attn.plan()).forward(q, q, q, receipt=True).receipt
    >>> receipt.ok, receipt["requested"]
    (True, 'auto')
    """

    def __init__(self, native: _native.Receipt):
        self._native = native
        self._fields: dict[str, Any] | None = None

    @property
    def ok(self) -> bool:
        return self._native.ok

    @property
    def json(self) -> str:
        """The receipt as one JSON document, as `tessera receipt` reads it."""
        return self._native.json

    def to_dict(self) -> dict[str, Any]:
        if self._fields is None:
            self._fields = json.loads(self._native.json)
        return self._fields

    def __getitem__(self, field: str) -> Any:
        return self.to_dict()[field]

    def __str__(self) -> str:
        return self._native.line

    def __repr__(self) -> str:
        return f"<tessera.Receipt: {self._native.line}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left;vertical-align:top'>{html.escape(str(name))}</th>"
            f"<td style='text-align:left'>{_cell(value)}</td></tr>"
            for name, value in self.to_dict().items()
        )
        return (
            f"<details><summary>{html.escape(self._native.line)}</summary>"
            f"<table style='font-size:smaller'>{rows}</table></details>"
        )


def _cell(value: Any) -> str:
    """Nested values as JSON text; everything escaped, because names come from contracts."""
    if isinstance(value, (dict, list)):
        return f"<pre style='margin:0'>{html.escape(json.dumps(value, indent=1))}</pre>"
    return html.escape(str(value))
