"""tessera.torch among what else people do: transforms of torch.func, compiled forward mode, tensors without memory, modules
that are copied; and the two ways a call may go."""

import copy
import functools
import pickle

import numpy as np
import pytest

import tessera
from tessera import mask as m

torch = pytest.importorskip("torch", reason="PyTorch is not installed in this environment")
import test_torch as bad  # noqa: E402
from test_torch import DV, KV, B, D, H, T, freed, inputs, prepare  # noqa: E402

import tessera.torch as tt  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_short_way_and_the_long_way_are_the_same(rng, monkeypatch, dtype):
    """Where PyTorch has DLPack's C interface the extension reads tensors by it; the same bits come from the way without it."""
    if not tt._has_short_way:
        pytest.skip("this PyTorch has no DLPack C interface")
    plan = tt.plan(prepare(mask=m.causal, num_kv_heads=H, dim_v=D, dtype=dtype))
    taken = {"torch_forward": [], "torch_backward": []}

    def all_of(q, k, v, dout):
        o, lse = tt.attention(q, k, v, plan, return_lse=True)
        return o, lse, *torch.autograd.grad(o, (q, k, v), dout)

    def note(name):
        real = getattr(tessera._native, name)
        monkeypatch.setattr(tessera._native, name, lambda *a: taken[name].append(real(*a)) or taken[name][-1])

    packed = torch.from_numpy(rng.standard_normal((B, T, 4, H, D), np.float32)).to(dtype)
    views = [x.transpose(1, 2).detach().requires_grad_() for x in packed.unbind(2)]
    dense_ones = [x.detach().contiguous().requires_grad_() for x in views]
    spread = [x.detach()[:, :1].expand(B, H, T, D).requires_grad_() for x in dense_ones]
    for given, dout, is_short in [
        (views, views[3].detach(), True), (dense_ones, dense_ones[3].detach(), True), (spread, spread[3].detach(), True),
        (dense_ones, torch.ones((), dtype=dtype).expand(B, H, T, D), False),  # copied first
    ]:  # fmt: skip
        note("torch_forward"), note("torch_backward")
        short = all_of(*given[:3], dout)
        assert taken["torch_forward"] == [True] and taken["torch_backward"] == [is_short]
        monkeypatch.undo()
        monkeypatch.setattr(tt, "_has_short_way", False)
        long = all_of(*given[:3], dout)
        monkeypatch.undo()
        assert all(map(torch.equal, short, long)) and [x.stride() for x in short] == [x.stride() for x in long]
        taken["torch_forward"].clear(), taken["torch_backward"].clear()


def test_without_the_short_way(monkeypatch):
    """An older PyTorch has no such interface: bad tensors are refused alike, and nothing of it is asked for."""
    monkeypatch.setattr(tt, "_has_short_way", False)
    for test in (bad.test_bad_tensors, bad.test_freed_storage_is_refused, bad.test_bad_gradients, test_a_tensor_that_outlived_a_transform):
        test(np.random.default_rng(0))
    assert not tessera._native.torch_set_up(torch.Tensor, torch.nn.Parameter, None)
    assert tessera._native.torch_set_up(torch.Tensor, torch.nn.Parameter, object()) is False
    tessera._native.torch_set_up(torch.Tensor, torch.nn.Parameter, getattr(torch.Tensor, "__dlpack_c_exchange_api__", None))


