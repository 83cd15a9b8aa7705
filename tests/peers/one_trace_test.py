#!/usr/bin/env python3
"""Fifty batches of packed documents through the real kernel: traced once, no mask stored, equal to dense attention.

The arrays of `tessera export --segments skip --fixed-shapes` are operands of a jitted forward and backward. Documents
decide which tiles are visited and never a shape, so JAX traces the first batch and no other. Inside a tile the kernel's
own mask function and the segment ids do the rest. The kernel is interpreted, so that any machine can run it.

Needs jax, and tokamax for `tokamax`; exits 77 without.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77
PACKAGES = {"splash": "jax", "tokamax": "tokamax"}
TOKENS, HEADS, DIM, TILE = 512, 2, 128, 128
# Masks that each kernel computes itself; spelled as people do, which the export reads by meaning.
MASKS = ["causal and window(199, 0) and documents", "causal and documents", "documents and valid"]


def write_contract(folder, mask):
    contract = {"version": 1, "shape": {"q_len": TOKENS, "kv_len": TOKENS, "num_q_heads": HEADS, "num_kv_heads": HEADS,
                                        "dim_qk": DIM, "dim_v": DIM}, "mask": {"expr": mask}}
    (folder / "contract.json").write_text(json.dumps(contract))


def random_batch(np, rng, mask):
    """Documents of any length, some padding; and how many tokens are valid, where the mask asks."""
    ids, longest = [], rng.integers(1, TOKENS + 1)
    while len(ids) < TOKENS:
        document = -1 if rng.random() < 0.2 else len(ids)
        ids += [document] * int(rng.integers(1, longest + 1))
    batch = {"doc_ids": [ids[:TOKENS]]}
    if "valid" in mask:
        batch["valid_tokens"] = [int(rng.integers(0, TOKENS + 1))]
    return batch


def dense_mask(np, batch, mask):
    ids = np.array(batch["doc_ids"][0])
    token = np.arange(TOKENS)
    allowed = (ids[:, None] == ids[None, :]) & (ids[:, None] >= 0)
    if "causal" in mask:
        allowed &= token[:, None] >= token[None, :]
    if "window" in mask:
        allowed &= token[:, None] - token[None, :] <= 199
    valid = batch.get("valid_tokens", [TOKENS])[0]
    return allowed & (token[:, None] < valid) & (token[None, :] < valid)


class Exporter:
    def __init__(self, np, program, library, folder):
        self.np, self.program, self.library, self.folder = np, program, library, folder

    def __call__(self, batch, *flags):
        (self.folder / "batch.json").write_text(json.dumps(batch))
        command = [self.program, "export", "--to", self.library, self.folder / "contract.json", "--batch",
                   self.folder / "batch.json", "--tile", f"{TILE}x{TILE}", "--segments", "skip", "--fixed-shapes",
                   "--json", *flags]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr}")
        answer = json.loads(done.stdout)
        arrays = {name: self.array(value) for name, value in answer["arrays"].items()}
        assert arrays["partial_mask_blocks"] is None and arrays["mask_next"] is None, "a tile was stored"
        ids = (self.array(answer["segment_ids"][side])[0] for side in ("q", "kv"))
        return arrays, tuple(ids), answer["mask_function"], answer["tiles"]

    def array(self, value):
        return value and self.np.array(value["data"], value["dtype"]).reshape(value["shape"])


# ---- the kernels: (forward arrays, dkv arrays, q, k, v, segment ids) -> o

def mask_function(lib, function):
    """The library's own function. Made once: JAX tells static arguments apart by identity."""
    shape = (TOKENS, TOKENS)
    if function is None:
        return None
    if function["kind"] == "causal":
        return lib.CausalMask(shape, function["offset"]).mask_function
    return lib.LocalMask(shape, tuple(function["window"]), function["offset"]).mask_function


def splash_kernel(function):
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask_info as info
    sizes = splash.BlockSizes(**{name: TILE for name in (
        "block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute", "block_q_dq",
        "block_kv_dq")})
    computed = mask_function(masks, function)

    def attend(forward, dkv, q, k, v, ids):
        kernel = splash.SplashAttentionKernel(
            info.MaskInfo(**forward), info.MaskInfo(**forward), info.MaskInfo(**dkv), block_sizes=sizes, is_mqa=False,
            save_residuals=False, mask_value=splash.DEFAULT_MASK_VALUE, attn_logits_soft_cap=None,
            residual_checkpoint_name=None, mask_function=computed, interpret=True)
        return kernel(q, k, v, segment_ids=splash.SegmentIds(*ids))

    return attend


