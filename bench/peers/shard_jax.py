"""JAX's own ways to attend over tokens that eight CPU devices share: bytes of the compiled collectives, and time.

Usage: shard_jax.py [--tokens N | --documents FILE] [--heads N] [--dim N] [--repeats N] [--forward]

gather   keys and values all-gathered inside shard_map, then dense attention of a device's own queries
ring     whole shards passed around by ppermute, merged by log-sum-exp; every hop is sent, whatever the mask

The mask is causal within documents: of random lengths, or of those in FILE, one on each line. Heads are taken one after
the other, so that a device's scores are those of one; the backward is JAX's own of the same function, which computes a
head's scores anew. Bytes are counted in the optimised HLO, over all devices: an all-gather's result less each device's
own, a reduce-scatter's operand less its own, a permute's operand for each pair. script/bench shard --time runs this
after ours, on the same documents.
"""

import argparse
import os
import random
import re
import time

DEVICES = 8
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + f" --xla_force_host_platform_device_count={DEVICES}"

import jax  # noqa: E402  (the devices are made when it is imported)
import jax.numpy as jnp  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P  # noqa: E402

try:
    from jax import shard_map
except ImportError:
    from jax.experimental.shard_map import shard_map

WIDTHS = {"f32": 4, "bf16": 2, "f16": 2, "s32": 4, "pred": 1}


def scores(q, k, q_at, k_at, q_doc, k_doc):
    seen = (k_at[None, :] <= q_at[:, None]) & (k_doc[None, :] == q_doc[:, None])
    s = jnp.einsum("hqd,hkd->hqk", q, k, preferred_element_type=jnp.float32) * q.shape[-1] ** -0.5
    return jnp.where(seen[None], s, -jnp.inf)


@jax.checkpoint
def dense_head(args):
    q, k, v, q_at, k_at, q_doc, k_doc = args
    s = scores(q[None], k[None], q_at, k_at, q_doc, k_doc)[0]
    return jax.nn.softmax(s, axis=-1).astype(v.dtype) @ v


def gather(q, k, v, doc):
    own = q.shape[1]
    places = jax.lax.axis_index("context") * own + jnp.arange(own)
    k, v = (jax.lax.all_gather(x, "context", axis=1, tiled=True) for x in (k, v))
    docs = jax.lax.all_gather(doc, "context", tiled=True)
    all_places = jnp.arange(docs.shape[0])
    return jax.lax.map(lambda x: dense_head((*x, places, all_places, doc, docs)), (q, k, v))


@jax.checkpoint
def merged_head(args):
    q, k, v, most, total, out, q_at, k_at, q_doc, k_doc = args
    s = scores(q[None], k[None], q_at, k_at, q_doc, k_doc)[0]
    top = jax.lax.stop_gradient(jnp.maximum(most, s.max(axis=-1)))
    safe = jnp.where(jnp.isneginf(top), 0.0, top)
    weights = jnp.exp(s - safe[..., None])
    keep = jnp.where(jnp.isneginf(most), 0.0, jnp.exp(most - safe))
    return top, total * keep + weights.sum(axis=-1), out * keep[..., None] + weights @ v.astype(jnp.float32)


def ring(q, k, v, doc):
    own = q.shape[1]
    me = jax.lax.axis_index("context")
    places = me * own + jnp.arange(own)
    pairs = [(i, (i + 1) % DEVICES) for i in range(DEVICES)]
    # Made of what devices have, so that JAX knows them to differ between devices.
    most = jnp.full_like(q[..., 0], -jnp.inf, jnp.float32) + 0 * q[..., 0]
    total = 0 * q[..., 0]
    out = 0 * q
    docs = doc
    for hop in range(DEVICES):
        k_at = (me - hop) % DEVICES * own + jnp.arange(own)
        most, total, out = jax.lax.map(lambda x, k_at=k_at, docs=docs: merged_head((*x, places, k_at, doc, docs)),
                                       (q, k, v, most, total, out))
        if hop + 1 < DEVICES:
            k, v, docs = (jax.lax.ppermute(x, "context", pairs) for x in (k, v, docs))
    return (out / total[..., None]).astype(q.dtype)