def test_what_is_not_for_the_short_way_is_left_untouched(rng):
    if not tt._has_short_way:
        pytest.skip("this PyTorch has no DLPack C interface")
    plan = tt.plan(prepare(mask=m.causal, num_kv_heads=H, dim_v=D))
    q, k, v = (torch.from_numpy(rng.standard_normal((B, H, T, D), np.float32)) for _ in range(3))
    o, lse = torch.full_like(q, 7), torch.full((B, H, T), 7.0)
    good = dict(q=q, k=k, v=v, o=o, lse=lse)
    bad = [q.double(), q.half(), q[:, :1], q[0], q.transpose(2, 3), q.to("meta"), q.to_sparse(), q + 0j, freed(q), q[..., ::2], "q", np.zeros((B, H, T, D), np.float32)]
    for name in good:
        for x in bad:
            given = good | {name: x}
            assert tessera._native.torch_forward(plan.number, *plan._place, *given.values()) is False, (name, x)
    assert tessera._native.torch_forward(10**6, *plan._place, *good.values()) is False
    assert (o == 7).all() and (lse == 7).all()
    assert tessera._native.torch_forward(plan.number, *plan._place, *good.values()) is True
    assert torch.equal(o, tt.attention(q, k, v, plan))
    grads = [torch.full_like(q, 7) for _ in range(3)]
    backward = dict(dout=q, **good, dq=grads[0], dk=grads[1], dv=grads[2])
    for name in backward:
        for x in bad:
            assert tessera._native.torch_backward(plan.number, *plan._place, *(backward | {name: x}).values()) is False, (name, x)
    assert all((x == 7).all() for x in grads)


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_forward_mode_is_refused_when_compiled(rng, backend, fullgraph):
    """Inside and outside of the compiled function, and where it was compiled before: a tangent is never lost without a word."""
    from torch.autograd import forward_ad

    plan = tt.plan(prepare(mask=m.causal, num_kv_heads=H, dim_v=D))
    x = torch.from_numpy(rng.standard_normal((B, H, T, D), np.float32))
    plain = torch.compile(lambda x, plan: tt.attention(x, x, x, plan), backend=backend, fullgraph=fullgraph)
    by_jvp = torch.compile(lambda x, plan: torch.func.jvp(lambda y: tt.attention(x, y, x, plan), (x,), (x,)), backend=backend,
                           fullgraph=fullgraph)  # fmt: skip

    @functools.partial(torch.compile, backend=backend, fullgraph=fullgraph)
    def by_dual_level(x, plan):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(tt.attention(forward_ad.make_dual(x, x), x, x, plan)).tangent

    def from_outside(x, plan):
        plain(x, plan)
        with forward_ad.dual_level():
            return plain(forward_ad.make_dual(x, x), plan)

    for call in (by_jvp, by_dual_level, from_outside):
        torch._dynamo.reset()
        # With fullgraph PyTorch says that it cannot go on, and why: dual tensors it does not take itself.
        with pytest.raises((NotImplementedError, RuntimeError), match="forward-mode|dual tensor"):
            call(x, plan)
    assert torch.equal(plain(x, plan), tt.attention(x, x, x, plan))
    torch._dynamo.reset()


def test_gradients_of_torch_func(rng):
    plan = tt.plan(prepare(mask=m.causal, sink_logits=True))
    q, k, v = inputs(rng)
    sinks = torch.from_numpy(rng.standard_normal(H, np.float32)).requires_grad_()

    def loss(q, k, v, sinks):
        o, lse = tt.attention(q, k, v, plan, sink_logits=sinks, return_lse=True)
        return (o.square().sum() + 0 * lse.sum())

    given = (q, k, v, sinks)
    want = torch.autograd.grad(loss(*given), given)
    bare = [x.detach() for x in given]
    assert all(map(torch.equal, torch.func.grad(loss, argnums=(0, 1, 2, 3))(*bare), want))
    out, back = torch.func.vjp(loss, *bare)
    assert all(map(torch.equal, back(torch.ones(())), want))
    transposed = torch.func.grad(lambda q: tt.attention(q.transpose(1, 2), bare[1].transpose(1, 2), bare[2].transpose(1, 2), plan,
                                                        sink_logits=bare[3], layout="bthd").square().sum())(bare[0])  # fmt: skip
    assert torch.equal(transposed, want[0])
    assert torch.equal(torch.func.functionalize(loss)(*bare), loss(*bare))
    first = torch.func.grad(loss)
    for call, text in [
        (lambda: torch.func.grad(lambda q: first(q, *bare[1:]).sum())(bare[0]), "second derivative"),
        (lambda: torch.func.jacrev(first)(*bare), "second derivative|vmap"),
        (lambda: torch.func.jacrev(lambda q: loss(q, *bare[1:])[None].expand(2))(bare[0]), "vmap"),
        (lambda: torch.vmap(first, (0, None, None, None))(bare[0][None], *bare[1:]), "vmap"),
        (lambda: torch.func.hessian(loss)(*bare), "forward mode|second derivative|vmap"),
        (lambda: torch.autograd.functional.hessian(lambda q: loss(q, *bare[1:]), bare[0]), "second derivative"),
    ]:
        with pytest.raises((NotImplementedError, RuntimeError), match=text):
            call()


