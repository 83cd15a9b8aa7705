#!/usr/bin/env python3
"""A model's loss and every gradient by an independent definition in JAX, beside those of the library.

A folder has `spec.toml` (the definition), `case.safetensors` (parameters as `p.NAME`, gradients as `g.NAME`,
rows by their names, `loss`), and `tolerance.json`; JAX computes in float64 with dense masks and automatic differentiation;
each gradient must be within the tolerance of its own norm, or off by no more than three times what JAX is off when it
computes in float32, or for bf16 rounds the operands of products: some definitions make much of every rounding. Exits 77
without JAX.
"""

import json
import math
import pathlib
import sys
import tomllib

import numpy as np

SKIPPED = 77
TYPES = {"F32": np.float32, "I32": np.int32, "I8": np.int8, "I64": np.int64}


def read_safetensors(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    tensors = {}
    for name, info in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        tensors[name] = np.frombuffer(data[8 + size + begin:8 + size + end], TYPES[info["dtype"]]).reshape(info["shape"])
    return tensors


def positions_of(documents):
    out = np.zeros_like(documents)
    for r, row in enumerate(documents):
        for t in range(1, len(row)):
            out[r, t] = out[r, t - 1] + 1 if row[t] == row[t - 1] else 0
    return out


def dense_mask(expression, documents):
    """[B, T, T] of the masks that the tests use."""
    tokens = documents.shape[1]
    q, k = np.arange(tokens)[:, None], np.arange(tokens)[None, :]
    allowed = np.broadcast_to(k <= q, (len(documents), tokens, tokens)).copy()
    for term in expression.split(" and "):
        if term == "documents":
            allowed &= (documents[:, :, None] == documents[:, None, :]) & (documents[:, :, None] >= 0)
        elif term.startswith("window("):
            allowed &= q - k <= int(term[len("window("):].split(",")[0])
        else:
            assert term == "causal", term
    return allowed


def norm(jnp, x, weight, eps):
    return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * weight


def rotate(jnp, x, positions, base):
    half = x.shape[-1] // 2
    turn = positions[..., None, None] * base ** (-jnp.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * jnp.cos(turn) - b * jnp.sin(turn), b * jnp.cos(turn) + a * jnp.sin(turn)], -1)


def attend(jnp, spec, q, k, v, mask, sinks, lower):
    group = spec["num_q_heads"] // spec["num_kv_heads"]
    k, v = jnp.repeat(k, group, 2), jnp.repeat(v, group, 2)
    scores = jnp.einsum("bqhd,bkhd->bhqk", lower(q), lower(k)) / math.sqrt(spec["head_dim"])
    if spec["softcap"] > 0:
        scores = spec["softcap"] * jnp.tanh(scores / spec["softcap"])
    mask = mask[:, None]
    is_empty = ~mask.any(-1)
    scores = jnp.where(mask, scores, -1e30)
    top = scores.max(-1)
    if sinks is not None:
        top = jnp.maximum(top, sinks[None, :, None])
    weights = jnp.where(mask, jnp.exp(scores - top[..., None]), 0.0)
    total = weights.sum(-1)
    if sinks is not None:
        total = total + jnp.exp(sinks[None, :, None] - top)
    total = jnp.where(is_empty, 1.0, total)
    return jnp.einsum("bhqk,bkhd->bqhd", lower(weights / total[..., None]), lower(v))


