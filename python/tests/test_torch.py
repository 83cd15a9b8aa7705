"""tessera.torch: numbers and gradients, compiled programs, what is refused, and masks to and from FlexAttention."""

import re
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


def test_strides_layouts_and_no_copy(rng):
    attn = prepare(mask=m.causal, num_kv_heads=H, dim_v=D)
    plan = tt.plan(attn)
    packed = torch.from_numpy(rng.standard_normal((B, T, 3, H, D), np.float32))
    q, k, v = packed.unbind(2)
    seen = []
    real = tessera._native.call_forward
    try:
        tessera._native.call_forward = lambda *a: seen.append(a) or real(*a)
        o = tt.attention(q, k, v, plan, layout="bthd")
    finally:
        tessera._native.call_forward = real
    assert seen[0][3] == (q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr()) and o.is_contiguous()
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


def test_bad_tensors(rng):
    plan = tt.plan(prepare(mask=m.causal))
    q, k, v = inputs(rng, grad=False)
    unaligned = torch.zeros(q.numel() * 4 + 1, dtype=torch.uint8)[1:]
    for given, error, text in [
        ((q.double(), k, v), TypeError, "float64"),
        ((q.half(), k, v), TypeError, "float16"),
        ((q[:1], k, v), ValueError, "q: shape"),
        ((q, k[:, :1], v), ValueError, "k: shape"),
        ((q, k, k), ValueError, "v: shape"),
        ((q[0], k, v), ValueError, "q: shape"),
        ((torch.empty(B, H, D, T).transpose(2, 3), k, v), ValueError, "last axis"),
        ((q.numpy(), k, v), TypeError, "torch.Tensor"),
        ((q.to("meta"), k, v), (ValueError, NotImplementedError, RuntimeError), None),
        ((q, k, v.to("meta")), (ValueError, NotImplementedError, RuntimeError), None),
        ((q.to("meta"), k.to("meta"), v.to("meta")), ValueError, "CPU or a CUDA GPU"),
        ((q.to_sparse(), k, v), (RuntimeError, NotImplementedError), None),
        ((q + 0j, k, v), TypeError, "complex"),
    ]:
        with pytest.raises(error, match=text):
            tt.attention(*given, plan)
    with pytest.raises(RuntimeError):
        unaligned.view(torch.float32)  # PyTorch itself does not make one
    with pytest.raises(TypeError, match="plan:"):
        tt.attention(q, k, v, "plan")
    with pytest.raises(ValueError, match="layout"):
        tt.attention(q, k, v, plan, layout="thd")
    with pytest.raises((TypeError, tessera.TesseraError), match="sink_logits"):
        tt.attention(q, k, v, plan, sink_logits=torch.zeros(H))
    with pytest.raises(TypeError, match="sink_logits"):
        tt.attention(q, k, v, plan, sink_logits=torch.zeros(H + 1))


def test_lazy_negation_is_resolved(rng):
    attn = prepare(mask=m.causal, num_kv_heads=H, dim_v=D)
    plan = tt.plan(attn)
    z = torch.complex(*(torch.from_numpy(rng.standard_normal((B, H, T, D), np.float32)) for _ in range(2)))
    lazy = torch._neg_view(z.imag.contiguous())
    assert lazy.is_neg()
    assert torch.equal(tt.attention(lazy, lazy, lazy, plan), tt.attention(*[lazy.resolve_neg()] * 3, plan))


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


def test_a_tensor_that_outlived_a_transform(rng):
    plan = tt.plan(prepare(mask=m.causal))
    q, k, v = inputs(rng, grad=False)
    kept = []
    torch.func.grad(lambda x: kept.append(x) or x.sum())(q)
    for lse in (False, True):
        want, got = (tt.attention(x, k, v, plan, return_lse=lse) for x in (q, kept[0]))
        assert torch.equal(want[0], got[0]) if lse else torch.equal(want, got)


def test_autocast_and_checkpoint(rng):
    from torch.utils.checkpoint import checkpoint

    plan = tt.plan(prepare(mask=m.causal))
    q, k, v = inputs(rng)
    checkpoint(lambda *x: tt.attention(*x, plan), q, k, v, use_reentrant=False).sum().backward()
    again = q.grad.clone()
    q.grad = None
    tt.attention(q, k, v, plan).sum().backward()
    assert torch.equal(again, q.grad)


@pytest.mark.parametrize(
    "mask_mod,text",
    [
        (lambda b, h, q, kv: q >= kv, "causal"),
        (lambda b, h, q, kv: (q >= kv) & (q - kv < 32), "causal and window(31, 0)"),
        (lambda b, h, q, kv: (q - kv).abs() <= 3, "window(3, 3)"),
        (lambda b, h, q, kv: q >= 0, "full"),
        (lambda b, h, q, kv: (q >= kv) | (kv % 7 == 0), "bitmap("),
    ],
)
def test_from_flex(mask_mod, text):
    from torch.nn.attention.flex_attention import create_block_mask

    warned = pytest.warns(tessera.BitmapWarning) if "bitmap" in text else _nothing()
    with warned:
        contract = tt.from_flex(mask_mod, q_len=100, kv_len=100, dim_qk=8)
    assert contract.mask.startswith(text)
    block_mask = create_block_mask(mask_mod, 1, 1, 100, 100, device="cpu")
    with pytest.warns(tessera.BitmapWarning) if "bitmap" in text else _nothing():
        assert tt.from_flex(block_mask, dim_qk=8).key == contract.key
    by_batch = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="differs between batch rows"):
        tt.from_flex(lambda b, h, q, kv: (q >= kv) & (by_batch[b] == 0), q_len=16, batch=2, dim_qk=8)


