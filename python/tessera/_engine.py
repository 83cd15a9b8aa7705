"""Engine, attention, bound: what runs, decided once and called many times."""

from __future__ import annotations

import json
import os
import pathlib
import threading
import weakref
from typing import Any, Iterable, Iterator, Sequence

import numpy as np

from . import _native
from ._contract import Contract, Shape, tile_pair
from ._plan import Plan, host_array, make_batch
from ._receipt import Receipt

MEMORIES = ("host", "gpu", "tpu")  # as the C interface counts them
_PASSES = {"forward": 1, "backward": 2, "both": 3}


class Engine:
    """Owns everything that changes: prepared attentions, workspaces, plugins. Without options it reads the environment
    (TESSERA_LANE, TESSERA_ISA, ...) once, now; with options it does not look at it. Threads may share one.

    >>> import tessera
    >>> attn = tessera.Engine().prepare(tessera.Contract(q_len=512, dim_qk=32, mask="causal"))
    >>> attn.lane
    'cpu'
    """

    def __init__(
        self,
        *,
        lane: str | None = None,
        isa: str | None = None,
        machine_isa: str | None = None,
        plugin: str | None = None,
        ledger: str | None = None,
        xla_folder: str | None = None,
        xla_flags: str | None = None,
        max_prepared: int | None = None,
    ):
        given = {name: value for name, value in locals().items() if name not in ("self", "__class__") and value is not None}
        self._native = _native.new_engine(given or None)
        self._pid = os.getpid()
        self._given = given
        _engines[tuple(sorted(given.items()))] = self

    def __copy__(self) -> "Engine":
        return self

    def __deepcopy__(self, memo: Any) -> "Engine":
        return self

    def __reduce__(self):
        """Pickled, it is what it was made with: where it arrives, the engine there that was made with the same, or a new one."""
        return _engine_of, (self._given,)

    def prepare(
        self,
        contract: Contract,
        target: str = "auto",
        *,
        passes: str = "both",
        lane: str | None = None,
        isa: str | None = None,
        exclude: Sequence[str] = (),
        strict: bool = False,
        threads: int | None = None,
        tile: tuple[int, int] | None = None,
        widen_class: bool = False,
        verify_stages: bool = False,
        plugin: str | None = None,
        ledger: str | None = None,
        experimental: bool = False,
        memory: str = "host",
        ordinal: int = 0,
    ) -> "Attention":
        """Decides, once and for all, what will run; `target="auto"` is this machine's processor.

        `lane` and `isa` force one by name, `exclude` names lanes never to use, `strict` makes any fallback an error.
        `memory` ("host", "gpu", "tpu") and `ordinal` say where the tensors of calls will be.
        """
        self._check_process()
        if not isinstance(contract, Contract):
            raise TypeError(f"contract: a tessera.Contract expected, got {type(contract).__name__}")
        if not isinstance(target, str):
            raise TypeError(f"target: a name expected, got {type(target).__name__}")
        if isinstance(exclude, str):
            raise TypeError("exclude: a sequence of names expected, got one name")
        if passes not in _PASSES:
            raise ValueError(f"passes: one of {', '.join(_PASSES)} expected, got {passes!r}")
        if memory not in MEMORIES:
            raise ValueError(f"memory: one of {', '.join(MEMORIES)} expected, got {memory!r}")
        options: dict[str, Any] = {
            "passes": _PASSES[passes],
            "exclude": list(exclude),
            "strict": int(strict),
            "widen_class": int(widen_class),
            "verify_stages": int(verify_stages),
            "experimental": int(experimental),
            "memory": MEMORIES.index(memory),
            "ordinal": ordinal,
        }
        if tile is not None:
            options["tile_q"], options["tile_kv"] = tile_pair(tile)
        for name, value in (("lane", lane), ("isa", isa), ("plugin", plugin), ("ledger", ledger)):
            if value is not None:
                options[name] = value
        if threads is not None:
            if not isinstance(threads, int) or threads < 1:
                raise ValueError(f"threads: a number of 1 or more expected, got {threads!r}")
            options["threads"] = threads
        name = "cpu" if target == "auto" else target
        return _attention_of(self, contract, name, options)

    def _check_process(self) -> None:
        """Threads do not follow a fork: an engine is good in the process that made it."""
        if os.getpid() != self._pid:
            raise RuntimeError("this engine was made before os.fork(); make a new one in the child process")


_engines: weakref.WeakValueDictionary[Any, Engine] = weakref.WeakValueDictionary()


def _engine_of(given: dict[str, Any]) -> Engine:
    found = _engines.get(tuple(sorted(given.items())))
    return found if found is not None and found._pid == os.getpid() else Engine(**given)


