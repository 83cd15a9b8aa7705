#!/usr/bin/env python3
"""Attention from a folder that `tessera emit` wrote, inside of JAX: a primitive that carries our programs.

    tessera emit examples/causal.toml --out causal_v6e
    python3 examples/use_emitted.py causal_v6e          lowers forward and backward for a TPU, and runs nothing

On a machine with a TPU, `attention = Attention("causal_v6e")` and then `attention(q, k, v)` inside of jax.jit, with
gradients; where the contract has sink logits, `attention(q, k, v, sink_logits)`. It was lowered on machines without one, and never ran on a TPU. Needs jax; exits 77 without it.
"""

import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

try:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir
    from jax._src.lib.mlir.dialects import func
    from jax.extend.core import Primitive
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

WITH_SINK_LOGITS = """version = 1
[shape]
batch = 2
q_len = 300
kv_len = 300
num_q_heads = 4
num_kv_heads = 2
dim_qk = 64
dim_v = 64
dtype = "bf16"
[mask]
expr = "causal"
[score]
sink_logits = true
[tiles]
q = 128
kv = 128
reason = "a small example"
"""

DTYPES = {"F32": jnp.float32, "BF16": jnp.bfloat16, "I32": jnp.int32}


def read_tables(path):
    """The plan's tables; safetensors is a length, a JSON header and bytes."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    tables = {}
    for name, about in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + at for at in about["data_offsets"])
        tables[name] = np.frombuffer(data[begin:end], np.int32).reshape(about["shape"])
    return tables


def make_primitive(folder, program):
    """One that stands for the whole program: its lowering puts our module's main into JAX's."""
    text = (folder / program["file"]).read_text()
    results = [jax.core.ShapedArray(r["shape"], DTYPES[r["type"]]) for r in program["results"]]
    primitive = Primitive(f"tessera_{program['pass']}")
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda *operands: results)

    def lower(context, *operands):
        module = ir.Module.parse(text)
        main = next(f for f in module.body if ir.StringAttr(f.attributes["sym_name"]).value == "main")
        types = ir.TypeAttr(main.attributes["function_type"]).value.results
        name = mlir.merge_mlir_modules(context.module_context.module, primitive.name, module,
                                       dst_symtab=context.module_context.symbol_table)
        return func.CallOp(types, ir.FlatSymbolRefAttr.get(name), list(operands)).results

    mlir.register_lowering(primitive, lower, platform="tpu")
    return primitive


class Attention:
    """o = attention(q, k, v), each [batch, heads, tokens, dim]; differentiable once.

    A contract with sink logits takes them too, [heads] in f32, and has a gradient of them.
    """

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        self.tables = read_tables(folder / "tables.safetensors")
        self.programs = {p["pass"]: p for p in json.loads((folder / "operands.json").read_text())["programs"]}
        if any(p["parts"] != 1 for p in self.programs.values()):
            raise ValueError("programs that share a pass between calls are not of a TPU")
        self.primitives = {name: make_primitive(folder, p) for name, p in self.programs.items()}
        self.has_sink_logits = any(o["name"] == "sink_logits" for o in self.programs["forward"]["operands"])
        self.call = jax.custom_vjp(lambda q, k, v, sink_logits: self._forward(q, k, v, sink_logits)[0])
        self.call.defvjp(self._forward, self._backward)

    def __call__(self, q, k, v, sink_logits=None):
        if (sink_logits is not None) != self.has_sink_logits:
            raise ValueError("the contract has sink logits: attention(q, k, v, sink_logits)" if self.has_sink_logits
                             else "the contract has no sink logits, and some were given")
        return self.call(q, k, v, sink_logits)

    def _bind(self, name, tensors):
        """The results by name. What no call changes comes from the folder."""
        program = self.programs[name]
        operands = []
        for operand in program["operands"]:
            if operand["source"] == "plan":
                operands.append(jnp.asarray(self.tables[operand["name"]]))
            elif operand["source"] == "contract":
                operands.append(jnp.float32(operand["value"]))
            elif operand["source"] == "part":
                operands.append(jnp.int32(0))
            else:
                operands.append(tensors[operand["name"]])
        results = self.primitives[name].bind(*operands)
        return dict(zip((r["name"] for r in program["results"]), results))

    @staticmethod
    def _tokens(rows, like):
        """Rows of tiles of every (batch row, head) as tokens; those past the last are padding."""
        batch, heads, tokens = like.shape[:3]
        return rows.reshape(batch, heads, -1, *rows.shape[2:])[:, :, :tokens]

    def _forward(self, q, k, v, sink_logits):
        results = self._bind("forward", {"q": q, "k": k, "v": v, "sink_logits": sink_logits})
        o = self._tokens(results["o"], q).astype(q.dtype)
        return o, (q, k, v, sink_logits, o, self._tokens(results["lse"], q))

    def _backward(self, saved, do):
        q, k, v, sink_logits, o, lse = saved
        delta = jnp.sum(o.astype(jnp.float32) * do.astype(jnp.float32), axis=-1)
        tensors = {"q": q, "k": k, "v": v, "sink_logits": sink_logits, "do": do, "lse": lse, "delta": delta}
        results = self._bind("backward", tensors)
        dq, dk, dv = (self._tokens(results[name], like).astype(like.dtype)
                      for name, like in (("dq", q), ("dk", k), ("dv", v)))
        if sink_logits is None:
            return dq, dk, dv, None
        # One partial sum for each row of tiles of every (batch row, head).
        shares = results["dsink_logits"].reshape(q.shape[0], q.shape[1], -1)
        return dq, dk, dv, shares.sum(axis=(0, 2)).astype(sink_logits.dtype)


def lower(folder, out):
    """Forward and gradients for a TPU; whether every kernel that was emitted is in the text."""
    attention = Attention(folder)
    shapes = {o["name"]: o for o in attention.programs["forward"]["operands"]}
    names = [n for n in ("q", "k", "v", "sink_logits") if n in shapes]
    arguments = [jax.ShapeDtypeStruct(shapes[n]["shape"], DTYPES[shapes[n]["type"]]) for n in names]

    def loss(*tensors):
        return attention(*tensors).astype(jnp.float32).sum()

    gradients = jax.grad(loss, argnums=tuple(range(len(names))))
    for name, argument, gradient in zip(names, arguments, jax.eval_shape(gradients, *arguments)):
        if (gradient.shape, gradient.dtype) != (argument.shape, argument.dtype):
            raise ValueError(f"the gradient of {name} is {gradient}, and {name} is {argument}")
    lowered = jax.jit(gradients).trace(*arguments).lower(lowering_platforms=("tpu",))
    text = lowered.as_text()
    if out:
        pathlib.Path(out).write_text(text)
    kernels = text.count("@tpu_custom_call")
    print(f"lowered for a TPU: {kernels} kernels in {len(text):,} characters")
    return kernels >= len(list(pathlib.Path(folder).glob("*.mosaic"))) > 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", help="what tessera emit wrote")
    parser.add_argument("--program", help="tessera: it writes the folder")
    parser.add_argument("--out", help="write the StableHLO that JAX made; with --program, of the contract with sink logits")
    args = parser.parse_args()
    if args.folder:
        return 0 if lower(args.folder, args.out) else 1
    if not args.program:
        parser.error("a folder or --program is needed")
    with tempfile.TemporaryDirectory() as place:
        sinks = pathlib.Path(place) / "sinks.toml"
        sinks.write_text(WITH_SINK_LOGITS)
        lowered = []
        for name, contract in (("plain", "causal:300:h4/2:d64:bf16:t128x128"), ("sinks", sinks)):
            folder = pathlib.Path(place) / name
            subprocess.run([args.program, "emit", contract, "--out", folder], check=True, capture_output=True)
            lowered.append(lower(folder, args.out))
        return 0 if all(lowered) else 1


if __name__ == "__main__":
    raise SystemExit(main())
