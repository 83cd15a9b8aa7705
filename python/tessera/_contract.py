"""Contracts: which tokens may attend to which, and how scores are formed."""

from __future__ import annotations

import inspect
import json
import math
import os
import pathlib
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Union

import numpy as np

from . import _native
from ._errors import BitmapWarning
from ._files import whole_file
from .mask import Mask, _Bitmap

DTYPES = ("", "f32", "bf16", "f16")  # by the C interface's numbers
_DTYPE_NAMES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "half": "f16"}

MaskLike = Union[Mask, str]


class Shape(NamedTuple):
    """The sizes of a contract: q is [batch, num_q_heads, q_len, dim_qk], k [batch, num_kv_heads, kv_len, dim_qk]."""

    batch: int
    q_len: int
    kv_len: int
    num_q_heads: int
    num_kv_heads: int
    dim_qk: int
    dim_v: int
    dtype: str
    sink_logits: bool

    @property
    def q(self) -> tuple[int, int, int, int]:
        return self.batch, self.num_q_heads, self.q_len, self.dim_qk

    @property
    def k(self) -> tuple[int, int, int, int]:
        return self.batch, self.num_kv_heads, self.kv_len, self.dim_qk

    @property
    def v(self) -> tuple[int, int, int, int]:
        return self.batch, self.num_kv_heads, self.kv_len, self.dim_v

    @property
    def o(self) -> tuple[int, int, int, int]:
        return self.batch, self.num_q_heads, self.q_len, self.dim_v

    @property
    def rows(self) -> tuple[int, int, int]:
        """Of lse and the other row statistics."""
        return self.batch, self.num_q_heads, self.q_len


class Contract:
    """A static description of an attention; a value with a key. docs/contract.md has every field.

    >>> from tessera import Contract, mask as m
    >>> c = Contract(q_len=8192, num_q_heads=8, num_kv_heads=2, dim_qk=128, dtype="bf16",
    ...              mask=m.causal & m.documents & m.window(1023, 0), softcap=30.0)
    >>> c.mask
    'causal and documents and window(1023, 0)'
    >>> c.shape.kv_len, c.shape.dim_v
    (8192, 128)
    >>> Contract.parse(c.text) == c
    True

    `mask` is text, an expression of `tessera.mask`, or a sequence of them, one for each query head. Everything wrong is
    reported at once, by `TesseraError.violations`.
    """

    def __init__(
        self,
        *,
        q_len: int,
        dim_qk: int,
        mask: MaskLike | Sequence[MaskLike],
        kv_len: int | None = None,
        batch: int = 1,
        num_q_heads: int = 1,
        num_kv_heads: int | None = None,
        dim_v: int | None = None,
        dtype: Any = "f32",
        offset: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sink_logits: bool = False,
        tile: int | tuple[int, int] | None = None,
        tile_reason: str | None = None,
        capacity: Mapping[str, Any] | None = None,
        routing: Mapping[str, Any] | None = None,
        base_dir: str | os.PathLike[str] | None = None,
    ):
        tile_q, tile_kv = tile_pair(tile)
        fields: dict[str, Any] = {
            "version": 1,
            "shape": {
                "batch": batch, "q_len": q_len, "kv_len": kv_len, "num_q_heads": num_q_heads,
                "num_kv_heads": num_kv_heads, "dim_qk": dim_qk, "dim_v": dim_v, "dtype": dtype_name(dtype),
            },
            "mask": {"offset": offset},
            "score": {"scale": scale, "softcap": softcap, "sink_logits": sink_logits},
            "tiles": {"q": tile_q, "kv": tile_kv, "reason": tile_reason},
            "capacity": dict(capacity or {}),
        }  # fmt: skip
        if routing is not None:
            fields["routing"] = dict(routing)
        if isinstance(mask, (str, Mask)):
            fields["mask"]["expr"] = mask
        elif not isinstance(mask, Sequence):
            hint = "; a function or an array of booleans goes into tessera.mask.bitmap()" if callable(mask) or hasattr(mask, "dtype") else ""
            raise TypeError(f"mask: text, an expression or a sequence of them expected, got {type(mask).__name__}{hint}")
        else:
            fields["mask"]["heads"] = list(mask)
        self._set(fields, base_dir)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], base_dir: str | os.PathLike[str] | None = None) -> "Contract":
        """From the fields of a contract file, `{"version": 1, "shape": {...}, "mask": {...}, ...}`."""
        if not isinstance(fields, Mapping):
            raise TypeError(f"fields: a mapping expected, got {type(fields).__name__}")
        self = cls.__new__(cls)
        self._set(fields, base_dir)
        return self

    @classmethod
    def parse(cls, text: str, base_dir: str | os.PathLike[str] | None = None) -> "Contract":
        """From TOML or JSON text. Files that it names are looked for in `base_dir`."""
        if not isinstance(text, str):
            raise TypeError(f"text: a str expected, got {type(text).__name__}")
        if "\0" in text:
            raise ValueError("text: a contract has no zero bytes")
        self = cls.__new__(cls)
        self._native = _native.parse_contract(text, None if base_dir is None else os.fspath(base_dir))
        self._bitmaps = {}
        self._finish(base_dir)
        return self

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Contract":
        """From a TOML or JSON file."""
        path = pathlib.Path(path)
        return cls.parse(path.read_text(encoding="utf-8"), path.parent)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes canonical TOML, and beside it the bitmaps that were given as arrays or functions. Files that are there stay
        whole until what takes their place is written, and the text comes last."""
        path = pathlib.Path(path)
        for name, bits in self._bitmaps.items():
            with whole_file(path.parent / name) as file:
                np.save(file, bits)
        with whole_file(path) as file:
            file.write(self.text.encode())

    def _set(self, fields: Mapping[str, Any], base_dir: str | os.PathLike[str] | None) -> None:
        bitmaps: list[_Bitmap] = []
        text = json.dumps(_plain(fields, bitmaps))
        folder = None if base_dir is None else os.fspath(base_dir)
        self._bitmaps = {}
        if not bitmaps:
            self._native = _native.parse_contract(text, folder)
        else:
            if folder is not None:
                raise ValueError("base_dir: not together with masks given as arrays or functions")
            shape = fields.get("shape") or {}
            heads, q_len = shape.get("num_q_heads") or 1, shape.get("q_len") or 0
            lengths = (heads, q_len, shape.get("kv_len") or q_len)
            if not all(isinstance(length, (int, np.integer)) and length > 0 for length in lengths):
                _native.parse_contract(text, None)  # which says what is wrong with them
                raise ValueError("shape: lengths above 0 expected")
            # The language names bitmaps by file, so for a moment they are files.
            with tempfile.TemporaryDirectory(prefix="tessera-") as scratch:
                for one in bitmaps:
                    bits = _evaluate(one, lengths)
                    np.save(pathlib.Path(scratch) / one.name, bits)
                    self._bitmaps[one.name] = bits
                self._native = _native.parse_contract(text, scratch)
        self._finish(base_dir)

    def _finish(self, base_dir: str | os.PathLike[str] | None) -> None:
        self._folder = None if base_dir is None else os.path.abspath(base_dir)
        values = list(self._native.shape)
        values[7] = DTYPES[values[7]]
        self.shape = Shape(*values)

    @property
    def key(self) -> str:
        """32 hex digits: masks that mean the same have the same key."""
        return self._native.key

    @property
    def text(self) -> str:
        """Canonical TOML, every default resolved."""
        return self._native.text

    def to_dict(self) -> dict[str, Any]:
        return json.loads(self._native.json())

    @property
    def mask(self) -> str | list[Any]:
        """The mask's canonical text, or a list where heads differ."""
        mask = self.to_dict()["mask"]
        return mask["expr"] if "expr" in mask else mask["heads"]

    def __copy__(self) -> "Contract":
        return self

    def __deepcopy__(self, memo: Any) -> "Contract":
        return self

    def __reduce__(self):
        return _unpickle, (self.text, self._bitmaps, self._folder)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contract) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        s = self.shape
        return (
            f"<tessera.Contract {self.mask!r} q[{', '.join(map(str, s.q))}] k[{', '.join(map(str, s.k))}] {s.dtype}>"
        )


