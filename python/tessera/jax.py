"""Attention on JAX's arrays: under `jit`, with a gradient, over a batch by `vmap`; on the CPU and on a GPU, and lowered for a
TPU.

    plan = tessera.jax.plan(attn, doc_ids=ids)            # once for each batch
    o = jax.jit(tessera.jax.attention)(q, k, v, plan)     # one trace for every plan

The plan is an operand of the program, so new documents trace and compile nothing. With an attention that was prepared for
a GPU (`prepare(contract, target="h200", memory="gpu")`) the plan lies in its memory, as the kernels read it there; with one
for a TPU (`prepare(contract, target="v6e")`) the call is that target's own program, with our kernels in it. A plan for
another platform than the program's is refused when JAX lowers the call.
"""

from __future__ import annotations

import functools
import pathlib
import re
import threading
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive

from . import _jax_tpu, _native
from ._contract import Shape, shape_error
from ._engine import Attention
from ._plan import Plan

__all__ = ["JaxPlan", "attention", "plan", "splash_mask_info"]

_DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class JaxPlan:
    """A plan as a pytree: its bytes are data, of one length for every plan of an attention (`Plan.operand`, for a GPU its
    image); the number and sizes of its attention are static, and the platform whose handler takes it. For a TPU the data
    are the tables of its programs, and those are static."""

    operand: Any
    number: int = field(metadata=dict(static=True))
    shape: Shape = field(metadata=dict(static=True))
    programs: tuple[_jax_tpu.Program, ...] = field(default=(), metadata=dict(static=True))
    platform: str = field(default="cpu", metadata=dict(static=True))

    def __copy__(self) -> "JaxPlan":
        return self

    def __deepcopy__(self, memo: Any) -> "JaxPlan":
        return self

    def __reduce__(self):
        raise TypeError("a JaxPlan is good in the process that made it; pickle the tessera.Plan, and give that to attention()")


def plan(attention: Attention, **batch: Any) -> JaxPlan:
    """`Attention.plan` with arrays of JAX or NumPy as batch."""
    given = {name: np.asarray(value) if isinstance(value, jax.Array) else value for name, value in batch.items()}
    if attention._target != "cpu" and attention.lane in _jax_tpu.LANES:
        _jax_tpu.register()
        q, k = given.pop("q", None), given.pop("k", None)
        programs, tables = _jax_tpu.lower(attention, given, q, k)
        return JaxPlan({name: jnp.asarray(table) for name, table in tables.items()}, 0, attention.contract.shape, programs)
    _register()
    return _of(attention.plan(**given))


def _of(made: Plan) -> JaxPlan:
    found = made._of_framework.get("jax")
    if found is None:
        registered = made.attention._register()
        if made.attention._is_on_gpu:
            operand = _on_gpu(registered.image(made), made.attention._options["ordinal"])
            found = JaxPlan(operand, registered.number, registered.shape, platform="cuda")
        else:
            operand = jax.device_put(made._memory(), jax.local_devices(backend="cpu")[0])
            found = JaxPlan(operand, registered.number, registered.shape)
        made._of_framework["jax"] = found
    return found


