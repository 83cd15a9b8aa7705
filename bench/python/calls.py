#!/usr/bin/env python3
"""What Python adds to a call, beside the bare engine in the same run; and planning beside the peers.

The problem of the calls is so small that the engine takes microseconds: what is left is overhead. The engine's own C calls
on the same memory and every way to make them are timed in turn, and what a way adds is the median of its differences from
the C calls of each round; beside it the difference of the least of both, because a shared machine adds and never takes away.
Every row says the limit that the project set for it.
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
    sample = sampler(function)
    return min(sample() for _ in range(samples))


def sampler(function):
    """What takes one sample of a call: its mean in microseconds, over 0.2 ms."""
    for _ in range(10):
        function()
    begin = time.perf_counter_ns()
    function()
    number = max(1, 200_000 // max(1, time.perf_counter_ns() - begin))

    def sample():
        begin = time.perf_counter_ns()
        for _ in range(number):
            function()
        return (time.perf_counter_ns() - begin) / number / 1000

    return sample


def in_turn(samplers, rounds=600):
    """Samples of each, taken in turn so that what else the machine does falls on all of them alike: an array by name."""
    taken = {name: np.empty(rounds) for name in samplers}
    for i in range(rounds):
        for name, sample in samplers.items():
            taken[name][i] = sample()
    return taken


class Small:
    """A problem of microseconds, its arrays, and samplers of the engine's own C calls on them, without any Python between."""

    def __init__(self):
        contract = tessera.Contract(q_len=16, num_q_heads=1, dim_qk=16, mask="causal")
        self.attn = tessera.Engine().prepare(contract, threads=1)
        self.plan = self.attn.plan()
        self.bound = self.attn.bind(self.plan)
        rng = np.random.default_rng(0)
        self.arrays = {name: rng.standard_normal((1, 1, 16, 16), np.float32)
                       for name in ("q", "k", "v", "o", "dout", "dq", "dk", "dv")}  # fmt: skip
        self.arrays["lse"] = np.empty((1, 1, 16), np.float32)

    def bare(self, with_backward):
        time_bare = self.bound._native.time_bare
        number = max(1, int(200_000 // time_bare(self.arrays, with_backward, 100)))
        return lambda: time_bare(self.arrays, with_backward, number) / 1000

    def __getitem__(self, name):
        return self.arrays[name]


class Rows:
    def __init__(self, as_json):
        self.rows, self.as_json = [], as_json

    def add(self, name, us, least=None, over=None, over_least=None, limit=None, note=""):
        values = {"us": us, "least_us": least, "over_us": over, "over_least_us": over_least}
        self.rows.append({"name": name, **{of: None if value is None else round(value, 2) for of, value in values.items()},
                          "limit_us": limit, "note": note})  # fmt: skip
        if not self.as_json:
            figures = " ".join(f"{'' if value is None else format(value, '.1f'):>10}" for value in values.values())
            print(f"{name:64} {figures} {'' if limit is None else limit:>7}  {note}")

    def skip(self, name, reason):
        self.rows.append({"name": name, "skipped": reason})
        if not self.as_json:
            print(f"{name:64} skipped: {reason}")

    def compare(self, taken, bare, limits):
        """A row for each call: what it adds to the bare one, as the median of the differences of each round, and of the least."""
        for name, samples in taken.items():
            base = taken.get(bare.get(name))
            over = (None, None) if base is None else (np.median(samples - base), samples.min() - base.min())
            self.add(name, np.median(samples), samples.min(), *over, limits.get(name))


def numpy_calls(rows):
    of = Small()
    bound, (q, k, v, o, lse, dout) = of.bound, (of[name] for name in ("q", "k", "v", "o", "lse", "dout"))
    forward, both, bare = "NumPy, forward", "NumPy, forward and backward", ("C, forward", "C, forward and backward")
    given = "NumPy, forward into given memory"
    taken = in_turn({
        bare[0]: of.bare(False),
        given: sampler(lambda: bound.forward(q, k, v, out=o, lse=lse)),
        forward: sampler(lambda: bound.forward(q, k, v)),
        bare[1]: of.bare(True),
        both: sampler(lambda: bound.backward(q, k, v, *bound.forward(q, k, v), dout)),
    })  # fmt: skip
    rows.compare(taken, {given: bare[0], forward: bare[0], both: bare[1]}, {given: 25, forward: 25})
    rows.add("bind a plan", best(lambda: of.attn.bind(of.plan)))


def torch_calls(rows):
    try:
        import torch

        import tessera.torch as tt
    except ImportError:
        return rows.skip("PyTorch", "not installed in this environment")
    torch.set_num_threads(1)
    arm = 2 if platform.machine() == "aarch64" else 1  # the limits are for x86-64, and twice that on a Neoverse-N1
    of = Small()
    plan = tt._of(of.plan)
    plain = [torch.from_numpy(of[name]) for name in "qkv"]  # the same memory
    given = [x.detach().requires_grad_() for x in plain]
    dout = torch.from_numpy(of["dout"])
    dense = torch.nn.functional.scaled_dot_product_attention

    class Empty(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            ctx.save_for_backward(q, k, v)
            return torch.empty_like(q)

        @staticmethod
        def backward(ctx, dout):
            return tuple(torch.empty_like(x) for x in ctx.saved_tensors)

    def no_grad():
        with torch.no_grad():
            tt.attention(*plain, plan)

    def both(function):
        return sampler(lambda: torch.autograd.grad(function(*given), given, dout))

    bare = ("C, forward", "C, forward and backward")
    name = f"PyTorch {torch.__version__.split('+')[0]}"
    names = [f"{name}, forward, no grad", f"{name}, forward with autograd", f"{name}, forward and backward"]
    theirs = f"{name}, its own fused attention, forward and backward"
    empty = f"{name}, an autograd.Function that does nothing, both"
    taken = in_turn({
        bare[0]: of.bare(False),
        names[0]: sampler(no_grad),
        names[1]: sampler(lambda: tt.attention(*given, plan)),
        bare[1]: of.bare(True),
        names[2]: both(lambda q, k, v: tt.attention(q, k, v, plan)),
        theirs: both(lambda q, k, v: dense(q, k, v, is_causal=True)),
        empty: both(Empty.apply),
    })  # fmt: skip
    rows.compare(taken, {names[0]: bare[0], names[1]: bare[0], names[2]: bare[1]}, {names[1]: 40 * arm, names[2]: 90 * arm})


def jax_calls(rows):
    try:
        import jax

        import tessera.jax as tj
    except ImportError:
        return rows.skip("JAX", "not installed in this environment")
    of = Small()
    plan = tj._of(of.plan)
    q, k, v = (jax.numpy.asarray(of[name]) for name in "qkv")
    call = jax.jit(lambda q, k, v, plan: tj.attention(q, k, v, plan))
    grad = jax.jit(jax.grad(lambda q, k, v, plan: tj.attention(q, k, v, plan).sum(), argnums=(0, 1, 2)))
    plain = jax.jit(lambda q: q * 2)
    bare = ("C, forward", "C, forward and backward")
    name = f"JAX {jax.__version__}, jit"
    taken = in_turn({
        bare[0]: of.bare(False),
        f"{name}, forward": sampler(lambda: call(q, k, v, plan).block_until_ready()),
        bare[1]: of.bare(True),
        f"{name}, gradient": sampler(lambda: jax.block_until_ready(grad(q, k, v, plan))),
        f"{name}, a multiplication": sampler(lambda: plain(q).block_until_ready()),
    })  # fmt: skip
    rows.compare(taken, {f"{name}, forward": bare[0], f"{name}, gradient": bare[1]}, {f"{name}, forward": 30})


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
    forward = tessera.Engine().prepare(contract, passes="forward")
    names = [f"plan 64K, 100 new documents each, by {what}" for what in ("lengths", "ids", "lengths, forward alone")]
    taken = in_turn({
        names[0]: sampler(lambda: attn.plan(doc_lengths=batches[next(turn) % 20])),
        names[1]: sampler(lambda: attn.plan(doc_ids=ids[next(turn) % 20])),
        names[2]: sampler(lambda: forward.plan(doc_lengths=batches[next(turn) % 20])),
    })  # fmt: skip
    rows.compare(taken, {}, {names[0]: 300, names[1]: 300})
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
        print(f"{'microseconds':64} {'median':>10} {'least':>10} {'added':>10} {'of least':>10} {'limit':>7}")
    if options.section != "planning":
        numpy_calls(rows)
        torch_calls(rows)
        jax_calls(rows)
    if options.section != "calls":
        planning(rows, options.peers)
    if options.json:
        json.dump({"machine": platform.machine(), "python": platform.python_version(), "rows": rows.rows}, sys.stdout, indent=1)
        print()


if __name__ == "__main__":
    main()