def loss_of(jax, jnp, spec, p, rows, lower=lambda x: x):
    """The sum of nats; `lower` is what happens to the operands of products, and to their gradients."""
    batch, tokens = rows["input_ids"].shape
    heads, kv_heads, dim = spec["num_q_heads"], spec["num_kv_heads"], spec["head_dim"]
    x = p["wte"][rows["input_ids"]]
    if spec["structure"]:
        total = 0.0
        names = ["structure", "dep_level", "ast_depth", "sibling_index", "ast_node_type"]
        for i, name in enumerate(names):
            table, ids = p[f"structure_emb.{name}"], rows[f"structure_{i}"]
            total = total + table[np.clip(ids, 0, len(table) - 1)] * (ids >= 0)[..., None]
        x = x + lower(total) @ lower(p["structure_emb.out"])
    positions = positions_of(rows["doc_ids"])
    for layer in range(spec["layers"]):
        w = {name.split(".", 2)[2]: value for name, value in p.items() if name.startswith(f"layers.{layer}.")}
        mask = dense_mask(spec["masks"][layer % len(spec["masks"])], rows["doc_ids"])
        y = norm(jnp, x, w["attention_norm"], spec["norm_eps"])
        qkv = (lower(y) @ lower(w["qkv"])).reshape(batch, tokens, heads + 2 * kv_heads, dim)
        q = rotate(jnp, qkv[:, :, :heads], positions, spec["rope_base"])
        k = rotate(jnp, qkv[:, :, heads:heads + kv_heads], positions, spec["rope_base"])
        o = attend(jnp, spec, q, k, qkv[:, :, heads + kv_heads:], mask, w.get("sink_logits"), lower)
        o = o.reshape(batch, tokens, heads * dim)
        if spec["output_gate"]:
            o = o * jax.nn.sigmoid(lower(y) @ lower(w["gate"]))
        x = x + lower(o) @ lower(w["proj"])
        y = norm(jnp, x, w["mlp_norm"], spec["norm_eps"])
        gate, up = jnp.split(lower(y) @ lower(w["fc1"]), 2, -1)
        x = x + lower(jax.nn.silu(gate) * up) @ lower(w["fc2"])
    logits = (lower(norm(jnp, x, p["final_norm"], spec["norm_eps"])) @ lower(p["lm_head"]))[..., :spec["vocab"]]
    if spec["final_softcap"] > 0:
        logits = spec["final_softcap"] * jnp.tanh(logits / spec["final_softcap"])
    nats = jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, rows["target_ids"][..., None], -1)[..., 0]
    return jnp.sum(jnp.where(rows["loss_mask"] != 0, nats, 0.0))


def compare(folder):
    import jax
    import jax.numpy as jnp
    jax.config.update("jax_enable_x64", True)
    spec = tomllib.loads((folder / "spec.toml").read_text())["model"]
    tolerance = json.loads((folder / "tolerance.json").read_text())
    case = read_safetensors(folder / "case.safetensors")
    rows = {name: value for name, value in case.items() if name[:2] not in ("p.", "g.") and name != "loss"}
    parameters = {name[2:]: value for name, value in case.items() if name.startswith("p.")}

    def compute(dtype, lower):
        found = jax.jit(jax.value_and_grad(lambda p: loss_of(jax, jnp, spec, p, rows, lower)))(
            {name: value.astype(dtype) for name, value in parameters.items()})
        return jax.tree.map(lambda x: np.asarray(x, np.float64), found)

    loss, gradients = compute(np.float64, lambda x: x)
    if spec["dtype"] == "bf16":
        rounded_loss, rounded = compute(np.float64, lambda x: jax.lax.reduce_precision(x, 8, 7))
    else:
        rounded_loss, rounded = compute(np.float32, lambda x: x)
    problems = []
    # One number may be near by chance, so its allowances add up.
    if abs(loss - float(case["loss"])) > tolerance["loss"] * abs(loss) + 3 * abs(loss - rounded_loss):
        problems.append(f"loss: {float(case['loss'])} beside JAX's {float(loss)}")
    for name, want in gradients.items():
        size = np.linalg.norm(want)
        off = np.linalg.norm(case["g." + name].astype(np.float64) - want)
        if not off <= max(tolerance["gradient"] * size, 3 * np.linalg.norm(rounded[name] - want)) + 1e-9:
            problems.append(f"{name}: off by {off:.3g}, norm {size:.3g}")
    print("\n".join(problems) if problems else f"loss {float(loss):.6f} and {len(gradients)} gradients agree")
    return 1 if problems else 0


def main():
    try:
        import jax  # noqa: F401
    except ImportError:
        print("no JAX in this environment")
        return SKIPPED
    return compare(pathlib.Path(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
