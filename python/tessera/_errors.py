"""What the engine refuses, as an exception."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._receipt import Receipt


class TesseraError(ValueError):
    """The engine's own error: a numbered code, and every rule that was broken.

    >>> import tessera
    >>> try:
    ...     tessera.Contract(q_len=64, dim_qk=8, num_q_heads=6, num_kv_heads=4, mask="causal")
    ... except tessera.TesseraError as error:
    ...     print(error.code, error.violations)
    TSR-C003 [('shape.num_kv_heads', 'expected a divisor of num_q_heads (6), found 4')]

    `code` has a page of its own in docs/error_codes.md; `where` is a file, field, stage or function, and may be empty;
    `receipt` is that of the call that failed, when one was asked for.
    """

    def __init__(self, text: str, code: str = "", where: str = "", violations: list[tuple[str, str]] | None = None):
        super().__init__(text)
        self.code = code
        self.where = where
        self.violations = list(violations or [])
        self.receipt: Receipt | None = None

    def __reduce__(self):
        return TesseraError, (str(self), self.code, self.where, self.violations)


class BitmapWarning(UserWarning):
    """A mask was given as an array or a function: it costs a byte for each pair of query and key."""
