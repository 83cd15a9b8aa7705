"""Nothing of a call's size is copied: a process's peak memory grows by what a call gives, and by no more."""

import importlib.util
import subprocess
import sys
import textwrap

import pytest

ONE = 64  # MiB of each of q, k, v and o: [1, 4, 65536, 64] float32, of which a prefix of 256 tokens sees itself

# A process of its own for each: its peak is the largest since it began. Inputs are written whole, so what imports took for a
# while is below what it holds by then, and the library is warm.
SETUP = """
import sys
import numpy as np, tessera

def contract(tokens):
    return tessera.Contract(q_len=tokens, num_q_heads=4, dim_qk=64, mask="prefix(256)", offset=0)

def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name + ":")) / 1024

class Measure:
    def __enter__(self):
        self.before, peak = status("VmRSS"), status("VmHWM")
        assert peak - self.before < 16, f"the peak of {peak:.0f} MiB was before, now it is {self.before:.0f}"
        return self
    def __exit__(self, *_):
        self.grown = status("VmHWM") - self.before

def say(*measured):
    print(*(f"{one.grown:.1f}" for one in measured))

SMALL, LARGE, HEADS = 512, 65536, 4
def numpy_inputs(tokens):
    made = [np.empty((1, HEADS, tokens, 64), np.float32) for _ in range(4)]
    for i, x in enumerate(made):
        x.fill(0.5 + i)
    return made
"""

NUMPY = """
for tokens in (SMALL, LARGE):
    attn = tessera.Engine().prepare(contract(tokens))
    bound = attn.bind(attn.plan())
    q, k, v, dout = numpy_inputs(tokens)
    with Measure() as forward:
        o, lse = bound.forward(q, k, v)
    with Measure() as backward:
        grads = bound.backward(q, k, v, o, lse, dout)
say(forward, backward)
"""

TORCH = """
import torch, tessera.torch as tt
for tokens in (SMALL, LARGE):
    plan = tt.plan(tessera.Engine().prepare(contract(tokens)))
    q, k, v, dout = (torch.from_numpy(x) for x in numpy_inputs(tokens))
    for x in (q, k, v):
        x.requires_grad_()
    with Measure() as forward:
        o = tt.attention(q, k, v, plan)
    with Measure() as backward:
        o.backward(dout)
say(forward, backward)
"""

JAX = """
import jax, jax.numpy as jnp, tessera.jax as tj
for tokens in (SMALL, LARGE):
    plan = tj.plan(tessera.Engine().prepare(contract(tokens)))
    q, k, v, dout = (jnp.full((1, HEADS, tokens, 64), 0.5 + i) for i in range(4))
    jax.block_until_ready((q, k, v, dout))
    run = jax.jit(lambda q, k, v, plan: tj.attention(q, k, v, plan)).lower(q, k, v, plan).compile()
    gradients = jax.jit(lambda q, k, v, plan, dout: jax.vjp(lambda *x: tj.attention(*x, plan), q, k, v)[1](dout)).lower(
        q, k, v, plan, dout).compile()
    with Measure() as forward:
        o = jax.block_until_ready(run(q, k, v, plan))
    with Measure() as backward:
        grads = jax.block_until_ready(gradients(q, k, v, plan, dout))
say(forward, backward)
"""


# What a forward and a backward give, in units of ONE. The program of JAX's gradient has an o of its own.
@pytest.mark.parametrize("library,code,gives", [("numpy", NUMPY, (1, 3)), ("torch", TORCH, (1, 3)), ("jax", JAX, (1, 4))])
def test_peak_memory_is_that_of_the_results(library, code, gives):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed in this environment")
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(SETUP) + code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    grown = [float(word) for word in done.stdout.split()]
    for way, have, results in zip(("forward", "backward"), grown, gives):
        assert results * ONE - 8 < have < (results + 0.5) * ONE, f"{way}: {have} MiB more, the results have {results * ONE}"
