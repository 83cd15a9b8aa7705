"""Attention on PyTorch's tensors, where they lie: an operator with a gradient, under `torch.compile` too.

    plan = tessera.torch.plan(attn, doc_ids=ids)          # once for each batch
    o = tessera.torch.attention(q, k, v, plan)            # as often as there are layers

Nothing is copied and nothing waits: tensors go by address, strides and, on a GPU, the current stream.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _native
from ._contract import DTYPES, Contract, shape_error
from ._engine import Attention, Engine, shape_of_number
from ._flex import from_flex, to_flex
from ._plan import Plan

__all__ = ["TorchPlan", "attention", "from_flex", "plan", "to_flex"]

_DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
_MEMORIES = {"cpu": 0, "cuda": 1}


class TorchPlan:
    """A plan as compiled programs take it: its bytes as a tensor on the CPU, and the number of its attention.

    The tensor is as long for every plan of an attention (`Plan.operand`), so a new plan compiles nothing anew.
    """

    __slots__ = ("operand", "number", "plan", "_place", "_call")

    def __init__(self, plan: Plan):
        self.operand = torch.from_numpy(plan._memory())
        self.number = plan.attention._register().number
        self.plan = plan
        self._place = _place_of_plan(self.operand)
        self._call = _call(self.number)

    def __repr__(self) -> str:
        return f"<tessera.torch.TorchPlan of {self.plan!r}>"

    def __copy__(self) -> "TorchPlan":
        return self

    def __deepcopy__(self, memo: Any) -> "TorchPlan":
        return self

    def __reduce__(self):
        return _of, (self.plan,)


def plan(attention: Attention, **batch: Any) -> TorchPlan:
    """`Attention.plan` with tensors on the CPU, or arrays, as batch."""
    given = {name: value.detach().numpy() if isinstance(value, Tensor) and name not in ("q", "k") else value
             for name, value in batch.items()}  # fmt: skip
    return _of(attention.plan(**given))  # q and k may be of any dtype of ours, which it knows to take


def _of(made: Plan) -> TorchPlan:
    found = made._of_framework.get("torch")
    if found is None:
        found = made._of_framework["torch"] = TorchPlan(made)
    return found


_own: dict[tuple[str, str, int], TorchPlan] = {}
_own_lock = threading.Lock()
_own_engine: Engine | None = None


def _forget_own() -> None:
    """In the child of a fork: an engine is good in the process that made it, and this one nobody else could make anew."""
    global _own_engine, _own_lock
    _own_engine, _own_lock = None, threading.Lock()
    _own.clear()


os.register_at_fork(after_in_child=_forget_own)


def _of_contract(contract: Contract, q: Tensor) -> TorchPlan:
    """A contract whose mask no batch changes has one plan where q is; it is made by an engine of this module's own."""
    global _own_engine
    key = (contract.key, contract.text, q.get_device())
    with _own_lock:
        found = _own.get(key)
        if found is None:
            if _own_engine is None:
                _own_engine = Engine()
            where: dict[str, Any] = {"target": "h200", "memory": "gpu", "ordinal": q.get_device()} if q.is_cuda else {}
            found = _own[key] = _of(_own_engine.prepare(contract, **where).plan())
    return found


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: TorchPlan | Plan | Contract,
    *,
    sink_logits: Tensor | None = None,
    layout: str = "bhtd",
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of q over k and v under a plan, with gradients of q, k, v and the sink logits.

    Tensors are [batch, heads, tokens, dim], or with `layout="bthd"` [batch, tokens, heads, dim]; any strides, as long as
    the last axis is contiguous. A contract stands for its plan where no batch changes its mask. Inside `torch.compile`
    give a `TorchPlan`. The log-sum-exp has no gradient. Forward-mode AD, vmap and double backward are refused.

    >>> import torch, tessera, tessera.torch
    >>> contract = tessera.Contract(q_len=256, num_q_heads=2, dim_qk=16, mask="causal and documents")
    >>> attn = tessera.Engine().prepare(contract)
    >>> q, k, v = (torch.randn(1, 2, 256, 16, requires_grad=True) for _ in range(3))
    >>> plan = tessera.torch.plan(attn, doc_lengths=[100, 156])
    >>> tessera.torch.attention(q, k, v, plan).sum().backward()
    >>> q.grad.shape
    torch.Size([1, 2, 256, 16])
    """
    if not _is_compiling() and type(plan) is TorchPlan and layout == "bhtd" and _is_plain(q, k, v, sink_logits):
        try:
            return (_apply_with_lse if return_lse else _apply)(q, k, v, sink_logits, plan)
        except RuntimeError:  # a tensor that outlived a transform of torch.func: the public way unwraps it, or says what is wrong
            _check_layouts(q, k, v, sink_logits)
            return (_AttentionWithLse if return_lse else _Attention).apply(q, k, v, sink_logits, plan)
    if not _is_compiling():
        for name, x in (("q", q), ("k", k), ("v", v)):
            if not isinstance(x, Tensor):
                raise TypeError(f"{name}: a torch.Tensor expected, got {type(x).__name__}")
        _refuse_tangents(q, k, v, sink_logits)
        _check_layouts(q, k, v, sink_logits)
    if isinstance(plan, Plan):
        plan = _of(plan)
    elif isinstance(plan, Contract):
        plan = _of_contract(plan, q)
    elif not isinstance(plan, TorchPlan):
        raise TypeError(f"plan: a TorchPlan, Plan or Contract expected, got {type(plan).__name__}")
    if layout == "bthd":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    elif layout != "bhtd":
        raise ValueError(f"layout: 'bhtd' or 'bthd' expected, got {layout!r}")
    if not _is_compiling() and _is_plain(q, k, v, sink_logits):
        o, lse = _AttentionWithLse.apply(q, k, v, sink_logits, plan)
    elif not _is_compiling() and any(map(_is_grad_tracking, (q, k, v, sink_logits))):
        o, lse = _Transformed.apply(q, k, v, plan.operand, sink_logits, plan.number)
    else:
        o, lse = torch.ops.tessera.forward(q, k, v, _operand_beside(q, plan), sink_logits, plan.number)
    if layout == "bthd":
        o = o.transpose(1, 2)
    return (o, lse) if return_lse else o


# --- Without the dispatcher ------------------------------------------------------------------------------------------

_PLAIN = (Tensor, torch.nn.Parameter)
_is_compiling = torch.compiler.is_compiling
_are_transforms_active = torch._C._are_functorch_transforms_active
_num_modes = torch._C._len_torch_dispatch_stack


def _is_grad_tracking(x: Tensor | None) -> bool:
    """Whether `torch.func.grad` or `vjp` looks at it."""
    return x is not None and _are_transforms_active() and torch._C._functorch.is_gradtrackingtensor(x)


def _operand_beside(q: Tensor, plan: TorchPlan) -> Tensor:
    """The plan where tensors without memory are: among fake ones, or on the meta device."""
    if _is_compiling():
        return plan.operand
    mode = getattr(q, "fake_mode", None)
    return mode.from_tensor(plan.operand) if mode is not None else plan.operand.to("meta") if q.is_meta else plan.operand


# Whether this PyTorch has DLPack's C interface, by which the extension reads tensors itself: `torch_forward` and `torch_backward`
# are False where a call is not for this way, and then have touched nothing.
_has_short_way = _native.torch_set_up(Tensor, torch.nn.Parameter, getattr(Tensor, "__dlpack_c_exchange_api__", None))


def _is_plain(q: Tensor, k: Tensor, v: Tensor, sink_logits: Tensor | None) -> bool:
    """Whether nothing but autograd looks at these: no subclass, no transform, no mode, no lazy view. Then the operator's
    way through the dispatcher, which costs several times the call, is not needed."""
    if forward_ad._current_level >= 0 or _are_transforms_active() or _num_modes() != 0:
        return False
    if _has_short_way and sink_logits is None:
        return _native.torch_are_plain(q, k, v)
    return (
        type(q) in _PLAIN and type(k) in _PLAIN and type(v) in _PLAIN
        and not (q.is_neg() or k.is_neg() or v.is_neg() or q.is_sparse or k.is_sparse or v.is_sparse)
        and (sink_logits is None or (type(sink_logits) in _PLAIN and not (sink_logits.is_neg() or sink_logits.is_sparse)))
    )  # fmt: skip


def _is_plain_gradient(dout: Tensor) -> bool:
    """The same of a gradient that comes in: whoever asks for gradients chooses it, and may do so under modes of his own."""
    return (
        type(dout) in _PLAIN and not dout.is_neg() and dout.layout is torch.strided
        and not _are_transforms_active() and _num_modes() == 0
    )  # fmt: skip


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, sink_logits, plan):
        o, lse = _run_forward(plan._call, plan._place, q, k, v, sink_logits)
        ctx.save_for_backward(q, k, v, o, lse, sink_logits)
        ctx.plan = plan
        return o

    @staticmethod
    def backward(ctx, dout):
        q, k, v, o, lse, sink_logits = ctx.saved_tensors
        plan = ctx.plan
        # With create_graph somebody will differentiate again, which the operator refuses; a lazy view is resolved on its way.
        if torch.is_grad_enabled() or not _is_plain_gradient(dout):
            _check_layout("dout", dout)
            dq, dk, dv, dsinks = torch.ops.tessera.backward(dout, q, k, v, o, lse, plan.operand, sink_logits, plan.number)
        else:
            try:
                dq, dk, dv, dsinks = _run_backward(plan._call, plan._place, dout, q, k, v, o, lse, sink_logits)
            except RuntimeError:  # one that has no memory of its own, as a batch of gradients: the operator's way is PyTorch's
                dq, dk, dv, dsinks = torch.ops.tessera.backward(dout, q, k, v, o, lse, plan.operand, sink_logits, plan.number)
        return dq, dk, dv, None if sink_logits is None else dsinks, None


class _AttentionWithLse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, sink_logits, plan):
        o, lse = _run_forward(plan._call, plan._place, q, k, v, sink_logits)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, o, lse, sink_logits)
        ctx.plan = plan
        return o, lse

    @staticmethod
    def backward(ctx, dout, unused):
        return (None,) * 5 if dout is None else _Attention.backward(ctx, dout)


# `apply` without what it does for transforms, which are not active where these are called; that costs as much as a call.
_apply = super(torch.autograd.Function, _Attention).apply
_apply_with_lse = super(torch.autograd.Function, _AttentionWithLse).apply


# --- Under the transforms of torch.func -------------------------------------------------------------------------------


class _Transformed(torch.autograd.Function):
    """The operator as `torch.func.grad` and `vjp` take one: they want the context set up apart."""

    @staticmethod
    def forward(q, k, v, operand, sink_logits, number):
        return torch.ops.tessera.forward(q, k, v, operand, sink_logits, number)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _setup(ctx, inputs, output)

    @staticmethod
    def backward(ctx, dout, unused):
        if dout is None:
            return (None,) * 6
        _check_layout("dout", dout)
        q, k, v, o, lse, operand, sink_logits = ctx.saved_tensors
        dq, dk, dv, dsinks = _TransformedBackward.apply(dout, q, k, v, o, lse, operand, sink_logits, ctx.attention)
        return dq, dk, dv, None, None if sink_logits is None else dsinks, None

    @staticmethod
    def vmap(info, in_dims, *arguments):
        _no_vmap(info, in_dims, *arguments)


class _TransformedBackward(torch.autograd.Function):
    @staticmethod
    def forward(*arguments):
        return torch.ops.tessera.backward(*arguments)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *gradients):
        _no_double_backward(ctx, *gradients)

    @staticmethod
    def vmap(info, in_dims, *arguments):
        _no_vmap(info, in_dims, *arguments)


# --- The operators --------------------------------------------------------------------------------------------------

# What compilers must know, by the names that this PyTorch has: tensors arrive with the strides of the program, whose last axis
# is contiguous; and a recorded CUDA graph would go on with the plan of the call that was recorded.
_TAGS = [getattr(torch.Tag, name) for name in ("needs_exact_strides", "needs_fixed_stride_order", "cudagraph_unsafe")
         if hasattr(torch.Tag, name)]  # fmt: skip
if hasattr(torch.Tag, "needs_exact_strides"):
    _TAGS.remove(torch.Tag.needs_fixed_stride_order)

_library = torch.library.Library("tessera", "DEF")
_library.define(
    "forward(Tensor q, Tensor k, Tensor v, Tensor plan, Tensor? sink_logits, int attention) -> (Tensor, Tensor)",
    tags=_TAGS,
)
_library.define(
    "backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor plan, Tensor? sink_logits, "
    "int attention) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=_TAGS,
)


def _check_layout(name: str, x: Tensor) -> None:
    if x.layout is not torch.strided:
        raise TypeError(f"{name}: a dense tensor expected, got one with the layout {x.layout}")


def _check_layouts(q: Tensor, k: Tensor, v: Tensor, sink_logits: Tensor | None) -> None:
    for name, x in (("q", q), ("k", k), ("v", v), ("sink_logits", sink_logits)):
        if isinstance(x, Tensor):
            _check_layout(name, x)


# Where the storage was freed (`untyped_storage().resize_(0)`) a tensor's address is its offset in it. Only addresses as low
# as an offset may be are looked at: asking every storage would cost more than the rest of a call.
_LOWEST = 1 << 40


def _check_storage(**tensors: Tensor | None) -> None:
    for name, x in tensors.items():
        if x is not None and x.numel() > 0 and x.untyped_storage().nbytes() == 0:
            raise ValueError(f"{name}: its storage was freed")


def _check(name: str, x: Tensor, want: tuple[int, ...], like: Tensor, dtype: str) -> None:
    _check_layout(name, x)
    if tuple(x.shape) != want:
        raise ValueError(shape_error(name, want, x.shape))
    if _DTYPES.get(x.dtype) != dtype:
        raise TypeError(f"{name}: {dtype} expected, the contract's dtype, got {x.dtype}")
    if x.device != like.device:
        raise ValueError(f"{name}: on {like.device}, as q is, expected, got {x.device}")
    if x.stride(-1) != 1 and want[-1] > 1:
        raise ValueError(f"{name}: the last axis must be contiguous, its stride is {x.stride(-1)}; "
                         "contiguous() makes such a copy")  # fmt: skip


def _check_plan(plan: Tensor, like: Tensor | None = None) -> None:
    is_there = plan.is_cpu or (plan.is_meta and like is not None and like.is_meta)
    if not is_there or plan.dtype != torch.uint8 or plan.dim() != 1 or plan.stride(0) != 1:
        raise TypeError("plan: the operand of a TorchPlan expected, on the CPU")


def _check_inputs(q: Tensor, k: Tensor, v: Tensor, sink_logits: Tensor | None, shape: Any) -> None:
    _check("q", q, shape.q, q, shape.dtype)
    _check("k", k, shape.k, q, shape.dtype)
    _check("v", v, shape.v, q, shape.dtype)
    if sink_logits is not None:
        _check_layout("sink_logits", sink_logits)
        if sink_logits.dtype != torch.float32 or tuple(sink_logits.shape) != (shape.num_q_heads,):
            raise TypeError(f"sink_logits: {shape.num_q_heads} numbers of float32 expected")
        if sink_logits.device != q.device or not sink_logits.is_contiguous():
            raise ValueError(f"sink_logits: in one piece on {q.device} expected")


def _new(like: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    """In memory as `like` is: [B,T,H,D] memory stays that."""
    if like.shape == shape:
        return torch.empty_like(like)
    batch, heads, tokens, dim = shape
    if like.stride(1) < like.stride(2):
        return torch.empty((batch, tokens, heads, dim), dtype=like.dtype, device=like.device).transpose(1, 2)
    return torch.empty(shape, dtype=like.dtype, device=like.device)


def _place_of_plan(plan: Tensor) -> tuple[int, int]:
    address = plan.data_ptr()
    if address < _LOWEST:
        _check_storage(plan=plan)
    return address, plan.numel()


def _where(q: Tensor, call: "_Call") -> tuple[int, int, int, int]:
    if q.is_cpu:
        return call.on_cpu
    device = q.device
    if device.type not in _MEMORIES:
        raise ValueError(f"q: on the CPU or a CUDA GPU expected, got {device}")
    stream = torch.cuda.current_stream(device).cuda_stream
    return call.dtype_number, _MEMORIES[device.type], device.index or 0, stream


class _Call:
    """What calls of one attention are compared with at once; what differs is looked at again, to say what it is."""

    def __init__(self, number: int):
        self.number = number
        self.shape = shape = shape_of_number(number)
        self.q, self.k, self.v, self.o, self.rows = shape.q, shape.k, shape.v, shape.o, shape.rows
        self.dtype = next(of for of, name in _DTYPES.items() if name == shape.dtype)
        self.dtype_number = DTYPES.index(shape.dtype)
        self.on_cpu = (self.dtype_number, 0, 0, 0)
        self.is_o_like_q = shape.o == shape.q


_calls: dict[int, _Call] = {}


def _call(number: int) -> _Call:
    found = _calls.get(number)
    if found is None:
        found = _calls[number] = _Call(number)
    return found


# These two are on every call's way: each attribute of a tensor's that they ask for costs as much as a page of code that was
# not asked for lately, so they ask for each once.


def _run_forward(call: _Call, place: tuple[int, int], q: Tensor, k: Tensor, v: Tensor, sink_logits: Tensor | None):
    if _has_short_way and call.is_o_like_q and sink_logits is None and q.is_cpu:
        o, lse = torch.empty_like(q), q.new_empty(call.rows, dtype=torch.float32)
        if _native.torch_forward(call.number, *place, q, k, v, o, lse):
            return o, lse
    at_q, at_k, at_v = q.stride(), k.stride(), v.stride()
    if not (
        q.shape == call.q and k.shape == call.k and v.shape == call.v and q.dtype is k.dtype is v.dtype is call.dtype
        and at_q[3] == at_k[3] == at_v[3] == 1 and sink_logits is None
        and ((q.is_cpu and k.is_cpu and v.is_cpu) or q.device == k.device == v.device)
    ):  # fmt: skip
        _check_inputs(q, k, v, sink_logits, call.shape)
    o = torch.empty_like(q) if call.is_o_like_q else _new(q, call.o)
    lse = q.new_empty(call.rows) if call.dtype is torch.float32 else q.new_empty(call.rows, dtype=torch.float32)
    addresses = (q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr())
    if min(addresses) < _LOWEST or sink_logits is not None:
        if q.is_meta:
            return o, lse  # shapes are all there is
        _check_storage(q=q, k=k, v=v, sink_logits=sink_logits)
    _native.call_forward(
        call.number, place, _where(q, call), addresses, (at_q, at_k, at_v, o.stride()),
        (0 if sink_logits is None else sink_logits.data_ptr(), lse.data_ptr()),
    )  # fmt: skip
    return o, lse


def _refuse_tangents(*tensors: Tensor | None) -> None:
    """Forward-mode AD would go on without one. Asked before a call, where transforms still show theirs, and where the operators
    run."""
    if forward_ad._current_level >= 0:
        for x in tensors:
            if x is not None and (_is_compiling() or forward_ad.unpack_dual(x).tangent is not None):
                raise NotImplementedError("tessera.torch.attention has no forward-mode derivative")


def _refuse_dual_level() -> None:
    """The same where a compiler traces them: what it traces with does not say which tensors have a tangent."""
    if forward_ad._current_level >= 0:
        raise NotImplementedError("tessera.torch.attention has no forward-mode derivative: call it outside of dual_level() and jvp() "
                                  "in a function that is compiled")  # fmt: skip


def _forward(q: Tensor, k: Tensor, v: Tensor, plan: Tensor, sink_logits: Tensor | None, attention: int):
    _refuse_tangents(q, k, v, sink_logits)
    _check_plan(plan)
    return _run_forward(_call(attention), _place_of_plan(plan), q, k, v, sink_logits)


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, plan: Tensor, sink_logits: Tensor | None, attention: int):
    _refuse_dual_level()
    shape = shape_of_number(attention)
    _check_plan(plan, q)
    _check_inputs(q, k, v, sink_logits, shape)
    return _new(q, shape.o), q.new_empty(shape.rows, dtype=torch.float32)


def _run_backward(call: _Call, place: tuple[int, int], dout: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
                  sink_logits: Tensor | None):  # fmt: skip
    """dq, dk, dv, and the gradient of the sink logits, or None."""
    if _has_short_way and sink_logits is None and q.is_cpu:
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        if _native.torch_backward(call.number, *place, dout, q, k, v, o, lse, dq, dk, dv):
            return dq, dk, dv, None
    at_dout = dout.stride()
    if at_dout[-1] != 1:
        dout = dout.contiguous()  # a gradient that was spread out of one number, as that of sum()
        at_dout = dout.stride()
    if dout.shape != call.o or dout.dtype is not call.dtype or not ((dout.is_cpu and q.is_cpu) or dout.device == q.device):
        _check("dout", dout, call.o, q, call.shape.dtype)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    dsinks = None if sink_logits is None else torch.empty_like(sink_logits)
    addresses = (q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), dout.data_ptr(), dq.data_ptr(), dk.data_ptr(), dv.data_ptr())
    at_lse = lse.data_ptr()
    if at_lse < _LOWEST or min(addresses) < _LOWEST or sink_logits is not None:
        if q.is_meta:
            return dq, dk, dv, dsinks
        _check_storage(q=q, k=k, v=v, o=o, lse=lse, dout=dout, sink_logits=sink_logits)
    _native.call_backward(
        call.number, place, _where(q, call), addresses,
        (q.stride(), k.stride(), v.stride(), o.stride(), at_dout, dq.stride(), dk.stride(), dv.stride()),
        (0, at_lse, 0) if sink_logits is None else (sink_logits.data_ptr(), at_lse, dsinks.data_ptr()),
    )  # fmt: skip
    return dq, dk, dv, dsinks


def _no_sinks(q: Tensor) -> Tensor:
    """What an operator gives where there is no gradient of sink logits: it cannot give None."""
    return torch.empty(0, dtype=torch.float32, device=q.device)


def _backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, plan: Tensor,
              sink_logits: Tensor | None, attention: int):  # fmt: skip
    _refuse_tangents(dout, q, k, v, o, lse, sink_logits)
    _check_plan(plan)
    dq, dk, dv, dsinks = _run_backward(_call(attention), _place_of_plan(plan), dout, q, k, v, o, lse, sink_logits)
    return dq, dk, dv, _no_sinks(q) if dsinks is None else dsinks


def _backward_fake(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, plan: Tensor,
                   sink_logits: Tensor | None, attention: int):  # fmt: skip
    _refuse_dual_level()
    dsinks = _no_sinks(q) if sink_logits is None else torch.empty_like(sink_logits)
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), dsinks


def _setup(ctx, inputs, output):
    q, k, v, plan, sink_logits, attention = inputs
    o, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, o, lse, plan, sink_logits)
    ctx.attention = attention


def _gradient(ctx, dout, _):
    if dout is None:
        return None, None, None, None, None, None
    _check_layout("dout", dout)
    q, k, v, o, lse, plan, sink_logits = ctx.saved_tensors
    dq, dk, dv, dsinks = torch.ops.tessera.backward(dout, q, k, v, o, lse, plan, sink_logits, ctx.attention)
    return dq, dk, dv, None, None if sink_logits is None else dsinks, None


def _no_double_backward(ctx, *gradients):
    raise NotImplementedError("tessera.torch.attention has no second derivative")


def _no_vmap(info, in_dims, *arguments):
    raise NotImplementedError("tessera.torch.attention has no vmap; its tensors have a batch axis of their own")


for _device in ("CPU", "CUDA"):
    _library.impl("forward", _forward, _device)
    _library.impl("backward", _backward, _device)
torch.library.register_fake("tessera::forward", _forward_fake, lib=_library)
torch.library.register_fake("tessera::backward", _backward_fake, lib=_library)
torch.library.register_autograd("tessera::forward", _gradient, setup_context=_setup, lib=_library)
torch.library.register_autograd("tessera::backward", _no_double_backward, lib=_library)
torch.library.register_vmap("tessera::forward", _no_vmap, lib=_library)
torch.library.register_vmap("tessera::backward", _no_vmap, lib=_library)