def carried(text):
    """Bytes over all devices, of the collectives of a module, none of which is in a loop."""
    total = 0
    for match in re.finditer(r"= \(?(?P<type>[^=]*?)\)? (?P<op>all-gather|all-reduce|reduce-scatter|collective-permute)"
                             r"(?:-start)?\((?P<rest>.*)", text):
        size = 0
        for element, shape in re.findall(r"(\w+)\[([\d,]*)\]", match["type"])[-1:]:
            count = 1
            for dim in shape.split(",") if shape else []:
                count *= int(dim)
            size = count * WIDTHS[element]
        if match["op"] == "collective-permute":
            total += size * len(re.findall(r"\{\d+,\d+\}", match["rest"].split("source_target_pairs=")[1].split("}}")[0] + "}"))
        else:
            total += size * (DEVICES - 1) * {"all-gather": 1, "reduce-scatter": DEVICES, "all-reduce": 2}[match["op"]]
    return total


def timed(compiled, arguments, repeats):
    best = float("inf")
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        outputs = jax.block_until_ready(compiled(*arguments))
        best = min(best, time.perf_counter() - begin)
    return best, outputs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("tokens", 2048), ("heads", 8), ("dim", 64), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--documents", help="a file with a length on each line, in place of --tokens")
    parser.add_argument("--forward", action="store_true", help="no backward")
    args = parser.parse_args()
    rng = random.Random(20261118)
    lengths, left = [], args.tokens
    while left and not args.documents:
        lengths.append(min(left, 32 + rng.randrange(4033)))
        left -= lengths[-1]
    if args.documents:
        with open(args.documents, encoding="utf-8") as file:
            lengths = [int(line) for line in file]
        args.tokens = sum(lengths)
    if args.tokens % DEVICES or not lengths:
        parser.error(f"tokens must divide by {DEVICES}, found {args.tokens}")
    docs = [number for number, length in enumerate(lengths) for _ in range(length)]
    mesh = Mesh(jax.devices()[:DEVICES], ("context",))
    over = P(None, "context", None)
    keys = jax.random.split(jax.random.PRNGKey(7), 3)
    shape = (args.heads, args.tokens, args.dim)
    q, k, v = (jax.device_put(jax.random.normal(key, shape), NamedSharding(mesh, over)) for key in keys)
    doc = jax.device_put(jnp.array(docs, jnp.int32), NamedSharding(mesh, P("context")))
    whole = (DEVICES - 1) * args.tokens * args.heads * 2 * args.dim * 4
    outputs = {}
    print(f"JAX {jax.__version__}, {DEVICES} CPU devices, {os.cpu_count()} cores, {args.tokens} tokens")
    for name, body in (("gather", gather), ("ring", ring)):
        step = shard_map(body, mesh=mesh, in_specs=(over, over, over, P("context")), out_specs=over)

        def gradients(q, k, v, doc, dout, step=step):
            return jax.vjp(lambda *x: step(*x, doc), q, k, v)[1](dout)

        passes = [("forward", step, (q, k, v, doc))]
        if not args.forward:
            passes.append(("backward", gradients, (q, k, v, doc, q)))
        for of, function, arguments in passes:
            compiled = jax.jit(function).lower(*arguments).compile()
            best, results = timed(compiled, arguments, args.repeats)
            outputs.setdefault(of, []).append(results)
            bytes_ = carried(compiled.as_text())
            print(f"{name}, {of}: {best * 1e3:.1f} ms, {bytes_} bytes carried, "
                  f"{bytes_ / whole:.4f} of keys and values to all")
    apart = max(float(jnp.abs(a - b).max()) for one, other in outputs.values()
                for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other)))
    print(f"the two differ by at most {apart:.2e}")
    raise SystemExit(apart > 1e-3)


if __name__ == "__main__":
    main()
