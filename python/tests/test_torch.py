"""tessera.torch: numbers and gradients, compiled programs, and what is refused."""

import re
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from conftest import causal_documents, dense, random_documents

import tessera
from tessera import mask as m

torch = pytest.importorskip("torch", reason="PyTorch is not installed in this environment")
import tessera.torch as tt  # noqa: E402

B, H, KV, T, D, DV = 2, 4, 2, 96, 16, 8


def prepare(**more):
    fields = dict(batch=B, q_len=T, num_q_heads=H, num_kv_heads=KV, dim_qk=D, dim_v=DV, mask=m.causal & m.documents,
                  tile=32, tile_reason="a small test")
    return tessera.Engine().prepare(tessera.Contract(**(fields | more)))


def inputs(rng, dtype=torch.float32, grad=True):
    shapes = [(B, H, T, D), (B, KV, T, D), (B, KV, T, DV)]
    made = [torch.from_numpy(rng.standard_normal(shape, np.float32)).to(dtype) for shape in shapes]
    return [x.requires_grad_(grad) for x in made]


def close(got, want, eps=2e-5):
    np.testing.assert_allclose(got.detach().float().numpy(), want, rtol=0, atol=eps * max(1, np.abs(want).max()))


@pytest.mark.parametrize("dtype,eps", [(torch.float32, 2e-5), (torch.bfloat16, 0.1), (torch.float16, 2e-2)])
def test_numbers_and_gradients(rng, dtype, eps):
    ids = random_documents(rng, B, T, 3)
    plan = tt.plan(prepare(dtype=dtype), doc_ids=torch.from_numpy(ids))
    q, k, v = inputs(rng, dtype)
    o, lse = tt.attention(q, k, v, plan, return_lse=True)
    dout = torch.randn_like(o)
    o.backward(dout)
    want = dense(*(x.detach().float().numpy() for x in (q, k, v)), causal_documents(ids, H), dout=dout.float().numpy())
    for got, expected in zip((o, lse, q.grad, k.grad, v.grad), want):
        close(got, expected, eps)
    assert o.dtype == dtype and lse.dtype == torch.float32 and not lse.requires_grad


def test_gradcheck_of_sink_logits_and_softcap(rng):
    attn = prepare(mask=m.causal, softcap=4.0, sink_logits=True)
    q, k, v = inputs(rng)
    sinks = torch.from_numpy(rng.standard_normal(H, np.float32)).requires_grad_()
    plan = tt.plan(attn)
    o = tt.attention(q, k, v, plan, sink_logits=sinks)
    dout = torch.randn_like(o)
    o.backward(dout)
    step = 1e-2
    for head in range(H):
        def loss(by):
            moved = sinks.detach().clone()
            moved[head] += by
            return (tt.attention(q, k, v, plan, sink_logits=moved) * dout).sum().item()

        assert abs((loss(step) - loss(-step)) / (2 * step) - sinks.grad[head].item()) < 2e-2


def test_strides_layouts_and_no_copy(rng, monkeypatch):
    attn = prepare(mask=m.causal, num_kv_heads=H, dim_v=D)
    plan = tt.plan(attn)
    packed = torch.from_numpy(rng.standard_normal((B, T, 3, H, D), np.float32))
    q, k, v = packed.unbind(2)
    seen, real = [], tessera._native.call_forward
    monkeypatch.setattr(tessera._native, "call_forward", lambda *a: seen.append(a) or real(*a))
    monkeypatch.setattr(tt, "_has_short_way", False)
    o = tt.attention(q, k, v, plan, layout="bthd")
    assert seen[0][3] == (q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr()) and o.is_contiguous()
    monkeypatch.undo()
    same = tt.attention(*(x.transpose(1, 2).contiguous() for x in (q, k, v)), plan)
    assert torch.equal(o, same.transpose(1, 2))
    wide = torch.from_numpy(rng.standard_normal((B, 1, T, D), np.float32)).expand(B, H, T, D)
    assert torch.isfinite(tt.attention(wide, wide, wide, plan)).all()


