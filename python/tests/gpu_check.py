#!/usr/bin/env python3
"""The package on a Hopper GPU, with the machine's own PyTorch and JAX: gpu_check.py [torch|jax|bridge]...

Every check compares with attention in float64, over a mask made from the documents by one line of NumPy. Needs no pytest:
script/gpu-python runs it where a GPU is, test_gpu.py in CI where there may be one. Prints a line for each check; exit status 1
where one failed, 3 where there is no GPU.
"""

import os
import re
import sys
import time
import traceback

import numpy as np

import tessera
from tessera import mask as m

SEED = int(os.environ.get("TESSERA_SEED", time.time_ns() % 2**32))
EPS = {"bf16": 2.0**-8, "f16": 2.0**-11}
KINDS = {  # name: contract's fields, and whether the batch has documents
    "documents": (dict(mask=m.causal & m.documents), True),
    "window and sink": (dict(mask=m.causal & m.documents & (m.window(127, 0) | m.sink(4, document=True))), True),
    "softcap": (dict(mask=m.causal, softcap=20.0), False),
    "sink logits": (dict(mask=m.causal & m.documents, sink_logits=True), True),
    "chunks": (dict(mask=m.chunk(96) | m.prefix(40)), False),
}
SIZES = dict(batch=2, q_len=1000, num_q_heads=4, num_kv_heads=2, dim_qk=64)


def attention_on_gpu(dtype="bf16", **fields):
    contract = tessera.Contract(**(SIZES | dict(dtype=dtype) | fields))
    return tessera.Engine().prepare(contract, target="h200", memory="gpu")


def documents(rng, batch, length):
    ids = np.empty((batch, length), np.int32)
    for row in range(batch):
        cuts = np.sort(rng.choice(np.arange(1, length), rng.integers(0, 8), replace=False))
        ids[row] = np.searchsorted(cuts, np.arange(length), side="right")
    return ids


