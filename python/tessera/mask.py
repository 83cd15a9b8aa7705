"""Mask expressions in Python: terms joined with `&` and `|`, as the contract's own language joins them with and, or.

>>> from tessera import mask as m
>>> print(m.causal & m.documents & (m.window(1023, 0) | m.sink(4, document=True)))
causal and documents and (window(1023, 0) or sink(4, document))

Row i is a query, column j a key, p = i + offset; docs/contract.md says when each term holds.
"""

from __future__ import annotations

import operator
from typing import Callable, Union

import numpy as np

# Pairs of query and key, true where they may attend: an array, or a function of indices that broadcasts. A function of
# three parameters gets the query head first.
Bits = Union[np.ndarray, Callable[..., np.ndarray]]

_TERM, _AND, _OR = range(3)


class Mask:
    """An expression; `str` is its text. There is no "not" in the language, and none here."""

    def __init__(self, text: str, level: int = _TERM, bitmaps: tuple["_Bitmap", ...] = ()):
        self._text = text
        self._level = level
        self._bitmaps = bitmaps

    def _join(self, other: "Mask | str", level: int, word: str) -> "Mask":
        if isinstance(other, str):
            other = expr(other)
        if not isinstance(other, Mask):
            return NotImplemented
        left, right = (f"({side._text})" if side._level > level else side._text for side in (self, other))
        return Mask(f"{left} {word} {right}", level, self._bitmaps + other._bitmaps)

    def __and__(self, other: "Mask | str") -> "Mask":
        return self._join(other, _AND, "and")

    def __or__(self, other: "Mask | str") -> "Mask":
        return self._join(other, _OR, "or")

    def __rand__(self, other: str) -> "Mask":
        return expr(other) & self

    def __ror__(self, other: str) -> "Mask":
        return expr(other) | self

    def __invert__(self) -> "Mask":
        raise TypeError("mask expressions have no 'not'; a bitmap can say any mask")

    def __bool__(self) -> bool:
        raise TypeError("join mask terms with & and |, not with 'and' and 'or'")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mask) and self._text == other._text and self._bitmaps == other._bitmaps

    def __hash__(self) -> int:
        return hash(self._text)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<tessera mask: {self._text}>"


class _Bitmap:
    """An array or function that a mask names; it becomes a file's content when the contract is made."""

    _count = 0

    def __init__(self, bits: Bits):
        self.bits = bits
        self.name = f"bitmap_{_Bitmap._count}.npy"
        _Bitmap._count += 1


def _int(value: int, name: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: an int expected, got {type(value).__name__}") from None


full = Mask("full")
causal = Mask("causal")
documents = Mask("documents")
documents_equal = Mask("documents(equal)")
valid = Mask("valid")
blocks = Mask("blocks")


def expr(text: str) -> Mask:
    """Any expression in the language's own text; it is read when a contract is made of it."""
    return Mask(text, _OR)


def window(left: int, right: int) -> Mask:
    """p - left <= j <= p + right, both included; -1 is unlimited, and window(0, 0) is the token itself."""
    return Mask(f"window({_int(left, 'left')}, {_int(right, 'right')})")


def chunk(size: int) -> Mask:
    """p and j in the same chunk of this size."""
    return Mask(f"chunk({_int(size, 'size')})")


def prefix(count: int) -> Mask:
    """p and j both among the first tokens."""
    return Mask(f"prefix({_int(count, 'count')})")


def sink(count: int, document: bool = False) -> Mask:
    """The first keys of the row, or of the query's own document."""
    return Mask(f"sink({_int(count, 'count')}{', document' if document else ''})")


def bitmap(bits: Bits | str) -> Mask:
    """Any mask at all: a boolean array [q, kv] or [heads, q, kv], a function that makes one, or the name of a .npy file.

    A function gets index arrays that broadcast, `f(q, kv)` or `f(head, q, kv)`, and answers with booleans. It is called
    once, when the contract is made, and costs a byte for each pair: a warning says how many.

    >>> import warnings
    >>> warnings.simplefilter("ignore")
    >>> import tessera
    >>> even = bitmap(lambda q, kv: (q - kv) % 2 == 0)
    >>> tessera.Contract(q_len=64, dim_qk=8, mask=causal & even).mask.startswith("causal and bitmap(")
    True
    """
    if isinstance(bits, str):
        quoted = bits.replace("\\", "\\\\").replace('"', '\\"')
        return Mask(f'bitmap("{quoted}")')
    if not callable(bits):
        bits = np.asarray(bits)
        if bits.dtype not in (np.bool_, np.uint8):
            raise TypeError(f"bitmap: booleans expected, got {bits.dtype}")
    one = _Bitmap(bits)
    return Mask(f'bitmap("{one.name}")', bitmaps=(one,))
