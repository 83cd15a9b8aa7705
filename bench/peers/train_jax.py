"""The model of src/model in plain JAX, trained as `bench_train` trains ours: same parameters, rows, schedule and steps.

    python3 train_jax.py PROBLEM.json

The problem names a file of parameters and one of rows (safetensors). Forward and backward by jax.value_and_grad, AdamW
beside them, all in one jitted function whose state is donated: what an engineer writes first and XLA optimises as a
whole. Attention is dense with a mask. Prints one JSON document: the loss of each step and the seconds of the timed ones.
"""

import functools
import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

TYPES = {"F32": np.float32, "I32": np.int32, "I8": np.int8, "I64": np.int64}


def read_safetensors(path):
    """Every tensor of a file as an array."""
    with open(path, "rb") as file:
        data = file.read()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    arrays = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        bytes_of = data[8 + size + begin : 8 + size + end]
        arrays[name] = np.frombuffer(bytes_of, TYPES[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def positions_of(doc_ids):
    """The place of each token in its document."""
    positions = np.zeros_like(doc_ids)
    for row in range(doc_ids.shape[0]):
        for i in range(1, doc_ids.shape[1]):
            same = doc_ids[row, i] == doc_ids[row, i - 1]
            positions[row, i] = positions[row, i - 1] + 1 if same else 0
    return positions


def norm(x, weight, eps):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rotate(x, positions, base):
    """x [B, T, H, D]: the two halves of a head's dims turn together."""
    half = x.shape[-1] // 2
    turns = positions[..., None].astype(jnp.float32) * base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    cos, sin = jnp.cos(turns)[:, :, None], jnp.sin(turns)[:, :, None]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def attention(q, k, v, mask):
    group = q.shape[2] // k.shape[2]
    k, v = jnp.repeat(k, group, axis=2), jnp.repeat(v, group, axis=2)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1]).astype(np.float32)
    weights = jax.nn.softmax(jnp.where(mask[:, None], scores, -jnp.inf), axis=-1)
    # A row of padding sees nothing.
    weights = jnp.where(mask.any(-1)[:, None, :, None], weights, 0.0)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def loss_sum(params, batch, spec):
    x = params["wte"][batch["input_ids"]]
    rows, tokens = batch["input_ids"].shape
    at = jnp.arange(tokens)
    seen = (batch["doc_ids"][:, :, None] == batch["doc_ids"][:, None, :]) & (at[:, None] >= at[None, :])
    q_heads, kv_heads, dim = spec["num_q_heads"], spec["num_kv_heads"], spec["head_dim"]
    for layer in range(spec["layers"]):
        p = {name: params[f"layers.{layer}.{name}"] for name in ("attention_norm", "qkv", "proj", "mlp_norm", "fc1", "fc2")}
        window = spec["windows"][layer % len(spec["windows"])]
        mask = seen & (at[:, None] - at[None, :] <= window) if window >= 0 else seen
        qkv = (norm(x, p["attention_norm"], spec["norm_eps"]) @ p["qkv"]).reshape(rows, tokens, -1, dim)
        q = rotate(qkv[:, :, :q_heads], batch["positions"], spec["rope_base"])
        k = rotate(qkv[:, :, q_heads : q_heads + kv_heads], batch["positions"], spec["rope_base"])
        attended = attention(q, k, qkv[:, :, q_heads + kv_heads :], mask)
        x = x + attended.reshape(rows, tokens, -1) @ p["proj"]
        gate, up = jnp.split(norm(x, p["mlp_norm"], spec["norm_eps"]) @ p["fc1"], 2, axis=-1)
        x = x + (jax.nn.silu(gate) * up) @ p["fc2"]
    logits = (norm(x, params["final_norm"], spec["norm_eps"]) @ params["lm_head"])[..., : spec["vocab"]]
    nats = jax.nn.logsumexp(logits, axis=-1) - jnp.take_along_axis(logits, batch["target_ids"][..., None], -1)[..., 0]
    return jnp.sum(jnp.where(batch["loss_mask"] > 0, nats, 0.0))


def make_step(spec, decayed):
    @functools.partial(jax.jit, donate_argnums=(0,))
    def step(state, batch, lr, number):
        params, first, second = state
        tokens = jnp.sum(batch["loss_mask"].astype(jnp.float32))
        value, grads = jax.value_and_grad(lambda p: loss_sum(p, batch, spec) / tokens)(params)
        total = jnp.sqrt(sum(jnp.sum(g * g) for g in grads.values()))
        shrink = jnp.where(total > spec["clip_norm"], spec["clip_norm"] / total, 1.0)
        beta1, beta2 = spec["beta1"], spec["beta2"]
        step_size, root = lr / (1 - beta1**number), jnp.sqrt(1 - beta2**number)
        out = ({}, {}, {})
        for name, p in params.items():
            g = grads[name] * shrink
            m = beta1 * first[name] + (1 - beta1) * g
            v = beta2 * second[name] + (1 - beta2) * g * g
            kept = p * (1 - lr * spec["weight_decay"]) if name in decayed else p
            out[0][name] = kept - step_size * m / (jnp.sqrt(v) / root + spec["eps"])
            out[1][name], out[2][name] = m, v
        return out, value

    return step


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        problem = json.load(file)
    spec = problem["spec"]
    rows = read_safetensors(problem["rows"])
    rows["positions"] = positions_of(rows["doc_ids"])
    params = {name: jnp.asarray(value) for name, value in read_safetensors(problem["parameters"]).items()}
    zeros = lambda: {name: jnp.zeros_like(value) for name, value in params.items()}
    state = (params, zeros(), zeros())
    step = make_step(spec, set(problem["decayed"]))
    names = ("input_ids", "target_ids", "loss_mask", "doc_ids", "positions")
    losses, seconds, cpu_seconds = [], [], []
    for number in range(1, problem["steps"] + 1):
        first = (number - 1) * spec["rows"] % (len(rows["input_ids"]) - spec["rows"] + 1)
        batch = {name: rows[name][first : first + spec["rows"]] for name in names}
        begin, cpu_begin = time.perf_counter(), time.process_time()
        state, value = step(state, batch, np.float32(problem["learning_rate"]), np.float32(number))
        losses.append(float(value))
        seconds.append(time.perf_counter() - begin)
        cpu_seconds.append(time.process_time() - cpu_begin)
    jax.block_until_ready(state)
    print(json.dumps({"losses": losses, "seconds": seconds, "cpu_seconds": cpu_seconds, "jax": jax.__version__}))


if __name__ == "__main__":
    main()