def test_gradient_of_a_sum_has_stride_zero(rng):
    plan = tt.plan(prepare(mask=m.causal))
    q, k, v = inputs(rng)
    tt.attention(q, k, v, plan).sum().backward()
    first = q.grad.clone()
    q.grad = None
    o = tt.attention(q, k, v, plan)
    o.backward(torch.ones_like(o))
    assert torch.equal(first, q.grad)


def test_a_contract_or_a_plan_stands_for_a_torch_plan(rng):
    attn = prepare(mask=m.causal)
    q, k, v = inputs(rng)
    want = tt.attention(q, k, v, tt.plan(attn))
    assert torch.equal(want, tt.attention(q, k, v, attn.plan()))
    assert torch.equal(want, tt.attention(q, k, v, attn.contract))
    with pytest.raises(tessera.TesseraError, match="TSR-C007"):
        tt.attention(q, k, v, prepare().contract)


def test_the_operand_has_all_of_the_plan(rng):
    """A copy of it, in a process that has forgotten the plan, gives the same bits; damage gives an error."""
    attn = prepare()
    plan = tt.plan(attn, doc_lengths=[[40, 56], [96]])
    q, k, v = inputs(rng, grad=False)
    want = tt.attention(q, k, v, plan)
    for i in range(70):  # more than stay bound
        tt.attention(q, k, v, tt.plan(attn, doc_lengths=[[i + 1, 95 - i], [96]]))
    operand = plan.operand.clone()
    call = torch.ops.tessera.forward
    assert torch.equal(call(q, k, v, operand, None, plan.number)[0], want)
    damaged = operand.clone()
    damaged[16] ^= 1  # another fingerprint, so that the bytes are looked at
    damaged[400] ^= 255
    for wrong, number, error in [
        (damaged, plan.number, "TSR-P005"),
        (operand[:50], plan.number, "TSR-P005"),
        (torch.zeros(1000, dtype=torch.uint8), plan.number, "TSR-P005"),
        (operand, 10**6, "no attention has number"),
        (operand.float(), plan.number, "operand of a TorchPlan"),
        (operand, tt.plan(prepare(mask=m.causal)).number, "TSR-P007"),
    ]:
        with pytest.raises((ValueError, TypeError), match=error):
            call(q, k, v, wrong, None, number)


def test_opcheck(rng):
    plan = tt.plan(prepare(mask=m.causal))
    q, k, v = inputs(rng)
    turned = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    for given in ([q, k, v], turned):
        result = torch.library.opcheck(torch.ops.tessera.forward.default, (*given, plan.operand, None, plan.number))
        assert set(result.values()) == {"SUCCESS"}, result


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_once_for_a_thousand_batches(rng, backend):
    """No graph break, one graph, no recompile: counted, and with recompiling made an error."""
    from torch._dynamo import config
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    attn = prepare()
    q, k, v = inputs(rng)

    def step(q, k, v, plan):
        return tt.attention(q * 1.5, k, v, plan).square().sum()

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    with config.patch(error_on_recompile=True):
        for i in range(1000 if backend == "eager" else 30):
            plan = tt.plan(attn, doc_ids=random_documents(rng, B, T, 1 + i % 9))
            got = torch.autograd.grad(compiled(q, k, v, plan), (q, k, v))
            if i % 10 == 0:
                for one, want in zip(got, torch.autograd.grad(step(q, k, v, plan), (q, k, v))):
                    torch.testing.assert_close(one, want)
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]


def test_every_further_attention_is_a_graph_of_its_own(rng):
    """As docs/python.md says: the number of an attention is static in a program, so mind the limit of recompiles."""
    from torch._dynamo import config, exc
    from torch._dynamo.utils import counters

    q, k, v = inputs(rng)
    plans = [tt.plan(prepare(mask=m.window(left, 0))) for left in range(4)]
    want = [tt.attention(q, k, v, plan) for plan in plans]

    def step(q, k, v, plan):
        return tt.attention(q, k, v, plan)

    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(step, fullgraph=True, backend="eager")
    for _ in range(2):
        assert all(torch.equal(compiled(q, k, v, plan), expected) for plan, expected in zip(plans, want))
    assert counters["stats"]["unique_graphs"] == len(plans)
    torch._dynamo.reset()
    with config.patch(recompile_limit=2):
        compiled(q, k, v, plans[0]), compiled(q, k, v, plans[1])
        with pytest.raises(exc.FailOnRecompileLimitHit):
            compiled(q, k, v, plans[2])
    torch._dynamo.reset()