def _on_gpu(image: np.ndarray, ordinal: int) -> Any:
    """In that GPU's memory; where JAX has none, which can still lower programs for one, as it is."""
    try:
        devices = jax.local_devices(backend="cuda")
    except RuntimeError:
        return image
    for device in devices:
        if device.local_hardware_id == ordinal:
            return jax.device_put(image, device)
    raise ValueError(f"the attention is for GPU {ordinal}, which JAX does not have here")


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    plan: JaxPlan | Plan,
    *,
    sink_logits: jax.Array | None = None,
    layout: str = "bhtd",
    return_lse: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Attention of q over k and v under a plan, with gradients of q, k, v and the sink logits.

    Arrays are [batch, heads, tokens, dim], or [heads, tokens, dim] where the contract's batch is 1; `layout="bthd"`
    swaps heads and tokens, which XLA may do by a copy. The log-sum-exp has no gradient. An error of the engine's comes
    as JAX's own, with the code in its text.

    >>> import jax, jax.numpy as jnp, tessera, tessera.jax
    >>> contract = tessera.Contract(q_len=128, num_q_heads=2, dim_qk=16, mask="causal and documents")
    >>> attn = tessera.Engine().prepare(contract)
    >>> q = jax.random.normal(jax.random.key(0), (1, 2, 128, 16))
    >>> plan = tessera.jax.plan(attn, doc_lengths=[28, 100])
    >>> loss = jax.jit(lambda q, plan: tessera.jax.attention(q, q, q, plan).sum())
    >>> jax.grad(loss)(q, plan).shape
    (1, 2, 128, 16)
    """
    if isinstance(plan, Plan):
        plan = _of(plan)
    if not isinstance(plan, JaxPlan):
        raise TypeError(f"plan: a JaxPlan or Plan expected, got {type(plan).__name__}")
    if plan.programs:
        _jax_tpu.register()
    else:
        _register()
    if layout not in ("bhtd", "bthd"):
        raise ValueError(f"layout: 'bhtd' or 'bthd' expected, got {layout!r}")
    shape = plan.shape
    arrays = [_array(name, x) for name, x in (("q", q), ("k", k), ("v", v))]
    is_row = arrays[0].ndim == 3 and shape.batch == 1
    if is_row:
        arrays = [x[None] if x.ndim == 3 else x for x in arrays]
    if layout == "bthd":
        arrays = [x.swapaxes(1, 2) if x.ndim == 4 else x for x in arrays]
    for name, x, want in zip("qkv", arrays, (shape.q, shape.k, shape.v)):
        if x.shape != want:
            raise ValueError(shape_error(name, want, x.shape))
        if _DTYPES.get(x.dtype.name) != shape.dtype:
            raise TypeError(f"{name}: {shape.dtype} expected, the contract's dtype, got {x.dtype}")
    if (sink_logits is not None) != shape.sink_logits:
        raise ValueError(f"sink_logits: {'needed' if shape.sink_logits else 'not expected'} by this contract")
    if sink_logits is not None:
        sink_logits = _array("sink_logits", sink_logits)
        if sink_logits.shape != (shape.num_q_heads,) or sink_logits.dtype != jnp.float32:
            raise TypeError(f"sink_logits: {shape.num_q_heads} numbers of float32 expected")
    if plan.programs:
        o, lse = _jax_tpu.attention(plan.programs, shape, *arrays, plan.operand, sink_logits)
    else:
        o, lse = _attention((plan.number, shape, plan.platform), *arrays, plan.operand, sink_logits)
    if layout == "bthd":
        o = o.swapaxes(1, 2)
    if is_row:
        o, lse = o[0], lse[0]
    return (o, jax.lax.stop_gradient(lse)) if return_lse else o


def _array(name: str, x: Any) -> jax.Array:
    if not isinstance(x, (jax.Array, np.ndarray)):
        raise TypeError(f"{name}: an array expected, got {type(x).__name__}")
    if x.dtype.name not in _DTYPES:  # before JAX makes a float32 of a float64
        raise TypeError(f"{name}: float32, bfloat16 or float16 expected, got {x.dtype}")
    return jnp.asarray(x)


# --- The calls, and their gradient ----------------------------------------------------------------------------------


def _like(x: jax.Array, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, x.dtype)


def _call(name: str, results: Any, number: int, *operands: Any) -> Any:
    given = [x for x in operands if x is not None]
    return jax.ffi.ffi_call(name, results, vmap_method="sequential")(*given, attention=np.int64(number))


# The operand of a plan, as it is. A program that is lowered for another platform than the plan's would hand its call what
# nobody there can read: this says so while it is lowered.
_plan_for = Primitive("tessera_plan_for")
_plan_for.def_impl(lambda operand, *, platform: operand)
_plan_for.def_abstract_eval(lambda operand, *, platform: operand)


def _lower_plan(here: str | None) -> Any:
    def rule(context: Any, operand: Any, *, platform: str) -> Any:
        if platform == here:
            return [operand]
        if platform == "cuda":
            raise NotImplementedError("this plan is for a GPU, and this program is for another platform")
        raise NotImplementedError("this plan is for the CPU: prepare the attention for where the program runs, as in "
                                  'prepare(contract, target="h200", memory="gpu") or prepare(contract, target="v6e")')  # fmt: skip

    return rule


def _register_plan_for() -> None:
    from jax.interpreters import batching, mlir

    mlir.register_lowering(_plan_for, _lower_plan(None))
    for platform in ("cpu", "cuda"):
        mlir.register_lowering(_plan_for, _lower_plan(platform), platform=platform)
    batching.primitive_batchers[_plan_for] = lambda operands, axes, **more: (_plan_for.bind(*operands, **more), axes[0])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(key: tuple[int, Shape, str], q: Any, k: Any, v: Any, operand: Any, sinks: Any) -> Any:
    number, shape, platform = key
    operand = _plan_for.bind(operand, platform=platform)
    results = (_like(q, shape.o), jax.ShapeDtypeStruct(shape.rows, jnp.float32))
    return tuple(_call("tessera_forward", results, number, q, k, v, operand, sinks))


def _forward(key: tuple[int, Shape, str], q: Any, k: Any, v: Any, operand: Any, sinks: Any) -> Any:
    o, lse = _attention(key, q, k, v, operand, sinks)
    return (o, lse), (q, k, v, o, lse, operand, sinks)


def _backward(key: tuple[int, Shape, str], kept: Any, cotangents: Any) -> Any:
    number, shape, _ = key
    q, k, v, o, lse, operand, sinks = kept
    results = [_like(q, shape.q), _like(k, shape.k), _like(v, shape.v)]
    if sinks is not None:
        results.append(_like(sinks, sinks.shape))
    made = _call("tessera_backward", tuple(results), number, cotangents[0], q, k, v, o, lse, operand, sinks)
    no_gradient = np.zeros(operand.shape, jax.dtypes.float0)
    return (*made[:3], no_gradient, None if sinks is None else made[3])


_attention.defvjp(_forward, _backward)

_lock = threading.Lock()
_is_registered = False


def _runtime_version() -> tuple[int, int]:
    """What jaxlib's own header says; the library itself says nothing before it is given a handler."""
    try:
        header = pathlib.Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
        text = header.read_text(encoding="utf-8")
    except (AttributeError, OSError) as error:
        raise ImportError(f"this JAX has no typed FFI that handlers could be given to: {error}; jaxlib 0.5 is the oldest") from error
    found = [re.search(rf"define XLA_FFI_API_{word} (\d+)", text) for word in ("MAJOR", "MINOR")]
    if None in found:
        raise ImportError(f"{header} does not say which version of the FFI jaxlib has")
    return int(found[0][1]), int(found[1][1])