def allowed(contract, ids):
    """[batch, 1, q, kv], by the meaning of the masks above."""
    q, kv = np.arange(contract.shape.q_len)[:, None], np.arange(contract.shape.kv_len)[None]
    if "chunk" in contract.mask:
        pairs = (q // 96 == kv // 96) | ((q < 40) & (kv < 40))
        return np.broadcast_to(pairs, (contract.shape.batch, 1, *pairs.shape))
    causal = np.broadcast_to(kv <= q, (contract.shape.batch, 1, len(q), kv.shape[1]))
    if ids is None:
        return causal
    same = (ids[:, :, None] == ids[:, None, :])[:, None]
    if "window" not in contract.mask:
        return causal & same
    begin = np.stack([np.searchsorted(row, row, side="left") for row in ids])  # of each token's document
    first = (kv - begin[:, :, None] < 4)[:, None]
    return causal & same & ((q - kv <= 127) | first)


def dense(q, k, v, mask, dout, softcap=0.0, sinks=None):
    """o, dq, dk, dv[, dsinks] in float64."""
    q, k, v, dout = (np.asarray(x, np.float64) for x in (q, k, v, dout))
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scale = q.shape[-1] ** -0.5
    score = q @ wide_k.swapaxes(2, 3) * scale
    if softcap:
        score = softcap * np.tanh(score / softcap)
    capped = score
    score = np.where(mask, score, -np.inf)
    if sinks is not None:
        column = np.broadcast_to(np.asarray(sinks, np.float64)[None, :, None, None], (*score.shape[:3], 1))
        score = np.concatenate([score, column], -1)
    weight = np.exp(score - score.max(-1, keepdims=True))
    p = weight / weight.sum(-1, keepdims=True)
    sink_p, p = (p[..., -1:], p[..., :-1]) if sinks is not None else (None, p)
    o = p @ wide_v
    delta = (o * dout).sum(-1, keepdims=True)
    ds = p * (dout @ wide_v.swapaxes(2, 3) - delta)
    if softcap:
        ds = ds * (1 - (capped / softcap) ** 2)

    def by_group(x):
        return x.reshape(x.shape[0], k.shape[1], group, *x.shape[2:]).sum(2)

    out = [o, ds @ wide_k * scale, by_group(ds.swapaxes(2, 3) @ q * scale), by_group(p.swapaxes(2, 3) @ dout)]
    return out if sinks is None else [*out, -(sink_p * delta).sum((0, 2, 3))]


def close(name, got, want, dtype):
    got = np.asarray(got, np.float64)
    assert got.shape == want.shape, (name, got.shape, want.shape)
    assert np.isfinite(got).all(), name
    error = np.abs(got - want).max() / max(1e-3, np.abs(want).max())
    assert error <= (4 if name == "o" else 12) * EPS[dtype], f"{name}: {error:.2e} of the largest value"
    return error / EPS[dtype]


NAMES = ("o", "dq", "dk", "dv", "dsink_logits")


# --- PyTorch ----------------------------------------------------------------------------------------------------------


def torch_inputs(rng, shape, dtype, grad=True):
    import torch

    kinds = {"bf16": torch.bfloat16, "f16": torch.float16}
    return [torch.from_numpy(rng.standard_normal(s, np.float32)).to("cuda", kinds[dtype]).requires_grad_(grad)
            for s in (shape.q, shape.k, shape.v, shape.o)]  # fmt: skip


def host(x):
    return x.detach().float().cpu().numpy()


def check_torch_numbers(rng):
    import torch

    import tessera.torch as tt

    worst = 0.0
    for dtype in ("bf16", "f16"):
        for dim in (64, 128):
            for name, (fields, has_documents) in KINDS.items():
                attn = attention_on_gpu(dtype, dim_qk=dim, **fields)
                ids = documents(rng, 2, 1000) if has_documents else None
                plan = tt.plan(attn, **({"doc_ids": ids} if has_documents else {}))
                q, k, v, dout = torch_inputs(rng, attn.contract.shape, dtype)
                sinks = torch.randn(4, device="cuda", requires_grad=True) if "sink_logits" in fields else None
                o = tt.attention(q, k, v, plan, sink_logits=sinks)
                o.backward(dout)
                grads = [x.grad for x in (q, k, v)] + ([] if sinks is None else [sinks.grad])
                want = dense(*(host(x) for x in (q, k, v)), allowed(attn.contract, ids), host(dout),
                             fields.get("softcap", 0.0), None if sinks is None else host(sinks))  # fmt: skip
                for what, one, expected in zip(NAMES, [o, *grads], want):
                    try:
                        worst = max(worst, close(what, host(one), expected, dtype))
                    except AssertionError as error:
                        raise AssertionError(f"{name}, {dtype}, dim {dim}: {error}") from None
    assert attn.bind(plan.plan).lane == "cuda"
    return f"worst error {worst:.1f} eps"


def check_torch_layouts(rng):
    """[B,T,H,D] memory, a slice of a packed projection, a batch that is one row: read where they lie."""
    import torch

    import tessera.torch as tt

    attn = attention_on_gpu(mask=m.causal)
    plan = tt.plan(attn)
    q, k, v, dout = torch_inputs(rng, attn.contract.shape, "bf16", grad=False)
    want = tt.attention(q, k, v, plan)
    packed = torch.cat([x.transpose(1, 2).flatten(2) for x in (q, k, v)], 2)  # [B, T, (4 + 2 + 2) * 64]
    parts = [x.unflatten(2, (-1, 64)).transpose(1, 2) for x in packed.split([256, 128, 128], 2)]
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    got = tt.attention(*parts, plan)
    torch.cuda.synchronize()
    grown = torch.cuda.max_memory_allocated() - before
    assert torch.equal(got, want) and got.stride() == parts[0].transpose(1, 2).contiguous().transpose(1, 2).stride()
    least = got.numel() * 2 + 2 * 4 * 1000 * 4
    assert grown <= least + 4096, f"{grown} bytes more, o and lse have {least}"
    turned = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    assert torch.equal(tt.attention(*turned, plan, layout="bthd"), want.transpose(1, 2))
    assert torch.equal(tt.attention(q, k, v, attn.contract), want), "a contract stands for its plan, on the GPU too"
    one = q[:1].expand(2, -1, -1, -1)
    try:
        assert torch.equal(tt.attention(one, k, v, plan), tt.attention(one.contiguous(), k, v, plan))
    except tessera.TesseraError as error:  # a stride of 0 is the driver's to take or to refuse
        assert "the driver takes no" in str(error), error
    for x in (q, k, v):
        x.requires_grad_()
    tt.attention(q, k, v, plan).sum().backward()  # a gradient of stride 0
    assert torch.isfinite(q.grad).all()
    try:
        tt.attention(q.transpose(2, 3).contiguous().transpose(2, 3), k, v, plan)
    except ValueError as error:
        assert "last axis" in str(error)
    else:
        raise AssertionError("a last axis that is not contiguous was taken")


def check_torch_stream(rng):
    """In the order of the current stream, and without waiting for it."""
    import torch

    import tessera.torch as tt

    attn = attention_on_gpu(mask=m.causal & m.documents)
    plan = tt.plan(attn, doc_lengths=[[300, 700], [1000]])
    q, k, v, dout = torch_inputs(rng, attn.contract.shape, "bf16", grad=False)
    want = tt.attention(q, k, v, plan)
    late = [torch.zeros_like(x).requires_grad_() for x in (q, k, v)]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # which has its workspace from then on
        tt.attention(*late, plan).backward(dout)
    torch.cuda.synchronize()
    for x in late:
        x.grad = None  # or a kernel of PyTorch's that adds to it is loaded first, and loading one may wait for the GPU
    with torch.cuda.stream(side):
        torch.cuda._sleep(400_000_000)  # a fifth of a second
        with torch.no_grad():
            for x, y in zip(late, (q, k, v)):
                x.copy_(y)
        begin = time.perf_counter()
        o = tt.attention(*late, plan)
        o.backward(dout)
        took = time.perf_counter() - begin
        assert not side.query(), "the call waited for its stream"
    side.synchronize()
    assert torch.equal(o, want)
    assert all(torch.isfinite(x.grad).all() for x in late) and late[0].grad.abs().max() > 0
    return f"forward and backward enqueued in {took * 1e6:.0f} us"


def check_torch_compile(rng):
    import torch

    import tessera.torch as tt

    attn = attention_on_gpu(mask=m.causal & m.documents)
    q, k, v, dout = torch_inputs(rng, attn.contract.shape, "bf16")

    def step(q, k, v, plan):
        return tt.attention(q * 1.0, k, v, plan) * 2.0

    compiled = torch.compile(step, fullgraph=True)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for i in range(1000):
        ids = documents(rng, 2, 1000)
        plan = tt.plan(attn, doc_ids=ids)
        q.grad = k.grad = v.grad = None
        o = compiled(q, k, v, plan)
        o.backward(dout)
        if i == 0:
            torch._dynamo.config.error_on_recompile = True
        if i % 250 == 0:
            want = dense(*(host(x) for x in (q, k, v)), allowed(attn.contract, ids), 2 * host(dout))
            close("o", host(o) / 2, want[0], "bf16")
            for what, one, expected in zip(NAMES[1:], (q.grad, k.grad, v.grad), want[1:]):
                close(what, host(one), expected, "bf16")
    stats = torch._dynamo.utils.counters["stats"]
    assert stats["unique_graphs"] == 1, stats
    assert not torch._dynamo.utils.counters["graph_break"]


def check_torch_flex(rng):
    """Masks to and from FlexAttention where the GPU's tensors are."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    import tessera.torch as tt

    attn = attention_on_gpu(q_len=1024, num_kv_heads=4, mask=m.causal & m.documents & (m.window(127, 0) | m.sink(4, document=True)))
    ids = documents(rng, 2, 1024)
    plan = tt.plan(attn, doc_ids=ids)
    q, k, v, _ = torch_inputs(rng, attn.contract.shape, "bf16", grad=False)
    want = tt.attention(q, k, v, plan)
    mask = tt.to_flex(plan)  # where the attention takes its tensors, without being told
    assert {x.device.type for x in (mask.kv_num_blocks, mask.kv_indices, mask.full_kv_indices)} == {"cuda"}
    for attend in (flex_attention, torch.compile(flex_attention)):
        close("o", host(attend(q, k, v, block_mask=mask)), host(want).astype(np.float64), "bf16")
    on_host = tt.to_flex(plan, device="cpu")
    assert on_host.kv_indices.device.type == "cpu" and torch.equal(on_host.kv_indices, mask.kv_indices.cpu())
    table = torch.arange(1024, device="cuda")  # what the function looks into decides where it is asked

    def mask_mod(b, h, q, kv):
        return (table[q] >= kv) & (q - kv < 32)

    blocks = create_block_mask(mask_mod, 1, 1, 1024, 1024, device="cuda")
    for contract in (tt.from_flex(mask_mod, q_len=1024, dim_qk=64, device="cuda"), tt.from_flex(blocks, dim_qk=64)):
        assert contract.mask == "causal and window(31, 0)", contract.mask


def check_torch_refusals(rng):
    import torch

    import tessera.torch as tt

    attn = attention_on_gpu(mask=m.causal)
    plan = tt.plan(attn)
    q, k, v, _ = torch_inputs(rng, attn.contract.shape, "bf16", grad=False)
    for given, text in [
        ((q.cpu(), k, v), "cpu|cuda"),
        ((q.cpu(), k.cpu(), v.cpu()), "gpu:0"),
        ((q, k.cpu(), v), "k: on cuda"),
        ((q.float(), k, v), "bf16 expected"),
        ((q[:, :, 1:], k, v), "q: shape"),
        ((_shifted(q), k, v), "multiples of 16"),
    ]:
        try:
            tt.attention(*given, plan)
        except (TypeError, ValueError) as error:
            assert re.search(text, str(error)), error
        else:
            raise AssertionError(f"not refused: {text}")
    on_host = tt.plan(tessera.Engine().prepare(tessera.Contract(**(SIZES | dict(dtype="bf16", mask="causal")))))
    try:
        tt.attention(q, k, v, on_host)
    except ValueError as error:
        assert "host" in str(error)
    else:
        raise AssertionError("a plan of the host's lanes took tensors of a GPU")


def _shifted(q):
    """The same tensor, two bytes further on: no row at a multiple of 16 bytes."""
    import torch

    raw = torch.empty(q.numel() + 1, dtype=q.dtype, device=q.device)[1:]
    return raw.view(q.shape).copy_(q)


# --- JAX --------------------------------------------------------------------------------------------------------------


def jax_inputs(rng, shape, dtype="bf16"):
    import jax.numpy as jnp

    kinds = {"bf16": jnp.bfloat16, "f16": jnp.float16}
    return [jnp.asarray(rng.standard_normal(s, np.float32)).astype(kinds[dtype]) for s in (shape.q, shape.k, shape.v, shape.o)]


def check_jax_numbers(rng):
    import jax
    import jax.numpy as jnp

    import tessera.jax as tj

    worst = 0.0
    for dtype in ("bf16", "f16"):
        for name, (fields, has_documents) in KINDS.items():
            attn = attention_on_gpu(dtype, **fields)
            ids = documents(rng, 2, 1000) if has_documents else None
            plan = tj.plan(attn, **({"doc_ids": ids} if has_documents else {}))
            assert plan.operand.devices().pop().platform == "gpu"
            q, k, v, dout = jax_inputs(rng, attn.contract.shape, dtype)
            sinks = jnp.asarray(rng.standard_normal(4, np.float32)) if "sink_logits" in fields else None

            def run(q, k, v, sinks, plan, dout):
                o, back = jax.vjp(lambda q, k, v, s: tj.attention(q, k, v, plan, sink_logits=s), q, k, v, sinks)
                return o, *(x for x in back(dout) if x is not None)

            want = dense(*(np.asarray(x, np.float32) for x in (q, k, v)), allowed(attn.contract, ids),
                         np.asarray(dout, np.float32), fields.get("softcap", 0.0), sinks)  # fmt: skip
            for compiled in (jax.jit(run), run):
                for what, one, expected in zip(NAMES, compiled(q, k, v, sinks, plan, dout), want):
                    try:
                        worst = max(worst, close(what, np.asarray(one, np.float32), expected, dtype))
                    except AssertionError as error:
                        raise AssertionError(f"{name}, {dtype}: {error}") from None
    return f"worst error {worst:.1f} eps"


def check_jax_one_trace(rng):
    """A thousand batches: one trace, one compilation, and calls that do not wait."""
    import jax
    import jax.numpy as jnp

    import tessera.jax as tj

    attn = attention_on_gpu(mask=m.causal & m.documents)
    q, k, v, dout = jax_inputs(rng, attn.contract.shape)
    traces = []

    def step(q, k, v, plan):
        traces.append(1)
        return jax.grad(lambda q: (tj.attention(q, k, v, plan) * dout).astype(jnp.float32).sum())(q)

    compiled = jax.jit(step)
    kept = []
    for i in range(1000):
        ids = documents(rng, 2, 1000)
        got = compiled(q, k, v, tj.plan(attn, doc_ids=ids))
        if i % 250 == 0:
            kept.append((ids, got))
    for ids, got in kept:  # after all of them were enqueued: each ran the plan it was given
        want = dense(*(np.asarray(x, np.float32) for x in (q, k, v)), allowed(attn.contract, ids), np.asarray(dout, np.float32))
        close("dq", np.asarray(got, np.float32), want[1], "bf16")
    assert len(traces) == 1 and compiled._cache_size() == 1, (len(traces), compiled._cache_size())
    plan = tj.plan(attn, doc_ids=ids)
    compiled(q, k, v, plan).block_until_ready()
    begin = time.perf_counter()
    for _ in range(200):
        got = compiled(q, k, v, plan)
    enqueued = (time.perf_counter() - begin) / 200
    got.block_until_ready()
    return f"{enqueued * 1e6:.0f} us to enqueue a forward and a backward, {(time.perf_counter() - begin) / 200 * 1e6:.0f} us with their work"


def check_jax_vmap(rng):
    import jax
    import jax.numpy as jnp

    import tessera.jax as tj

    attn = attention_on_gpu(mask=m.causal & m.documents, batch=1)
    plans = [tj.plan(attn, doc_lengths=[[100 + i, 900 - i]]) for i in range(3)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *plans)
    q, k, v, _ = (jnp.stack([x[0]] * 3) * (1 + jnp.arange(3, dtype=x.dtype)[:, None, None, None])
                  for x in jax_inputs(rng, attn.contract.shape))  # fmt: skip
    want = jnp.stack([tj.attention(q[i], k[i], v[i], plans[i]) for i in range(3)])
    assert jnp.array_equal(jax.jit(jax.vmap(tj.attention))(q, k, v, stacked), want)
    gradient = jax.grad(lambda q: jax.vmap(tj.attention)(q, k, v, stacked).astype(jnp.float32).sum())(q)
    alone = jax.grad(lambda q: tj.attention(q, k[1], v[1], plans[1]).astype(jnp.float32).sum())(q[1])
    assert jnp.array_equal(gradient[1], alone)


def check_jax_refusals(rng):
    import jax

    import tessera.jax as tj

    attn = attention_on_gpu(mask=m.causal)
    q, k, v, _ = jax_inputs(rng, attn.contract.shape)
    on_host = tj.plan(tessera.Engine().prepare(attn.contract))
    for call in (lambda: jax.jit(tj.attention).trace(q, k, v, on_host).lower(lowering_platforms=("cuda",)),
                 lambda: jax.jit(tj.attention).trace(q, k, v, tj.plan(attn)).lower(lowering_platforms=("cpu",))):  # fmt: skip
        try:
            call()
        except NotImplementedError:
            pass
        else:
            raise AssertionError("a plan of another platform was taken")
    cpu = jax.local_devices(backend="cpu")[0]
    on_cpu = [jax.device_put(x, cpu) for x in (q, k, v)]
    jax.block_until_ready(jax.jit(tj.attention)(*on_cpu, on_host))  # beside a GPU the CPU's handler still serves the CPU


# --- The bridge -------------------------------------------------------------------------------------------------------


def check_bridge(rng):
    """The engine hands its work to JAX, which runs it on the GPU, and says so."""
    attn = tessera.Engine().prepare(
        tessera.Contract(batch=2, q_len=200, num_q_heads=4, num_kv_heads=2, dim_qk=64, mask=m.causal & m.documents, softcap=5.0),
        target="h200", lane="call_jax")  # fmt: skip
    ids = documents(rng, 2, 200)
    bound = attn.bind(attn.plan(doc_ids=ids))
    shape = attn.contract.shape
    q, k, v, dout = (rng.standard_normal(s, np.float32) for s in (shape.q, shape.k, shape.v, shape.o))
    got = bound.forward(q, k, v, receipt=True)
    grads = bound.backward(q, k, v, o=got.o, lse=got.lse, dout=dout)
    want = dense(q, k, v, allowed(attn.contract, ids), dout, 5.0)
    for what, one, expected in zip(NAMES, (got.o, grads.dq, grads.dk, grads.dv), want):
        assert np.abs(one - expected).max() <= 1e-4 * max(1, np.abs(expected).max()), what
    said = got.receipt.to_dict()
    assert (said["runtime_mode"], said["owner"]) == ("bridge", "call_jax") and said["device"]["kind"] == "gpu", said["device"]
    return f"ran on {said['ran_on']}, {said['crossing']['runtime']}"


CHECKS = {
    "torch": [check_torch_numbers, check_torch_layouts, check_torch_stream, check_torch_compile, check_torch_flex, check_torch_refusals],
    "jax": [check_jax_numbers, check_jax_one_trace, check_jax_vmap, check_jax_refusals],
    "bridge": [check_bridge],
}


def no_gpu():
    """Why nothing can be checked here, or nothing."""
    contract = tessera.Contract(**(SIZES | dict(dtype="bf16", mask="causal")))
    try:
        attn = tessera.Engine().prepare(contract, target="h200", memory="gpu", strict=True)
        attn.bind(attn.plan())
    except tessera.TesseraError as error:
        return str(error)
    return None


def main(groups):
    problem = no_gpu()
    if problem:
        print(f"no GPU: {problem}")
        return 3
    print(f"tessera {tessera.__version__}, Python {sys.version.split()[0]}, TESSERA_SEED={SEED}")
    failed = 0
    for group in groups or CHECKS:
        for check in CHECKS[group]:
            begin = time.perf_counter()
            try:
                said = check(np.random.default_rng(SEED)) or ""
            except Exception:
                traceback.print_exc()
                said, failed = "failed", failed + 1
            print(f"{check.__name__}: {said or 'good'} ({time.perf_counter() - begin:.1f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch may be here too
    sys.exit(main(sys.argv[1:]))