def test_what_has_no_derivative_is_refused(rng):
    plan = tt.plan(prepare(mask=m.causal, num_kv_heads=H, dim_v=D))
    x = torch.from_numpy(rng.standard_normal((B, H, T, D), np.float32)).requires_grad_()
    for call in (tt.attention, _by_operator):
        (first,) = torch.autograd.grad(call(x, x, x, plan).sum(), x, create_graph=True)
        with pytest.raises(NotImplementedError, match="second derivative"):
            (first.sum() + x.sum()).backward()
    y = x.detach()
    with pytest.raises(NotImplementedError, match="forward-mode"):
        torch.func.jvp(lambda z: tt.attention(z, y, y, plan), (y,), (torch.ones_like(y),))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(y, torch.ones_like(y))
        with pytest.raises(NotImplementedError, match="forward-mode"):
            tt.attention(y, dual, y, plan)
    with pytest.raises(NotImplementedError, match="vmap"):
        torch.vmap(lambda z: tt.attention(z, y, y, plan))(torch.stack([y, y]))


def _by_operator(q, k, v, plan):
    return torch.ops.tessera.forward(q, k, v, plan.operand, None, plan.number)[0]


def test_the_operator_and_the_short_way_are_the_same(rng):
    """A mode that looks at operators sees one; without a mode the same numbers come without it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Look(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    plan = tt.plan(prepare(mask=m.causal))
    q, k, v = inputs(rng)
    plain = torch.autograd.grad(tt.attention(q, k, v, plan).sum(), (q, k, v))
    with Look():
        looked = torch.autograd.grad(tt.attention(q, k, v, plan).sum(), (q, k, v))
    assert "tessera.forward.default" in seen and "tessera.backward.default" in seen
    assert all(map(torch.equal, plain, looked))


def unaligned(x):
    """The same values one byte further on, as a buffer from elsewhere may have them."""
    raw = bytearray(x.numel() * x.element_size() + 1)
    made = torch.frombuffer(raw, dtype=x.dtype, offset=1).view(x.shape).copy_(x)
    assert made.data_ptr() % x.element_size() == 1
    return made


def freed(x):
    """The same view of a storage that was given up: where it begins later, its address is that offset alone."""
    packed = torch.zeros(3 * x.numel(), dtype=x.dtype)
    view = packed[x.numel() : 2 * x.numel()].view(x.shape)
    packed.untyped_storage().resize_(0)
    return view


def test_bad_tensors(rng):
    plan = tt.plan(prepare(mask=m.causal))
    q, k, v = inputs(rng, grad=False)
    for given, error, text in [
        ((q.double(), k, v), TypeError, "float64"),
        ((q.half(), k, v), TypeError, "float16"),
        ((q[:1], k, v), ValueError, "q: shape"),
        ((q, k[:, :1], v), ValueError, "k: shape"),
        ((q, k, k), ValueError, "v: shape"),
        ((q[0], k, v), ValueError, "q: shape"),
        ((q.transpose(1, 2), k, v), ValueError, "q: shape .* with heads and tokens exchanged it fits: see layout="),
        ((torch.empty(B, H, D, T).transpose(2, 3), k, v), ValueError, "last axis"),
        ((q.numpy(), k, v), TypeError, "torch.Tensor"),
        ((q.to("meta"), k, v), ValueError, "k: on meta, as q is, expected, got cpu"),
        ((q, k.to("meta"), v), ValueError, "k: on cpu, as q is, expected, got meta"),
        ((q, k, v.to("meta")), ValueError, "v: on cpu, as q is, expected, got meta"),
        ((q.to_sparse(), k, v), TypeError, "q: a dense tensor expected, got one with the layout torch.sparse_coo"),
        ((q, k.to_sparse_csr(), v), TypeError, "k: a dense tensor expected, got one with the layout torch.sparse_csr"),
        ((q, k, v.to_mkldnn()), TypeError, "v: a dense tensor expected, got one with the layout torch._mkldnn"),
        ((q + 0j, k, v), TypeError, "complex"),
        ((unaligned(q), k, v), tessera.TesseraError, "q: .*multiple of 4"),
        ((q, k, unaligned(v)), tessera.TesseraError, "v: .*multiple of 4"),
    ]:
        for layout in ("bhtd", "bthd"):
            turned = [x if isinstance(x, np.ndarray) or x.ndim != 4 or x.layout is not torch.strided else x.transpose(1, 2)
                      for x in given] if layout == "bthd" else given  # fmt: skip
            with pytest.raises(error, match=text):
                tt.attention(*turned, plan, layout=layout)
    with pytest.raises(TypeError, match="plan:"):
        tt.attention(q, k, v, "plan")
    with pytest.raises(ValueError, match="layout"):
        tt.attention(q, k, v, plan, layout="thd")
    with pytest.raises((TypeError, tessera.TesseraError), match="sink_logits"):
        tt.attention(q, k, v, plan, sink_logits=torch.zeros(H))
    with pytest.raises(TypeError, match="sink_logits"):
        tt.attention(q, k, v, plan, sink_logits=torch.zeros(H + 1))
    with pytest.raises(TypeError, match="sink_logits: a dense tensor expected"):
        tt.attention(q, k, v, plan, sink_logits=torch.zeros(H).to_sparse())


def test_an_unaligned_array_of_numpys_is_refused(rng):
    plan = tt.plan(prepare(mask=m.causal))
    q, k, v = inputs(rng, grad=False)
    raw = np.zeros(q.numel() * 4 + 1, np.uint8)[1:].view(np.float32).reshape(q.shape)
    with pytest.raises(tessera.TesseraError, match="multiple of 4") as caught:
        tt.attention(torch.from_numpy(raw), k, v, plan)
    assert caught.value.code == "TSR-R001"
    o = tt.attention(q.requires_grad_(), k, v, plan)
    with pytest.raises(tessera.TesseraError, match="do: .*multiple of 4"):
        torch.autograd.grad(o, q, unaligned(o.detach()))


def test_freed_storage_is_refused(rng):
    plan = tt.plan(prepare(mask=m.causal))
    q, k, v = inputs(rng, grad=False)
    for i, name in enumerate("qkv"):
        for x in (freed((q, k, v)[i]), (q, k, v)[i].clone()):
            x.untyped_storage().resize_(0)
            given = [q, k, v]
            given[i] = x
            for call in (tt.attention, _by_operator):
                with pytest.raises(ValueError, match=f"{name}: its storage was freed"):
                    call(*given, plan)
    operand = plan.operand.clone()
    operand.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="plan: its storage was freed"):
        torch.ops.tessera.forward(q, k, v, operand, None, plan.number)
    for name in ("q", "o", "lse", "dout"):  # between the passes
        x = q.clone().requires_grad_()
        o, lse = tt.attention(x, k, v, plan, return_lse=True)
        dout = torch.ones_like(o)
        {"q": x, "o": o, "lse": lse, "dout": dout}[name].untyped_storage().resize_(0)
        with pytest.raises(ValueError, match=f"{name}: its storage was freed"):
            torch.autograd.grad(o, x, dout)
    sinks = torch.zeros(H)
    with_sinks = tt.plan(prepare(mask=m.causal, sink_logits=True))
    assert torch.isfinite(tt.attention(q, k, v, with_sinks, sink_logits=sinks)).all()
    sinks.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="sink_logits: its storage was freed"):
        tt.attention(q, k, v, with_sinks, sink_logits=sinks)


def test_bad_gradients(rng):
    plan = tt.plan(prepare(mask=m.causal))
    q, k, v = inputs(rng)
    for call in (tt.attention, _by_operator):
        o = call(q, k, v, plan)
        good = torch.ones_like(o)
        with pytest.raises(TypeError, match="dout: a dense tensor expected"):
            torch.autograd.grad(o, q, good.to_sparse(), retain_graph=True)
        (several,) = torch.autograd.grad(o, q, torch.stack([good, 2 * good]), retain_graph=True, is_grads_batched=True)
        for one, alone in zip(several, (good, 2 * good)):  # row by row
            assert torch.equal(one, torch.autograd.grad(o, q, alone, retain_graph=True)[0])
        with pytest.raises(RuntimeError):  # PyTorch's own: another shape, and complex numbers
            torch.autograd.grad(o, q, good[:1], retain_graph=True)
        with pytest.raises(RuntimeError):
            torch.autograd.grad(o, q, good + 0j, retain_graph=True)
        assert torch.isfinite(torch.autograd.grad(o, q, good)[0]).all()


def test_a_fork_after_use_is_refused():
    """By the call, with what to do instead; a new engine in the child, and this module's own, are good."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent("""
        import os, sys, torch, tessera, tessera.torch as tt
        torch.set_num_threads(1)
        c = tessera.Contract(q_len=512, num_q_heads=4, dim_qk=32, mask="causal")
        attn = tessera.Engine().prepare(c)
        plan, made = tt.plan(attn), attn.plan()
        q = torch.randn(1, 4, 512, 32, requires_grad=True)
        want = tt.attention(q, q, q, c)
        tt.attention(q, q, q, plan)
        pid = os.fork()
        if pid == 0:
            status = 0
            for call in (lambda: tt.attention(q, q, q, plan), lambda: tt.attention(q, q, q, made), lambda: tt.plan(attn),
                         lambda: torch.ops.tessera.forward(q, q, q, plan.operand, None, plan.number)):
                try:
                    call()
                    status = 3
                except (RuntimeError, tessera.TesseraError) as error:
                    status = status if "os.fork()" in str(error) else 4
            mine = tt.plan(tessera.Engine().prepare(c, threads=1))
            for again in (mine, c):
                status = status if torch.equal(tt.attention(q, q, q, again), want) else 5
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert torch.equal(tt.attention(q, q, q, plan), want)
        sys.exit(status)
    """)], capture_output=True, text=True, timeout=120)  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr)


def test_lazy_negation_is_resolved(rng):
    attn = prepare(mask=m.causal, num_kv_heads=H, dim_v=D)
    plan = tt.plan(attn)
    z = torch.complex(*(torch.from_numpy(rng.standard_normal((B, H, T, D), np.float32)) for _ in range(2)))
    lazy = torch._neg_view(z.imag.contiguous())
    assert lazy.is_neg()
    assert torch.equal(tt.attention(lazy, lazy, lazy, plan), tt.attention(*[lazy.resolve_neg()] * 3, plan))


@pytest.mark.parametrize("lse", [False, True])
def test_a_lazily_negated_gradient_is_resolved(rng, lse):
    """Whoever asks for gradients chooses the one that comes in."""
    plan = tt.plan(prepare(mask=m.causal, sink_logits=True))
    q, k, v = inputs(rng)
    sinks = torch.from_numpy(rng.standard_normal(H, np.float32)).requires_grad_()
    for call in (lambda *x: tt.attention(*x, plan, sink_logits=sinks, return_lse=lse), _by_operator_with(plan, sinks)):
        o = call(q, k, v)
        o = o[0] if isinstance(o, tuple) else o
        g = torch.from_numpy(rng.standard_normal(tuple(o.shape), np.float32))
        lazy = torch._neg_view(g)
        conjugated = torch.complex(torch.zeros_like(g), g).conj().imag  # as it comes about: negated, and a stride of 2
        assert lazy.is_neg() and conjugated.is_neg() and conjugated.stride(-1) == 2
        want = torch.autograd.grad(o, (q, k, v, sinks), (-g).clone(), retain_graph=True)
        for given in (lazy, conjugated):
            got = torch.autograd.grad(o, (q, k, v, sinks), given, retain_graph=True)
            assert all(map(torch.equal, got, want))


def _by_operator_with(plan, sinks):
    return lambda q, k, v: torch.ops.tessera.forward(q, k, v, plan.operand, sinks, plan.number)


def test_memory_freed_or_moved_between_the_passes(rng):
    """What a backward needs is held by the graph: plan, attention and inputs may go."""
    attn = prepare()
    q, k, v = inputs(rng)
    o = tt.attention(q * 1, k * 1, v * 1, tt.plan(attn, doc_lengths=[[40, 56], [96]]))
    del attn
    o.sum().backward()
    assert torch.isfinite(q.grad).all()
    o = tt.attention(q, k, v, tt.plan(prepare(mask=m.causal)))
    with torch.no_grad():
        k.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


def test_threads(rng):
    attn = prepare()
    q, k, v = inputs(rng, grad=False)
    plans = [tt.plan(attn, doc_lengths=[[i + 1, 95 - i], [96]]) for i in range(8)]
    want = [tt.attention(q, k, v, plan) for plan in plans]
    wrong = []

    def work(i):
        for _ in range(20):
            mine = [x.clone().requires_grad_() for x in (q, k, v)]
            o = tt.attention(*mine, plans[i])
            o.sum().backward()
            if not torch.equal(o, want[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_routed_plans_from_tensors(rng):
    """q and k of PyTorch's, of every dtype, make the picks that arrays make."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        attn = tessera.Engine().prepare(tessera.Contract(
            q_len=128, num_q_heads=4, num_kv_heads=2, dim_qk=16, dtype=dtype, mask=m.causal & m.blocks,
            routing=dict(top_n=3, compression_block=16, block_stride=16, selected_block=16)))  # fmt: skip
        q, k = (torch.from_numpy(rng.standard_normal((1, h, 128, 16), np.float32)).to(dtype) for h in (4, 2))
        as_bits = [x.view(torch.int16).numpy().view(np.uint16) if dtype == torch.bfloat16 else x.numpy() for x in (q, k)]
        want = attn.plan(q=as_bits[0], k=as_bits[1])
        assert attn.plan(q=q, k=k) == want
        assert tt.plan(attn, q=q.requires_grad_(), k=k).plan == want
        by_token = q.detach().transpose(1, 2).contiguous().transpose(1, 2)
        assert attn.plan(q=by_token, k=k) == want
        if dtype == torch.float32:
            assert attn.plan(q=torch._neg_view(-q.detach()), k=k) == want, "a lazily negated view is resolved"
        v = torch.randn(1, 2, 128, 16).to(dtype)
        assert torch.isfinite(tt.attention(q, k, v, tt.plan(attn, q=q, k=k))).all()
        with pytest.raises(ValueError, match="on the CPU"):
            attn.plan(q=q.to("meta"), k=k)
        with pytest.raises(tessera.TesseraError) as caught:
            attn.plan(q=q, k=None)
        assert caught.value.code.startswith("TSR-")


