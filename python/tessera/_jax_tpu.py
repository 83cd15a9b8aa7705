"""Attention on a TPU, inside of JAX: the engine's own programs, with our Mosaic kernels in them, as primitives.

The text of a program is the class's and the plan's tables are its operands, so new documents trace and compile nothing.
Nothing of this has run on a TPU: it is lowered on any machine, and Google's compiler takes the module (docs/tpu.md).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive

from . import _native
from ._engine import Attention
from ._plan import make_batch

LANES = ("splash", "xla_pallas")  # whose programs are our kernels as payloads

_DTYPES = {"F32": jnp.float32, "BF16": jnp.bfloat16, "F16": jnp.float16, "I32": jnp.int32}


class Program:
    """One pass: its StableHLO, what it takes and what it gives. Equal where the texts are: the plan's tables are not in it."""

    def __init__(self, name: str, text: str, operands: list[Any], results: list[Any]):
        self.name, self.text = name, text
        self.operands = [(source, described[0]) for source, described in operands]
        self.constants = {described[0]: described[3].reshape(()) for source, described in operands if source == "contract"}
        self.results = [(one[0], tuple(one[2]), _DTYPES[one[1]]) for one in results]
        self._key = (text, tuple(sorted((name, value.item()) for name, value in self.constants.items())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"<{self.name}>"


def lower(attention: Attention, batch: dict[str, Any], q: Any, k: Any) -> tuple[tuple[Program, ...], dict[str, np.ndarray]]:
    """The programs of an attention's lane, forward first, and the tables of a batch."""
    made = _native.lower(attention._engine._native, attention.contract._native, attention._target, attention._options,
                         make_batch(batch), q, k).list()  # fmt: skip
    tables = {described[0]: described[3] for _, _, operands, _ in made for source, described in operands if source == "plan"}
    return tuple(Program(*one) for one in made), tables


def _abstract(*operands: Any, program: Program) -> list[Any]:
    return [jax.core.ShapedArray(shape, dtype) for _, shape, dtype in program.results]


def _lower(context: Any, *operands: Any, program: Program) -> Any:
    """Puts the program into JAX's module, and calls it there."""
    from jax._src.interpreters import mlir  # not public: what JAX has for a module made elsewhere
    from jax._src.lib.mlir import ir
    from jax._src.lib.mlir.dialects import func

    module = ir.Module.parse(program.text)
    main = next(f for f in module.body if ir.StringAttr(f.attributes["sym_name"]).value == "main")
    types = ir.TypeAttr(main.attributes["function_type"]).value.results
    name = mlir.merge_mlir_modules(context.module_context.module, "tessera_tpu", module,
                                   dst_symtab=context.module_context.symbol_table)  # fmt: skip
    return func.CallOp(types, ir.FlatSymbolRefAttr.get(name), list(operands)).results


_primitive = Primitive("tessera_tpu")
_primitive.multiple_results = True
_primitive.def_abstract_eval(_abstract)


@functools.cache
def register() -> None:
    from jax.interpreters import mlir

    mlir.register_lowering(_primitive, _lower, platform="tpu")


def _call(program: Program, tables: dict[str, jax.Array], tensors: dict[str, jax.Array]) -> dict[str, jax.Array]:
    operands = []
    for source, name in program.operands:
        if source == "plan":
            operands.append(tables[name])
        elif source == "contract":
            operands.append(jnp.asarray(program.constants[name]))
        elif source == "part":
            operands.append(jnp.int32(0))
        else:
            operands.append(tensors[name])
    return dict(zip((name for name, _, _ in program.results), _primitive.bind(*operands, program=program)))


def _tokens(rows: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Rows of tiles of every (batch row, head) as tokens; those past the last are padding."""
    batch, heads, tokens = shape[:3]
    return rows.reshape(batch, heads, -1, *rows.shape[2:])[:, :, :tokens]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def attention(programs: tuple[Program, ...], shape: Any, q: Any, k: Any, v: Any, tables: Any, sinks: Any) -> Any:
    results = _call(programs[0], tables, {"q": q, "k": k, "v": v, "sink_logits": sinks})
    return _tokens(results["o"], shape.o).astype(q.dtype), _tokens(results["lse"], shape.rows)


def _forward(programs: tuple[Program, ...], shape: Any, q: Any, k: Any, v: Any, tables: Any, sinks: Any) -> Any:
    if len(programs) < 2:
        raise ValueError("this attention was prepared for a forward alone: prepare it with passes='both'")
    o, lse = attention(programs, shape, q, k, v, tables, sinks)
    return (o, lse), (q, k, v, o, lse, tables, sinks)


def _backward(programs: tuple[Program, ...], shape: Any, kept: Any, cotangents: Any) -> Any:
    q, k, v, o, lse, tables, sinks = kept
    dout = cotangents[0]
    delta = jnp.sum(o.astype(jnp.float32) * dout.astype(jnp.float32), axis=-1)
    tensors = {"q": q, "k": k, "v": v, "sink_logits": sinks, "do": dout, "lse": lse, "delta": delta}
    results = _call(programs[1], tables, tensors)
    dq, dk, dv = (_tokens(results[name], of).astype(q.dtype)
                  for name, of in (("dq", shape.q), ("dk", shape.k), ("dv", shape.v)))  # fmt: skip
    no_gradient = {name: np.zeros(table.shape, jax.dtypes.float0) for name, table in tables.items()}
    dsinks = None
    if sinks is not None:
        rows = results["dsink_logits"]
        each = math.prod(rows.shape) // (shape.batch * shape.num_q_heads)
        dsinks = rows.reshape(shape.batch, shape.num_q_heads, each).sum((0, 2))
    return dq, dk, dv, no_gradient, dsinks


attention.defvjp(_forward, _backward)