def _unpickle(text: str, bitmaps: dict[str, np.ndarray], folder: str | None) -> Contract:
    if not bitmaps:
        return Contract.parse(text, folder)
    with tempfile.TemporaryDirectory(prefix="tessera-") as scratch:
        for name, bits in bitmaps.items():
            np.save(pathlib.Path(scratch) / name, bits)
        made = Contract.parse(text, scratch)
    made._bitmaps, made._folder = bitmaps, None
    return made


def shape_error(name: str, want: Sequence[int], got: Sequence[int]) -> str:
    """What is wrong with the shape of a tensor of a call."""
    text = f"{name}: shape {list(want)} expected, as [batch, heads, tokens, dim], got {list(got)}"
    is_by_token = len(got) == 4 and list(got[1:3]) == [want[2], want[1]]
    return text + ("; with heads and tokens exchanged it fits: see layout=" if is_by_token else "")


def tile_pair(tile: Any) -> tuple[Any, Any]:
    """Rows of queries and of keys; one number stands for both."""
    if not isinstance(tile, tuple):
        return tile, tile
    if len(tile) != 2:
        raise ValueError(f"tile: one number or (q, kv) expected, got {tile}")
    return tile


def dtype_name(dtype: Any) -> str:
    """"f32", "bf16" or "f16" from a name or from a dtype of NumPy, PyTorch or JAX; what is unknown is left as it is."""
    name = dtype if isinstance(dtype, str) else str(getattr(dtype, "name", None) or getattr(dtype, "__name__", dtype))
    name = name.removeprefix("torch.")
    return _DTYPE_NAMES.get(name, name)


def _plain(value: Any, bitmaps: list[_Bitmap]) -> Any:
    """What JSON can say: expressions as text, what is None left out. Bitmaps that were met are collected."""
    if isinstance(value, Mask):
        bitmaps.extend(one for one in value._bitmaps if one not in bitmaps)
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(of, bitmaps) for name, of in value.items() if of is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(of, bitmaps) for of in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"a contract has finite numbers, got {value}")
    return value


def _evaluate(one: _Bitmap, lengths: tuple[int, int, int]) -> np.ndarray:
    heads, q_len, kv_len = lengths
    bits = one.bits
    if callable(bits):
        q, kv = np.arange(q_len)[:, None], np.arange(kv_len)[None, :]
        per_head = len(inspect.signature(bits).parameters) == 3
        answer = np.asarray(bits(np.arange(heads)[:, None, None], q[None], kv[None]) if per_head else bits(q, kv))
        if answer.dtype != np.bool_:
            raise TypeError(f"the mask function must answer with booleans, it gave {answer.dtype}")
        bits = np.broadcast_to(answer, (heads, q_len, kv_len) if per_head else (q_len, kv_len))
    warnings.warn(
        f"a mask of {bits.size:,} single pairs: terms (causal, window, documents, ...) cost nothing of the kind",
        BitmapWarning,
        stacklevel=4,
    )
    return np.ascontiguousarray(bits)