def _attention_of(engine: Engine, contract: Contract, target: str, options: dict[str, Any]) -> "Attention":
    made = Attention(engine, contract, _native.new_attention(engine._native, contract._native, target, options))
    made._target, made._options = target, options
    made._spelling = (id(engine), contract.text, target, repr(sorted(options.items())))
    return made


class Attention:
    """What will run for a contract, and why; makes plans and binds them. Made by `Engine.prepare`."""

    def __init__(self, engine: Engine, contract: Contract, native: _native.Attention):
        self._engine = engine
        self._native = native
        self._registered: _Registered | None = None
        self._spelling: Any = None
        self._target = "cpu"
        self._options: dict[str, Any] = {}
        self.contract = contract

    def __copy__(self) -> "Attention":
        return self

    def __deepcopy__(self, memo: Any) -> "Attention":
        return self

    def __reduce__(self):
        return _attention_of, (self._engine, self.contract, self._target, self._options)

    def _register(self) -> "_Registered":
        """This attention's number, for programs that hold numbers. Equal requests to one engine share it."""
        if self._registered is None:
            with _registry_lock:
                found = _registry.get(self._spelling)
                if found is None or found.pid != os.getpid():
                    found = _registry[self._spelling] = _Registered(self)
            self._registered = found
        return self._registered

    def reserve(self, plan_bytes: int) -> None:
        """Makes plan operands at least this long (`Plan.operand`), so that no later batch of a program needs a longer one."""
        registered = self._register()
        registered.operand_bytes = max(registered.operand_bytes, int(plan_bytes))
        registered.image_bytes = max(registered.image_bytes, -(-int(plan_bytes) // 256) * 256)

    @property
    def _is_on_gpu(self) -> bool:
        """Whether its calls take tensors in a GPU's memory."""
        return self._options.get("memory", 0) == MEMORIES.index("gpu")

    @property
    def lane(self) -> str:
        """The selected lane. A plan is asked about again when it is bound."""
        return self._native.lane

    @property
    def key(self) -> str:
        return self._native.key

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """Every lane's answer to this contract, with its reason: `lane`, `step`, `accepted`, `reason`, `detail`."""
        return json.loads(self._native.json())["decisions"]

    def check(self) -> None:
        """Raises when no lane that may run this accepted the contract."""
        self._native.check()

    def plan(
        self,
        *,
        doc_ids: Any = None,
        doc_lengths: Any = None,
        cu_seqlens: Any = None,
        valid_tokens: Any = None,
        valid_slots: Any = None,
        base_block_tokens: int | None = None,
        picks: Any = None,
        block_tokens: int | None = None,
        q_doc_ids: Any = None,
        kv_doc_ids: Any = None,
        q_doc_lengths: Any = None,
        kv_doc_lengths: Any = None,
        q_cu_seqlens: Any = None,
        kv_cu_seqlens: Any = None,
        q_valid_tokens: Any = None,
        kv_valid_tokens: Any = None,
        q: Any = None,
        k: Any = None,
    ) -> Plan:
        """A plan of one batch, from arrays of integers: int32 is taken as it is, other integers are converted.

        Documents come as `doc_ids` [batch, tokens] (negative is padding), or as `doc_lengths` or `cu_seqlens`, a sequence
        for each batch row. A one-dimensional array stands for a batch of one row. `q` and `k`, arrays or tensors of
        PyTorch on the CPU, are looked at when the contract routes.

        >>> import tessera
        >>> c = tessera.Contract(q_len=1024, dim_qk=32, mask="causal and documents")
        >>> plan = tessera.Engine().prepare(c).plan(doc_lengths=[[300, 724]])
        >>> plan.tiles()
        TileCounts(empty=8, partial=7, full=1)
        """
        self._engine._check_process()
        batch = make_batch(
            {name: value for name, value in locals().items() if name not in ("self", "q", "k") and value is not None}
        )
        return Plan(self._native.plan(batch, host_array(q, "q"), host_array(k, "k")), self, batch)

    def load_plan(self, path: str | os.PathLike[str]) -> Plan:
        """A plan that `Plan.save` wrote. Its bytes are checked, and that it was made for this contract."""
        return self.plan_from_bytes(pathlib.Path(path).read_bytes())

    def plan_from_bytes(self, data: bytes) -> Plan:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data: bytes expected, got {type(data).__name__}")
        return Plan(_native.load_plan(self.contract._native, bytes(data)), self, None)

    def bind(self, plan: Plan) -> "Bound":
        """Asks the lanes about the plan; the first that accepts is bound, and compiles what it must."""
        self._engine._check_process()
        if not isinstance(plan, Plan):
            raise TypeError(f"plan: a tessera.Plan expected, got {type(plan).__name__}")
        return Bound(self, plan, self._native.bind(plan._native))

    def __repr__(self) -> str:
        return f"<tessera.Attention on {self.lane} for {self.contract!r}>"


class _Registered:
    """An attention that compiled programs name by number; kept for as long as the process."""

    def __init__(self, attention: Attention):
        self.pid = os.getpid()
        self.attention = attention
        self.shape = attention.contract.shape
        self.number = _native.register_attention(attention._native, attention._options.get("ordinal", 0))
        self.operand_bytes = 0
        self.image_bytes = 0
        _numbers[self.number] = self

    def operand(self, plan: Plan) -> np.ndarray:
        """The plan as one array of bytes whose length plans share: what the class needs at most. A plan that needs more gets
        twice that, to a power of two."""
        data, head = plan._native.bytes(), np.frombuffer(_native.operand_head(plan._native), np.uint8)
        needed = len(head) + len(data)
        of_class = -(-min(len(head) + plan._native.class_bytes, _MOST_OPERAND_BYTES) // 4096) * 4096
        self.operand_bytes = max(self.operand_bytes, of_class)
        if needed > self.operand_bytes:
            self.operand_bytes = 1 << (2 * needed - 1).bit_length()
        _native.remember(self.number, plan._native, self.attention._native.bind(plan._native))
        # At a multiple of 64, so that frameworks take the memory as it is.
        raw = np.zeros(self.operand_bytes + 64, np.uint8)
        skip = -raw.ctypes.data % 64
        out = raw[skip : skip + self.operand_bytes]
        out[: len(head)] = head
        out[len(head) : needed] = data
        return out

    def image(self, plan: Plan) -> np.ndarray:
        """The plan as kernels of a GPU read it there, in an array whose length plans share. A copy of all of it goes to the GPU
        for each plan, so the length is twice what the first one needs, and less where the class cannot need it."""
        native = self.attention._native
        needed = _native.plan_image(native, plan._native, np.empty(0, np.uint8))
        if needed > self.image_bytes:
            shape, data = self.shape, plan._native
            # What an image has for every token of the rows of its three lists, where a tile needs to know documents.
            tokens = 16 * shape.batch * (2 * shape.q_len + shape.kv_len + 3 * 128) if "document" in self.attention.contract.text else 0
            # Of the rest that the plans of a class differ in, it has as much as the plan in each direction.
            of_class = needed + 3 * max(0, data.class_bytes - len(data.bytes())) + tokens
            self.image_bytes = -(-min(of_class, 2 * needed + tokens) // 256) * 256
        out = np.zeros(self.image_bytes, np.uint8)
        _native.plan_image(native, plan._native, out)
        _native.remember_first(self.number, plan._native)
        return out


_MOST_OPERAND_BYTES = 1 << 26
_registry: dict[Any, _Registered] = {}
_numbers: dict[int, _Registered] = {}
_registry_lock = threading.Lock()


def shape_of_number(number: int) -> Shape:
    """The sizes that a registered attention's tensors have."""
    found = _numbers.get(number)
    if found is None:
        raise ValueError(f"no attention has number {number} in this process")
    return found.shape


class ForwardResult:
    """`o, lse = result`, or by name; `receipt` when it was asked for."""

    __slots__ = ("o", "lse", "receipt")

    def __init__(self, o: np.ndarray, lse: np.ndarray, receipt: Receipt | None):
        self.o, self.lse, self.receipt = o, lse, receipt

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter((self.o, self.lse))


class BackwardResult:
    """`dq, dk, dv = result`, or by name; `dsink_logits` where the contract has sink logits."""

    __slots__ = ("dq", "dk", "dv", "dsink_logits", "receipt")

    def __init__(self, dq: np.ndarray, dk: np.ndarray, dv: np.ndarray, dsink_logits: np.ndarray | None,
                 receipt: Receipt | None):  # fmt: skip
        self.dq, self.dk, self.dv, self.dsink_logits, self.receipt = dq, dk, dv, dsink_logits, receipt

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter((self.dq, self.dk, self.dv))


class Bound:
    """A plan bound to a lane: called many times, from any thread, on the caller's own memory. Made by `Attention.bind`.

    Arrays are [batch, heads, tokens, dim], or with `layout="bthd"` [batch, tokens, heads, dim]; any strides, as long as
    the last axis is contiguous. Nothing is copied. bfloat16 is `ml_dtypes.bfloat16`, or its bits as uint16.
    """

    def __init__(self, attention: Attention, plan: Plan, native: _native.Bound):
        self._engine = attention._engine
        self._native = native
        self._shape = attention.contract.shape
        self.attention = attention
        self.plan = plan

    def __copy__(self) -> "Bound":
        return self

    def __deepcopy__(self, memo: Any) -> "Bound":
        return self

    def __reduce__(self):
        return Attention.bind, (self.attention, self.plan)

    @property
    def lane(self) -> str:
        return self._native.lane

    @property
    def kernel(self) -> str:
        return self._native.kernel

    @property
    def isa(self) -> str:
        return self._native.isa

    @property
    def workspace_bytes(self) -> int:
        return self._native.workspace_bytes

    def forward(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        *,
        sink_logits: np.ndarray | None = None,
        out: np.ndarray | None = None,
        lse: np.ndarray | None = None,
        row_max: np.ndarray | None = None,
        layout: str = "bhtd",
        receipt: bool = False,
        digests: bool = False,
    ) -> ForwardResult:
        """Attention of q over k and v: `o`, of v's type or in `out`, and the log-sum-exp of each row's scores.

        >>> import numpy as np, tessera
        >>> attn = tessera.Engine().prepare(tessera.Contract(q_len=4, dim_qk=2, mask="causal"))
        >>> zero, v = np.zeros((1, 1, 4, 2), np.float32), np.arange(8, dtype=np.float32).reshape(1, 1, 4, 2)
        >>> o, lse = attn.bind(attn.plan()).forward(zero, zero, v)
        >>> o[0, 0, :, 0].tolist()
        [0.0, 1.0, 2.0, 3.0]
        """
        self._engine._check_process()
        if layout != "bhtd":
            q, k, v, out = _swap(layout, (q, k, v, out))
        shape = self._shape
        if out is None:
            out = _empty_like(q, shape.o)
        if lse is None:
            lse = np.empty(shape.rows, np.float32)
        made = self._native.forward(q, k, v, sink_logits, out, lse, row_max, 2 if digests else int(receipt))
        if layout != "bhtd":
            out = out.swapaxes(1, 2)
        return ForwardResult(out, lse, None if made is None else Receipt(made))

    def backward(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        o: np.ndarray | None,
        lse: np.ndarray,
        dout: np.ndarray,
        *,
        sink_logits: np.ndarray | None = None,
        delta: np.ndarray | None = None,
        dq: np.ndarray | None = None,
        dk: np.ndarray | None = None,
        dv: np.ndarray | None = None,
        layout: str = "bhtd",
        receipt: bool = False,
        digests: bool = False,
    ) -> BackwardResult:
        """Gradients of q, k and v (and of the sink logits) from `dout`, with what the forward gave.

        `delta`, the sum of o * dout for each row, may be given in place of o.
        """
        self._engine._check_process()
        if layout != "bhtd":
            q, k, v, o, dout, dq, dk, dv = _swap(layout, (q, k, v, o, dout, dq, dk, dv))
        dq = _empty_like(q, self._shape.q) if dq is None else dq
        dk = _empty_like(k, self._shape.k) if dk is None else dk
        dv = _empty_like(v, self._shape.v) if dv is None else dv
        dsink = np.empty(self._shape.num_q_heads, np.float32) if self._shape.sink_logits else None
        arrays = {
            "q": q, "k": k, "v": v, "o": o, "lse": lse, "dout": dout, "sink_logits": sink_logits, "delta": delta,
            "dq": dq, "dk": dk, "dv": dv, "dsink_logits": dsink,
        }  # fmt: skip
        made = self._native.backward(arrays, 2 if digests else int(receipt))
        if layout != "bhtd":
            dq, dk, dv = (x.swapaxes(1, 2) for x in (dq, dk, dv))
        return BackwardResult(dq, dk, dv, dsink, None if made is None else Receipt(made))

    def __repr__(self) -> str:
        return f"<tessera.Bound {self.kernel or self.lane} ({self.lane})>"


def _empty_like(x: np.ndarray, shape: tuple[int, int, int, int]) -> np.ndarray:
    """A new array of this shape with its axes in memory as those of x, so that [B,T,H,D] memory stays that."""
    if not isinstance(x, np.ndarray):
        return np.empty(shape, np.float32)  # x is refused by name before anything is written
    if x.ndim == 4 and x.strides[1] < x.strides[2]:
        batch, heads, tokens, dim = shape
        return np.empty((batch, tokens, heads, dim), x.dtype).swapaxes(1, 2)
    return np.empty(shape, x.dtype)


def _swap(layout: str, arrays: Iterable[Any]) -> list[Any]:
    if layout != "bthd":
        raise ValueError(f"layout: 'bhtd' or 'bthd' expected, got {layout!r}")
    return [x.swapaxes(1, 2) if isinstance(x, np.ndarray) and x.ndim == 4 else x for x in arrays]
