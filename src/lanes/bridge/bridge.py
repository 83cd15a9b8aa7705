"""JAX's half of the bridge (docs/bridge.md): the engine runs this text in an interpreter and calls `answer` with one JSON
request at a time. Tensors come as addresses of the engine's memory and are used where they lie wherever JAX can read
them there; results go into the engine's memory by one copy each. Nothing of the engine is imported here."""

import ctypes
import json
import sys
import threading
import time
import traceback

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

HIGHEST = jax.lax.Precision.HIGHEST
# From here on a log-sum-exp leans down by what its rounding can have moved it, as on every lane (src/lanes/weights.h).
LEAN_FROM, LEAN = 1024.0, 2.0**-23
TYPES = {"f32": np.dtype(np.float32), "bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}

bounds = {}  # by number: what is bound to a plan
programs = {}  # by what they depend on: compiled programs
lock = threading.Lock()


# ---- attention, on one group of query heads that share a key head; f32 throughout


def logits(q, k, score, has_softcap):
    """Scale, then softcap. q is [group, queries, dim], k is [keys, dim]."""
    s = jnp.einsum("gqd,kd->gqk", q, k, precision=HIGHEST) * score[0]
    return jnp.tanh(s / score[1]) * score[1] if has_softcap else s


def clear(x, keep):
    """Rows that nobody may see are never read: they may hold anything."""
    return jnp.where(keep[..., None], x, 0).astype(jnp.float32)


def forward_group(one, masks, score, has_softcap):
    mask = masks[one["ids"]]
    live, seen = mask.any(-1), mask.any((0, 1))
    s = logits(clear(one["q"], live), clear(one["k"], seen), score, has_softcap)
    s = jnp.where(mask, s, -jnp.inf)
    top = s.max(-1)
    shift, rest = top, 0.0
    if "sink" in one:
        shift = jnp.maximum(top, one["sink"][:, None])
        rest = jnp.exp(one["sink"][:, None] - shift)
    shift = jnp.where(live, shift, 0)
    p = jnp.where(mask, jnp.exp(s - shift[..., None]), 0)
    total = jnp.where(live, p.sum(-1) + rest, 1)
    o = jnp.einsum("gqk,kd->gqd", p, clear(one["v"], seen), precision=HIGHEST) / total[..., None]
    return {"o": o, "lse": jnp.where(live, shift + jnp.log(total), -jnp.inf), "row_max": top}


def backward_group(one, masks, score, has_softcap):
    live = one["lse"] != -jnp.inf
    mask = masks[one["ids"]] & live[..., None]
    seen = mask.any((0, 1))
    lse = jnp.where(live, one["lse"], 0)
    is_far = (jnp.abs(lse) >= LEAN_FROM) & jnp.isfinite(lse)
    lse = jnp.where(is_far, lse - LEAN * jnp.abs(lse), lse)
    dout = clear(one["dout"], live)
    delta = one["delta"] if "delta" in one else (clear(one["o"], live) * dout).sum(-1)
    delta = jnp.where(live, delta, 0)
    # JAX's own gradient of the logits; that of the softmax follows from a log-sum-exp which may be a larger row's.
    s, pull = jax.vjp(lambda q, k: logits(q, k, score, has_softcap), clear(one["q"], live), clear(one["k"], seen))
    p = jnp.where(mask, jnp.exp(jnp.minimum(s - lse[..., None], 0)), 0)
    dp = jnp.einsum("gqd,kd->gqk", dout, clear(one["v"], seen), precision=HIGHEST)
    dq, dk = pull(jnp.where(mask, p * (dp - delta[..., None]), 0))
    out = {"dq": dq, "dk": dk, "dv": jnp.einsum("gqk,gqd->kd", p, dout, precision=HIGHEST)}
    if "sink" in one:
        weight = jnp.exp(jnp.minimum(one["sink"][:, None] - lse, 0))
        out["dsink_logits"] = -jnp.where(live, weight * delta, 0).sum(-1)
    return out


def attention(group, shape, has_softcap):
    """`group` over every batch row and key head, one after the other, so that the scores of one are there at a time."""
    kv_heads, heads = shape["num_kv_heads"], shape["num_q_heads"]
    rows = shape["batch"] * kv_heads

    def of_all(tensors, masks, ids, score):
        each = {}
        for name, x in tensors.items():
            if name == "sink_logits":
                each["sink"] = jnp.tile(x.reshape(kv_heads, -1), (shape["batch"], 1))
            elif name in ("k", "v"):
                each[name] = x.reshape(rows, *x.shape[2:])
            else:
                each[name] = x.reshape(rows, heads // kv_heads, *x.shape[2:])
        each["ids"] = ids.reshape(rows, heads // kv_heads)
        out = jax.lax.map(lambda one: group(one, masks, score, has_softcap), each)
        for name, x in out.items():
            if name == "dsink_logits":
                out[name] = x.reshape(shape["batch"], heads).sum(0)
            else:
                of = kv_heads if name in ("dk", "dv") else heads
                out[name] = x.reshape(shape["batch"], of, *x.shape[1 if name in ("dk", "dv") else 2 :])
        return out

    return of_all


# ---- programs and what is bound


class Bound:
    def __init__(self, ask):
        self.shape, self.device = ask["shape"], ask["device"]
        self.has_softcap = ask["softcap"] > 0
        place = jax.sharding.SingleDeviceSharding(self.device)
        count = ask["num_masks"] * self.shape["q_len"] * self.shape["kv_len"]
        flat = np.frombuffer((ctypes.c_uint8 * count).from_address(ask["masks"]), np.uint8)
        masks = flat.reshape(ask["num_masks"], self.shape["q_len"], self.shape["kv_len"]) != 0  # a copy: bools
        self.masks = jax.device_put(masks, place)
        self.ids = jax.device_put(np.asarray(ask["mask_of"], np.int32), place)
        self.score = jax.device_put(np.asarray([ask["scale"], ask["softcap"]], np.float32), place)
        self.place = place

    def program(self, direction, tensors):
        """The compiled program for these tensors, where it came from and how long that took."""
        form = {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self.place) for name, x in tensors.items()}
        facts = [(name, x.shape, str(x.dtype)) for name, x in sorted(form.items())]
        key = str((direction, facts, self.masks.shape, sorted(self.shape.items()), self.has_softcap, str(self.device)))
        with lock:
            if key in programs:
                return programs[key], key, "memory", 0
        start = time.perf_counter_ns()
        group = forward_group if direction == "forward" else backward_group
        whole = jax.jit(attention(group, self.shape, self.has_softcap))
        made = whole.lower(form, self.masks, self.ids, self.score).compile()
        with lock:
            if len(programs) >= 256:
                programs.pop(next(iter(programs)))
            programs[key] = made
        return made, key, "compiled", time.perf_counter_ns() - start


def form_of(shape, direction, has_sinks):
    """The tensors of a call as the engine will bring them; a `delta` in place of `o` is a program of its own."""
    dtype = TYPES[shape["dtype"]]
    b, hq, hk = shape["batch"], shape["num_q_heads"], shape["num_kv_heads"]
    q = jax.ShapeDtypeStruct((b, hq, shape["q_len"], shape["dim_qk"]), dtype)
    k = jax.ShapeDtypeStruct((b, hk, shape["kv_len"], shape["dim_qk"]), dtype)
    v = jax.ShapeDtypeStruct((b, hk, shape["kv_len"], shape["dim_v"]), dtype)
    form = {"q": q, "k": k, "v": v}
    if has_sinks:
        form["sink_logits"] = jax.ShapeDtypeStruct((hq,), np.float32)
    if direction == "backward":
        form["dout"] = form["o"] = jax.ShapeDtypeStruct((b, hq, shape["q_len"], shape["dim_v"]), dtype)
        form["lse"] = jax.ShapeDtypeStruct((b, hq, shape["q_len"]), np.float32)
    return form


# ---- memory


def view(ref):
    """The engine's memory as an array, without a copy. Strides count elements and are not negative."""
    dtype = TYPES[ref["type"].lower()]
    last = sum((n - 1) * stride for n, stride in zip(ref["shape"], ref["strides"]))
    memory = (ctypes.c_uint8 * ((last + 1) * dtype.itemsize)).from_address(ref["data"])
    return np.ndarray(ref["shape"], dtype, memory, strides=[s * dtype.itemsize for s in ref["strides"]])


def take(refs, bound, crossing):
    tensors = {}
    for name, ref in refs.items():
        array = view(ref)
        tensors[name] = jax.device_put(array, bound.place)
        is_shared = bound.device.platform == "cpu" and tensors[name].unsafe_buffer_pointer() == ref["data"]
        crossing["bytes_in"] += array.nbytes
        crossing["copied_in"] += 0 if is_shared else array.nbytes
        crossing["copies_in"] += not is_shared
    return tensors


# ---- requests


def start(_):
    names = ("python", sys.version.split()[0]), ("numpy", np.__version__), ("jax", jax.__version__)
    return dict(names)


def find(ask):
    try:
        jax.devices(ask["platform"])
    except RuntimeError as problem:
        return {"no_device": str(problem).split("\n")[0]}
    return {}


def bind(ask):
    device = jax.devices(ask["platform"])[0]
    bound = Bound(ask | {"device": device})
    made = []
    for direction in ask["passes"]:
        _, key, source, ns = bound.program(direction, form_of(bound.shape, direction, ask["sinks"]))
        made.append({"pass": direction, "key": key, "source": source, "ns": ns})
    with lock:
        number = max(bounds, default=0) + 1
        bounds[number] = bound
    return {"number": number, "programs": made, "name": str(device.device_kind), "ordinal": device.id}


def run(ask):
    bound = bounds[ask["number"]]
    crossing = {"bytes_in": 0, "copied_in": 0, "copies_in": 0, "bytes_out": 0, "copies_out": 0}
    tensors = take(ask["in"], bound, crossing)
    if ask["pass"] == "backward" and "o" in tensors:  # of any float type; the program takes the contract's
        tensors["o"] = tensors["o"].astype(TYPES[bound.shape["dtype"]])
    program = bound.program(ask["pass"], tensors)[0]
    results = program(tensors, bound.masks, bound.ids, bound.score)
    for name, ref in ask["out"].items():
        result = np.asarray(results[name])
        np.copyto(view(ref), result, casting="unsafe")
        crossing["bytes_out"] += result.nbytes
        crossing["copies_out"] += 1
    jax.block_until_ready(results)  # those that nobody asked for too: they read the engine's memory
    return crossing


def splash(_):
    """JAX's Splash kernel, interpreted on the CPU, beside this file's attention: causal, two heads, with gradients."""
    from jax.experimental.pallas.ops.tpu import splash_attention as library

    tokens, dim = 128, 128
    shape = {"batch": 1, "num_q_heads": 2, "num_kv_heads": 2}
    causal = library.MultiHeadMask([library.CausalMask((tokens, tokens))] * 2)
    place = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    with jax.default_device(jax.devices("cpu")[0]):
        kernel = library.make_splash_mha_single_device(causal, interpret=True)
        draw = np.random.default_rng(0)
        q, k, v, dout = (jax.device_put(draw.standard_normal((2, tokens, dim), np.float32), place) for _ in range(4))
        scale = np.float32(dim**-0.5)
        start = time.perf_counter_ns()
        o, pull = jax.vjp(lambda q, k, v: kernel(q * scale, k, v), q, k, v)
        theirs = {"o": o} | dict(zip(("dq", "dk", "dv"), pull(dout)))
        jax.block_until_ready(theirs)
        ns = time.perf_counter_ns() - start
        mask, ids = np.tril(np.ones((1, tokens, tokens), bool)), np.zeros(2, np.int32)
        score = np.asarray([scale, 0], np.float32)
        tensors = {"q": q[None], "k": k[None], "v": v[None]}
        ours = attention(forward_group, shape, False)(tensors, jnp.asarray(mask), ids, score)
        tensors |= {"o": ours["o"], "lse": ours["lse"], "dout": dout[None]}
        ours |= attention(backward_group, shape, False)(tensors, jnp.asarray(mask), ids, score)
    both = [(np.asarray(theirs[name]), np.asarray(ours[name][0])) for name in ("o", "dq", "dk", "dv")]
    has_nan = any(np.isnan(a).any() or np.isnan(b).any() for a, b in both)
    return {"difference": float(max(np.abs(a - b).max() for a, b in both)), "has_nan": bool(has_nan), "ns": ns}


def release(ask):
    with lock:
        bounds.pop(ask["number"], None)
    return {}


REQUESTS = {"start": start, "find": find, "bind": bind, "run": run, "splash": splash, "release": release}


def answer(request):
    """One JSON document for another; what goes wrong is an answer too."""
    try:
        ask = json.loads(request)
        return json.dumps(REQUESTS[ask["request"]](ask))
    except BaseException as problem:  # whatever it is, it must not leave this function
        text = "".join(traceback.format_exception_only(type(problem), problem)).strip()
        return json.dumps({"error": text, "traceback": traceback.format_exc()})