@pytest.mark.parametrize("which", range(3))
def test_a_gradient_of_one_alone(rng, which):
    plan = tt.plan(prepare(mask=m.causal))
    q, k, v = inputs(rng)
    want = torch.autograd.grad(tt.attention(q, k, v, plan).square().sum(), (q, k, v))
    given = [x.detach().clone() for x in (q, k, v)]
    given[which].requires_grad_()
    tt.attention(*given, plan).square().sum().backward()
    assert torch.equal(given[which].grad, want[which])
    assert all(x.grad is None for i, x in enumerate(given) if i != which)


def test_tensors_without_memory_have_shapes(rng):
    """Of the meta device, and fake ones: shapes, dtypes and gradients without a call."""
    from torch._subclasses import FakeTensorMode

    plan = tt.plan(prepare(mask=m.causal))
    shapes = [(B, H, T, D), (B, KV, T, D), (B, KV, T, DV)]
    with FakeTensorMode():
        fake = [torch.empty(shape, requires_grad=True) for shape in shapes]
        made = [(fake, *tt.attention(*fake, plan, return_lse=True))]
        with pytest.raises(ValueError, match="q: shape"):
            tt.attention(fake[1], *fake[1:], plan)
        made[0][1].sum().backward()
    meta = [torch.empty(shape, device="meta", requires_grad=True) for shape in shapes]
    made.append((meta, *tt.attention(*meta, plan, return_lse=True)))
    made[1][1].sum().backward()
    turned = [x.detach().transpose(1, 2) for x in meta]
    assert tt.attention(*turned, plan, layout="bthd").shape == (B, T, H, DV)
    for given, o, lse in made:
        assert o.shape == (B, H, T, DV) and lse.shape == (B, H, T) and lse.dtype == torch.float32
        assert [x.grad.shape for x in given] == [x.shape for x in given]
    with pytest.raises(ValueError, match="q: shape"):
        tt.attention(meta[1], *meta[1:], plan)


def test_a_module_that_holds_a_plan_is_copied_and_pickled(rng):
    plan = tt.plan(prepare(), doc_lengths=[[40, 56], [96]])
    q, k, v = inputs(rng, grad=False)

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.plan, self.weight = plan, torch.nn.Parameter(torch.ones(D))

        def forward(self, q, k, v):
            return tt.attention(q * self.weight, k, v, self.plan)

    layer = Layer()
    want = layer(q, k, v)
    assert torch.equal(copy.deepcopy(layer)(q, k, v), want)
    again = pickle.loads(pickle.dumps(plan))
    assert again.plan == plan.plan and again.number == plan.number, "no program is compiled for it"
    assert torch.equal(tt.attention(q, k, v, again), want)


def test_inference_tensors(rng):
    plan = tt.plan(prepare(mask=m.causal))
    q, k, v = inputs(rng, grad=False)
    want = tt.attention(q, k, v, plan)
    with torch.inference_mode():
        mine = [x.clone() for x in (q, k, v)]
        assert torch.equal(tt.attention(*mine, plan), want)
    assert torch.equal(tt.attention(*mine, plan), want)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):  # PyTorch's own
        tt.attention(mine[0], k, v.clone().requires_grad_(), plan)


def test_autocast_changes_nothing(rng):
    plan = tt.plan(prepare(mask=m.causal))
    q, k, v = inputs(rng)
    want = tt.attention(q, k, v, plan)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(tt.attention(q, k, v, plan), want)
        with pytest.raises(TypeError, match="q: f32 expected, the contract's dtype, got torch.bfloat16"):
            tt.attention(q @ torch.eye(D), k, v, plan)


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