def tokamax_kernel(function):
    from tokamax._src.ops.experimental.tpu.splash_attention import base
    from tokamax._src.ops.experimental.tpu.splash_attention import splash_attention_kernel as splash
    from tokamax._src.ops.experimental.tpu.splash_attention import splash_attention_mask as masks
    from tokamax._src.ops.experimental.tpu.splash_attention import splash_attention_mask_info as info
    config = splash.SplashConfig(block_q=TILE, block_kv=TILE, block_q_dkv=TILE, block_kv_dkv=TILE, interpret=True)
    computed = mask_function(masks, function)

    def attend(forward, dkv, q, k, v, ids):
        kernel = splash.SplashAttentionKernel(
            info.MaskInfo(**forward), info.MaskInfo(**dkv), config=config, is_mqa=False, save_residuals=False,
            mask_value=base.DEFAULT_MASK_VALUE, mask_function=computed, fwd_mask_sparsity=1.0, dkv_mask_sparsity=1.0)
        return kernel(q, k, v, segment_ids=base.SegmentIds(*ids))

    return attend


KERNELS = {"splash": splash_kernel, "tokamax": tokamax_kernel}
FORWARD = {"splash": [], "tokamax": ["--dynamic-grid"]}


def check(library, program, mask, batches, folder, seed):
    import jax
    import jax.numpy as jnp
    import numpy as np
    rng = np.random.default_rng(seed)
    write_contract(folder, mask)
    exporter = Exporter(np, program, library, folder)
    inputs = [jnp.array(rng.standard_normal((HEADS, TOKENS, DIM)), jnp.float32) for _ in range(4)]  # q, k, v, weights
    inputs[0] /= np.sqrt(DIM)  # the kernels leave scaling to their caller

    def dense(q, k, v, allowed):
        scores = jnp.where(allowed, jnp.einsum("hqd,hkd->hqk", q, k), -1e30)
        return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, axis=-1), v)

    def with_gradients(attend, seen, q, k, v, weights):
        # Rows that may attend nothing mean nothing in these kernels: nothing of them enters the loss.
        def loss(q, k, v):
            o = jnp.where(seen, attend(q, k, v), 0.0)
            return jnp.sum(o * weights), o
        gradients, o = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(q, k, v)
        return o, *gradients

    traces = 0
    step = None
    reference = jax.jit(lambda allowed, *rest: with_gradients(lambda *x: dense(*x, allowed), *rest))
    worst, visited = 0.0, set()
    for number in range(batches):
        batch = random_batch(np, rng, mask)
        forward, ids, function, tiles = exporter(batch, *FORWARD[library])
        dkv, _, _, _ = exporter(batch, "--direction", "dkv")
        if step is None:
            attend = KERNELS[library](function)

            @jax.jit
            def step(forward, dkv, ids, *rest):
                nonlocal traces
                traces += 1
                return with_gradients(lambda *x: attend(forward, dkv, *x, ids), *rest)

        allowed = dense_mask(np, batch, mask)
        seen = allowed.any(axis=1)[None, :, None]
        visited.add(tiles["partial"] + tiles["full"])
        results = zip(("o", "dq", "dk", "dv"), step(forward, dkv, ids, seen, *inputs), reference(allowed, seen, *inputs))
        for name, have, want in results:
            error = float(jnp.max(jnp.abs(have - want)))
            if not error < 1e-3:
                print(f"{mask}: batch {number} of --seed {seed}: {name} differs by {error}")
                return False
            worst = max(worst, error)
    print(f"{library}: {mask}: {batches} batches, {min(visited)} to {max(visited)} tiles visited, {traces} trace, 0 mask "
          f"bytes, largest difference {worst:.1e}")
    return traces == 1 and (batches < 50 or len(visited) > 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", choices=list(KERNELS))
    parser.add_argument("--program", required=True, help="the tessera program")
    parser.add_argument("--batches", type=int, default=50, help="of the first mask; the others get a fifth")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    options = parser.parse_args()
    package = PACKAGES[options.library]
    if importlib.util.find_spec(package) is None:
        print(f"skipped: {package} is not installed here; script/setup --peers installs it")
        return SKIPPED
    os.environ["JAX_PLATFORMS"] = "cpu"  # the kernel is interpreted; an accelerator would only round more
    with tempfile.TemporaryDirectory() as name:
        good = [check(options.library, options.program, mask, options.batches if i == 0 else options.batches // 5,
                      pathlib.Path(name), options.seed) for i, mask in enumerate(MASKS)]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