def _register() -> None:
    """On first use, and only where the runtime takes handlers of our version: one that it does not take would cost the
    process JAX's whole CPU backend."""
    global _is_registered
    if _is_registered:
        return
    with _lock:
        if _is_registered:
            return
        runtime, ours = _runtime_version(), _native.xla_ffi_version
        if runtime[0] != ours[0] or runtime < ours:
            raise ImportError(f"jaxlib's FFI has version {runtime}, our handlers have {ours}")
        for platform, handlers in _native.xla_ffi_handlers().items():
            for name, handler in handlers.items():
                jax.ffi.register_ffi_target(name, handler, platform=platform)
        _register_plan_for()
        _is_registered = True


# --- Arrays for Splash ----------------------------------------------------------------------------------------------


def splash_mask_info(
    plan: Plan,
    *,
    block: tuple[int, int] = (512, 512),
    direction: str = "forward",
    segments: str = "baked",
    fixed_shapes: bool = False,
    row: int | None = None,
    library: str = "splash",
    dynamic_grid: bool = False,
) -> Any:
    """The `MaskInfo` of JAX's Splash, or of Tokamax's with `library="tokamax"`, for a plan's contract and batch, made without
    the mask (docs/exports.md).

    `direction` is "forward" or "dkv"; `segments` says where documents go: "runtime" leaves them to segment ids, "baked"
    into stored tiles, "skip" skips the tiles between them and leaves the rest to segment ids. `dynamic_grid` gives Tokamax
    lists of active tiles.

    >>> import tessera, tessera.jax
    >>> c = tessera.Contract(q_len=1024, dim_qk=128, mask="causal")
    >>> info = tessera.jax.splash_mask_info(tessera.Engine().prepare(c).plan(), block=(256, 256))
    >>> info.block_mask.shape
    (1, 4, 4)
    """
    if library == "splash":
        if jax.__version_info__ < (0, 6):
            raise ImportError(f"arrays as the Splash of JAX 0.6 and later has them; this JAX is {jax.__version__}")
        from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask_info as info
    elif library == "tokamax":
        from tokamax._src.ops.experimental.tpu.splash_attention import splash_attention_mask_info as info  # its only place
    else:
        raise ValueError(f"library: 'splash' or 'tokamax' expected, got {library!r}")
    choices = ("runtime", "baked", "skip")
    if segments not in choices:
        raise ValueError(f"segments: one of {', '.join(choices)} expected, got {segments!r}")
    if direction not in ("forward", "dkv"):
        raise ValueError(f"direction: 'forward' or 'dkv' expected, got {direction!r}")
    if plan._batch is None:
        raise ValueError("a plan that was loaded does not know its batch")
    options = {
        "tile_q": block[0], "tile_kv": block[1], "direction": 2 if direction == "dkv" else 0,
        "segments": choices.index(segments), "fixed_shapes": int(fixed_shapes), "dynamic_grid": int(dynamic_grid),
    }  # fmt: skip
    if row is not None:
        options |= {"set_row": 1, "row": row}
    made = _native.new_export(plan.attention.contract._native, plan._batch, library, options).arrays()
    fields = info.MaskInfo._fields
    return info.MaskInfo(**{name: None if made.get(name) is None else made[name].copy() for name in fields})
