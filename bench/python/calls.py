#!/usr/bin/env python3
"""What Python adds to a call, beside the bare engine in the same run; and planning beside the peers.

The problem of the calls is so small that the engine takes microseconds: what is left is overhead. Each figure is the best
of many, because a shared machine adds and never takes away. Every row says the limit that the project set for it.
"""

import argparse
import json
import platform
import sys
import time

import numpy as np

import tessera
from tessera import mask as m

def best(function, samples=400):
    """Microseconds of one call: the best mean of many samples, each so short (0.2 ms) that a busy machine leaves some of
    them whole."""
    for _ in range(10):
        function()
    begin = time.perf_counter_ns()
    function()
    number = max(1, 200_000 // max(1, time.perf_counter_ns() - begin))
    out = []
    for _ in range(samples):
        begin = time.perf_counter_ns()
        for _ in range(number):
            function()
        out.append((time.perf_counter_ns() - begin) / number / 1000)
    return min(out)


def small():
    contract = tessera.Contract(q_len=16, num_q_heads=1, dim_qk=16, mask="causal")
    attn = tessera.Engine().prepare(contract, threads=1)
    plan = attn.plan()
    x = np.random.default_rng(0).standard_normal((1, 1, 16, 16), np.float32)
    return attn, plan, x


class Rows:
    def __init__(self, as_json):
        self.rows, self.as_json = [], as_json

    def add(self, name, us, over=None, limit=None, note=""):
        self.rows.append({"name": name, "us": round(us, 2), "over_us": None if over is None else round(over, 2),
                          "limit_us": limit, "note": note})  # fmt: skip
        if not self.as_json:
            added = "" if over is None else f"{over:10.1f}"
            print(f"{name:58} {us:12.1f} {added:>10} {'' if limit is None else limit:>8}  {note}")

    def skip(self, name, reason):
        self.rows.append({"name": name, "skipped": reason})
        if not self.as_json:
            print(f"{name:58} skipped: {reason}")


def numpy_calls(rows):
    attn, plan, x = small()
    bound = attn.bind(plan)
    o, lse = np.empty_like(x), np.empty((1, 1, 16), np.float32)
    bare = bound._native.time_bare(x, x, x, o, lse, 20000) / 1000
    rows.add("bare C call, forward", bare)
    us = best(lambda: bound.forward(x, x, x, out=o, lse=lse))
    rows.add("NumPy, forward into given memory", us, us - bare, 25)
    us = best(lambda: bound.forward(x, x, x))
    rows.add("NumPy, forward", us, us - bare, 25)
    o, lse = bound.forward(x, x, x)
    us = best(lambda: bound.backward(x, x, x, o, lse, x))
    rows.add("NumPy, backward", us)
    us = best(lambda: attn.bind(plan))
    rows.add("bind a plan", us)
    return bare, us


def torch_calls(rows, bare):
    try:
        import torch

        import tessera.torch as tt
    except ImportError:
        return rows.skip("PyTorch", "not installed in this environment")
    torch.set_num_threads(1)
    arm = 2 if platform.machine() == "aarch64" else 1  # the limits are for x86-64, and twice that on a Neoverse-N1
    attn, plan, x = small()
    bound = attn.bind(plan)
    o, lse = bound.forward(x, x, x)
    back = best(lambda: bound._native.backward(
        {"q": x, "k": x, "v": x, "o": o, "lse": lse, "dout": x, "dq": np.empty_like(x), "dk": np.empty_like(x),
         "dv": np.empty_like(x)}, 0))  # fmt: skip
    plan = tt._of(plan)
    q = torch.from_numpy(x.copy())
    with torch.no_grad():
        us = best(lambda: tt.attention(q, q, q, plan))
        rows.add(f"PyTorch {torch.__version__}, forward, no grad", us, us - bare)
    q = q.requires_grad_()
    k, v = (torch.from_numpy(x.copy()).requires_grad_() for _ in range(2))
    us = best(lambda: tt.attention(q, k, v, plan))
    rows.add("PyTorch, forward with autograd", us, us - bare, 40 * arm)
    ones = torch.ones_like(q)

    def both():
        torch.autograd.grad(tt.attention(q, k, v, plan), (q, k, v), ones)

    us = best(both)
    rows.add("PyTorch, forward and backward", us, us - bare - back, 90 * arm, "over the bare forward and NumPy's backward")
    dense = torch.nn.functional.scaled_dot_product_attention

    def theirs():
        torch.autograd.grad(dense(q, k, v, is_causal=True), (q, k, v), ones)

    rows.add("PyTorch's own fused attention, forward and backward", best(theirs))


def jax_calls(rows, bare):
    try:
        import jax

        import tessera.jax as tj
    except ImportError:
        return rows.skip("JAX", "not installed in this environment")
    attn, plan, x = small()
    plan = tj._of(plan)
    q = jax.numpy.asarray(x)
    call = jax.jit(lambda q, plan: tj.attention(q, q, q, plan))
    us = best(lambda: call(q, plan).block_until_ready())
    rows.add(f"JAX {jax.__version__}, jit, forward", us, us - bare, 30)
    grad = jax.jit(jax.grad(lambda q, plan: tj.attention(q, q, q, plan).sum()))
    rows.add("JAX, jit, gradient", best(lambda: grad(q, plan).block_until_ready()))
    plain = jax.jit(lambda q: q * 2)
    rows.add("JAX, jit, a multiplication", best(lambda: plain(q).block_until_ready()))


def planning(rows, peers):
    length, documents = 65536, 100
    contract = tessera.Contract(q_len=length, dim_qk=128, mask=m.causal & m.documents & m.window(4095, 0), tile=128,
                                tile_reason="the project's planning row")  # fmt: skip
    rng = np.random.default_rng(0)
    batches = []
    for _ in range(20):
        cuts = np.sort(rng.choice(np.arange(1, length), documents - 1, replace=False))
        batches.append(np.diff(np.concatenate([[0], cuts, [length]])).astype(np.int32))
    ids = [np.repeat(np.arange(documents, dtype=np.int32), lengths)[None] for lengths in batches]
    attn = tessera.Engine().prepare(contract)
    turn = iter(range(10**9))
    us = best(lambda: attn.plan(doc_lengths=batches[next(turn) % 20]))
    rows.add("plan 64K, 100 new documents each, by lengths", us, None, 300)
    us = best(lambda: attn.plan(doc_ids=ids[next(turn) % 20]))
    rows.add("plan 64K, 100 new documents each, by ids", us, None, 300)
    forward = tessera.Engine().prepare(contract, passes="forward")
    rows.add("the same by lengths, for a forward alone", best(lambda: forward.plan(doc_lengths=batches[next(turn) % 20])))
    if not peers:
        return rows.skip("the peers' planning", "minutes; --peers runs it")
    flex_planning(rows)
    splash_planning(rows)


def flex_planning(rows, length=8192):
    """At 64K create_block_mask wants a mask of 4 Gi pairs; it is quadratic, so a shorter one tells."""
    try:
        import torch
        from torch.nn.attention.flex_attention import create_block_mask
    except ImportError:
        return rows.skip("FlexAttention's create_block_mask", "PyTorch is not installed in this environment")
    ids = torch.arange(length) // 656

    def mask_mod(b, h, q, kv):
        return (q >= kv) & (q - kv < 4096) & (ids[q] == ids[kv])

    begin = time.perf_counter()
    create_block_mask(mask_mod, 1, 1, length, length, device="cpu")
    rows.add(f"FlexAttention's create_block_mask, {length} tokens", (time.perf_counter() - begin) * 1e6, note="once")


def splash_planning(rows, length=65536):
    try:
        from jax.experimental.pallas.ops.tpu import splash_attention as splash
    except ImportError:
        return rows.skip("Splash's make_splash_mha", "JAX is not installed in this environment")
    masks = splash.splash_attention_mask
    mask = masks.MultiHeadMask([masks.LocalMask((length, length), (4095, 0), 0)])
    begin = time.perf_counter()
    splash.splash_attention_kernel.make_splash_mha(mask, head_shards=1, q_seq_shards=1)
    rows.add(f"Splash's make_splash_mha, {length} tokens, no documents", (time.perf_counter() - begin) * 1e6, note="once")


def main():
    parser = argparse.ArgumentParser(prog="script/bench python", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--peers", action="store_true", help="also the peers' planning, which takes minutes")
    parser.add_argument("--section", choices=["calls", "planning"], help="one of the two")
    options = parser.parse_args()
    rows = Rows(options.json)
    if not options.json:
        print(f"{'':58} {'us':>12} {'added':>10} {'limit':>8}")
    if options.section != "planning":
        bare, _ = numpy_calls(rows)
        torch_calls(rows, bare)
        jax_calls(rows, bare)
    if options.section != "calls":
        planning(rows, options.peers)
    if options.json:
        json.dump({"machine": platform.machine(), "python": platform.python_version(), "rows": rows.rows}, sys.stdout, indent=1)
        print()


if __name__ == "__main__":
    main()