def test_errors_of_the_engine_have_all_their_fields(rng):
    plan = tt.plan(prepare(mask=m.causal))
    q, k, v = inputs(rng, grad=False)
    negative = torch.as_strided(torch.zeros(B * H * T * D), (B, H, T, D), (0, 0, 0, 1))
    with pytest.raises(tessera.TesseraError) as caught:
        tessera._native.call_forward(
            plan.number, (plan.operand.data_ptr(), plan.operand.numel()), (1, 0, 0, 0),
            (q.data_ptr() + 1, k.data_ptr(), v.data_ptr(), negative.data_ptr()), ((1, 1, 1, 1),) * 3 + ((0, 0, 0, 1),), (0, 0),
        )  # fmt: skip
    assert re.fullmatch(r"TSR-[A-Z]\d{3}", caught.value.code) and caught.value.violations
    with pytest.raises(tessera.TesseraError) as caught:
        tt.attention(q, k, v, _with_operand(plan, torch.zeros_like(plan.operand)))
    assert caught.value.code == "TSR-P005"
    other = tt.plan(prepare(mask=m.full))
    with pytest.raises(tessera.TesseraError) as caught:
        tt.attention(q, k, v, _with_operand(plan, other.operand))
    assert caught.value.code == "TSR-P007"


def _with_operand(plan, operand):
    made = object.__new__(tt.TorchPlan)
    made.operand, made.number, made.plan = operand, plan.number, plan.plan
    made._place, made._call = tt._place_of_plan(operand), plan._call
    return made
