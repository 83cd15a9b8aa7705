"""Plans, and the batches they are made of."""

from __future__ import annotations

import html
import json
import os
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import _native, _view
from ._files import whole_file
from ._view import View

if TYPE_CHECKING:
    from ._engine import Attention
    from ._receipt import Receipt

# A cleanup item (docs/plan_format.md), whose fields differ in width.
ITEM = np.dtype(
    [("kind", "<u2"), ("conditions", "<u2"), ("q_begin", "<i4"), ("q_end", "<i4"), ("kv_begin", "<i4"),
     ("kv_end", "<i4"), ("diag_begin", "<i4"), ("diag_end", "<i4"), ("bits", "<u4")]
)  # fmt: skip

_DIRECTIONS = ("forward", "dq", "dkv")
_SIDES = {"": 0, "q_": 1, "kv_": 2}


class TileCounts(NamedTuple):
    empty: int
    partial: int
    full: int


class Plan:
    """What survives of one batch: worklists of tiles, and what partial tiles still have to test. Immutable.

    Made by `Attention.plan`, or loaded by `Attention.load_plan`.
    """

    def __init__(self, native: _native.Plan, attention: "Attention", batch: _native.Batch | None):
        self._native = native
        self._batch = batch
        self._operand: np.ndarray | None = None
        self._of_framework: dict[str, Any] = {}
        self.attention = attention

    @property
    def fingerprint(self) -> str:
        """32 hex digits over the bytes."""
        return self._native.fingerprint

    @property
    def class_key(self) -> str:
        """Names what a lane compiles once; plans of one class share it."""
        return self._native.class_key

    @property
    def mask_digest(self) -> str:
        """Of the mask itself: equal on every target and tile."""
        return self._native.mask_digest

    def to_numpy(self) -> dict[str, np.ndarray]:
        """Every section as a read-only view of the plan's own memory, by name (docs/plan_format.md).

        >>> import tessera
        >>> c = tessera.Contract(q_len=1024, dim_qk=32, mask="causal")
        >>> arrays = tessera.Engine().prepare(c).plan().to_numpy()
        >>> arrays["forward.row_offsets"].tolist(), arrays["forward.slots"].shape
        ([0, 1, 3, 6, 10], (10, 2))
        """
        arrays = self._native.arrays()
        arrays["items"] = arrays["items"].reshape(-1).view(ITEM)
        return arrays

    def tiles(self, direction: str = "forward") -> TileCounts:
        """How many tiles are empty, partial and full, over every batch row and query head."""
        if direction not in _DIRECTIONS:
            raise ValueError(f"direction: one of {', '.join(_DIRECTIONS)} expected, got {direction!r}")
        return TileCounts(*self._native.tiles(_DIRECTIONS.index(direction)))

    def to_bytes(self) -> bytes:
        return self._native.bytes().tobytes()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan's bytes; a file that is there stays whole until they are all written."""
        with whole_file(path) as file:
            file.write(memoryview(self._native.bytes()))

    def show(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        compare: "Plan | None" = None,
        receipt: "Receipt | None" = None,
        q: Any = None,
        k: Any = None,
        open: bool | None = None,
    ) -> View:
        """Writes the plan as one HTML file that needs nothing but a browser (docs/view.md), at `path` or in a temporary
        folder. A notebook shows what this returns; elsewhere a browser opens it, where there is a screen and `open` is not
        False. `compare` is a second plan, shown beside this one with the differences marked; `receipt` is shown too; with
        `q` and `k` a plan of a contract that routes shows its picks with their scores.

        >>> import tessera
        >>> c = tessera.Contract(q_len=1024, dim_qk=32, mask="causal")
        >>> view = tessera.Engine().prepare(c).plan().show(open=False)
        >>> view.path.suffix, view._repr_html_()[:7]
        ('.html', '<iframe')
        """
        if compare is not None and not isinstance(compare, Plan):
            raise TypeError(f"compare: a tessera.Plan expected, got {type(compare).__name__}")
        if receipt is not None and not hasattr(receipt, "_native"):
            raise TypeError(f"receipt: a tessera.Receipt expected, got {type(receipt).__name__}")
        view = _view.write(_view.page_of(self, compare, receipt, host_array(q, "q"), host_array(k, "k")), f"plan_{self.fingerprint[:8]}", path)
        if not _view.is_notebook() if open is None else open:
            _view.open_in_browser(view)
        return view

    def operand(self) -> np.ndarray:
        """The plan as a read-only array of bytes that is as long for every plan of its attention, with all of the plan in
        it: what a compiled program of PyTorch or JAX takes as an input, so that new documents compile nothing anew.

        Its length is that of the largest plan of the class, memory that is never touched, up to 64 MiB. A plan that needs
        more makes the operands from then on longer, and programs are compiled once more for that length;
        `Attention.reserve` sets a length that all of them have.
        """
        view = self._memory().view()
        view.flags.writeable = False
        return view

    def _memory(self) -> np.ndarray:
        """The operand as frameworks take it, that warn of memory they may not write; none of them writes it."""
        if self._operand is None:
            self.attention._engine._check_process()
            self._operand = self.attention._register().operand(self)
        return self._operand

    def to_dict(self) -> dict[str, Any]:
        """The whole plan as `tessera plan --json` prints it."""
        return json.loads(self._native.json())

    def __copy__(self) -> "Plan":
        return self

    def __deepcopy__(self, memo: Any) -> "Plan":
        return self

    def __reduce__(self):
        """Its bytes and its attention; what comes back does not know its batch, as one that was loaded."""
        return _unpickle, (self.attention, self.to_bytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        empty, partial, full = self.tiles()
        return f"<tessera.Plan {self.fingerprint[:8]}: {full} full and {partial} partial of {empty + partial + full} tiles>"

    def _repr_html_(self) -> str:
        rows = "".join(
            "<tr><th style='text-align:left'>{}</th><td>{:,}</td><td>{:,}</td><td>{:,}</td></tr>".format(name, *self.tiles(name))
            for name in _DIRECTIONS
        )
        text = html.escape(str(self.attention.contract.mask))
        return (
            f"<table><caption>plan {self.fingerprint[:8]} of {text}</caption>"
            f"<tr><th></th><th>empty tiles</th><th>partial</th><th>full</th></tr>{rows}</table>"
        )


def _unpickle(attention: "Attention", data: bytes) -> Plan:
    return attention.plan_from_bytes(data)


def host_array(x: Any, name: str) -> Any:
    """A tensor of PyTorch's as an array of the same memory; anything else is for the binding to take or to refuse."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor):
        return x
    if x.device.type != "cpu":
        raise ValueError(f"{name}: routing reads tensors on the CPU, this one is on {x.device}")
    x = x.detach().resolve_neg()
    return x.view(torch.int16).numpy().view(np.uint16) if x.dtype == torch.bfloat16 else x.numpy()


def make_batch(given: Mapping[str, Any]) -> _native.Batch:
    """A batch of the arguments that were given, by the names of `Attention.plan`."""
    batch = _native.new_batch()
    for prefix, side in _SIDES.items():
        if (ids := given.get(f"{prefix}doc_ids")) is not None:
            ids = _ints(ids, f"{prefix}doc_ids")
            if ids.ndim not in (1, 2):
                raise ValueError(f"{prefix}doc_ids: [batch, tokens] expected, got shape {ids.shape}")
            batch.set_doc_ids(side, ids if ids.ndim == 2 else ids[None])
        for form in ("doc_lengths", "cu_seqlens"):
            if (rows := given.get(f"{prefix}{form}")) is not None:
                getattr(batch, f"set_{form}")(side, *_ragged(rows, f"{prefix}{form}"))
        if (tokens := given.get(f"{prefix}valid_tokens")) is not None:
            batch.set_valid_tokens(side, np.atleast_1d(_ints(tokens, f"{prefix}valid_tokens")))
    if (slots := given.get("valid_slots")) is not None:
        batch.set_valid_slots(np.atleast_1d(_ints(slots, "valid_slots")), _needed(given, "base_block_tokens", "valid_slots"))
    if (picks := given.get("picks")) is not None:
        batch.set_picks(_ints(picks, "picks"), _needed(given, "block_tokens", "picks"))
    return batch


def _needed(given: Mapping[str, Any], name: str, by: str) -> int:
    if given.get(name) is None:
        raise TypeError(f"{name} is needed with {by}")
    return int(given[name])


def _ints(values: Any, name: str) -> np.ndarray:
    """Dense int32 of this machine's byte order; a copy only where it was anything else."""
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(f"{name}: a masked array has values that do not count; fill it")
    array = np.asarray(values)
    if array.dtype == np.int32 and array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative:
        return array
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"{name}: integers expected, got {array.dtype}")
    if array.size and (array.min() < -(2**31) or array.max() >= 2**31):
        raise ValueError(f"{name}: a number does not fit in 32 bits")
    return np.ascontiguousarray(array, np.int32)


def _ragged(rows: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows of different lengths, one after the other, and how long each is. Plain numbers are one row."""
    if isinstance(rows, np.ndarray):
        rows = [rows] if rows.ndim == 1 else list(rows)
    else:
        if not isinstance(rows, Iterable) or isinstance(rows, (str, Mapping)):
            raise TypeError(f"{name}: a sequence of numbers for each batch row expected, got {type(rows).__name__}")
        rows = list(rows)
        if rows and all(np.ndim(row) == 0 for row in rows):
            rows = [rows]
    parts = [_ints(row, name) for row in rows]
    if any(part.ndim != 1 for part in parts):
        raise ValueError(f"{name}: one sequence of numbers for each batch row expected")
    counts = np.array([len(part) for part in parts], np.int64)
    return np.ascontiguousarray(np.concatenate(parts) if parts else np.empty(0, np.int32)), counts