def test_from_flex_takes_the_blocks_of_a_block_mask():
    """What is in no block is not seen, whatever the function says; what is in a full block is: so do FlexAttention's
    kernels (not compiled, it looks at the function alone)."""
    from torch.nn.attention.flex_attention import BlockMask, create_block_mask

    def expect(contract, tiles, below):
        seen = torch.tensor(tiles).bool().repeat_interleave(32, 0).repeat_interleave(32, 1)
        full = torch.tensor(below).bool().repeat_interleave(32, 0).repeat_interleave(32, 1)
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=(seen | full)[None, None])
        torch.testing.assert_close(tt.attention(q, k, v, contract), want, rtol=0, atol=1e-4)

    counts = torch.tensor([[[1, 2, 1, 2]]], dtype=torch.int32)
    indices = torch.tensor([[[[0, 0, 0, 0], [0, 1, 0, 0], [2, 0, 0, 0], [0, 3, 0, 0]]]], dtype=torch.int32)
    blocks = BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=32)  # no function: the blocks are the mask
    with pytest.warns(tessera.BitmapWarning):
        contract = tt.from_flex(blocks, dim_qk=16)
    q, k, v = (torch.randn(1, 1, 128, 16) for _ in range(3))
    listed = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1]]
    expect(contract, listed, np.zeros((4, 4)))
    # The function lets nothing pass: what is left are the full blocks.
    above = torch.tensor([[[[3, 0, 0, 0], [3, 0, 0, 0], [3, 0, 0, 0], [2, 0, 0, 0]]]], dtype=torch.int32)
    full = BlockMask.from_kv_blocks(counts, indices, torch.ones(1, 1, 4, dtype=torch.int32), above, BLOCK_SIZE=32,
                                    mask_mod=lambda b, h, q, kv: q < 0)  # fmt: skip
    with pytest.warns(tessera.BitmapWarning):
        contract = tt.from_flex(full, dim_qk=16)
    expect(contract, np.zeros((4, 4)), [[0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 1, 0]])
    by_head = create_block_mask(lambda b, h, q, kv: (q >= kv) & ((h > 0) | (q - kv < 4)), None, 2, 64, 64, device="cpu")
    contract = tt.from_flex(by_head, dim_qk=8)
    assert contract.shape.num_q_heads == 2 and len(contract.mask) == 2
    assert tt.from_flex(create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 64, 64, device="cpu"), batch=3,
                        num_q_heads=4, dim_qk=8).shape.q == (3, 4, 64, 8)  # fmt: skip
    for wrong in (dict(num_q_heads=3), dict(q_len=65)):
        with pytest.raises(ValueError, match="BlockMask"):
            tt.from_flex(by_head, dim_qk=8, **wrong)
    with pytest.raises(TypeError, match="booleans"):
        tt.from_flex(lambda b, h, q, kv: q - kv, q_len=16, dim_qk=8)
    with pytest.raises(TypeError, match="mask_mod or a BlockMask"):
        tt.from_flex("causal", q_len=16, dim_qk=8)


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


def test_from_flex_by_head():
    contract = tt.from_flex(lambda b, h, q, kv: (q >= kv) & ((h > 0) | (q - kv < 4)), q_len=64, num_q_heads=2, dim_qk=8)
    assert [head if isinstance(head, str) else head["expr"] for head in contract.mask] == [
        "causal and window(3, 0)", "causal",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["causal and documents", "causal and documents and (window(15, 0) or sink(4, document))",
                                  "documents and valid", "chunk(24) or prefix(8)", "causal and (window(7, 0) or sink(3))"])  # fmt: skip
def test_to_flex_is_the_same_mask(rng, text):
    from torch.nn.attention.flex_attention import flex_attention

    attn = prepare(mask=text, num_kv_heads=H, dim_v=D)
    batch = {}
    if "documents" in text:
        batch["doc_ids"] = random_documents(rng, B, T, 4)
    if "valid" in text:
        batch["valid_tokens"] = [T, T - 20]
    plan = attn.plan(**batch)
    q, k, v = (torch.from_numpy(rng.standard_normal((B, H, T, D), np.float32)) for _ in range(3))
    got = flex_attention(q, k, v, block_mask=tt.to_flex(plan, block_size=32))
    want = tt.attention(q, k, v, plan)
    if "valid" in text:  # FlexAttention leaves rows that see nothing to chance
        got, want = got[0], want[0]
    torch.testing.assert_close(got, want, rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match="does not know its batch"):
        tt.to_flex(attn.plan_from_bytes(plan.to_bytes()))


class _nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False
