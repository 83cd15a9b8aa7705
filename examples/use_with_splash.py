#!/usr/bin/env python3
"""Packed documents on JAX's own Splash kernel, with the tiles between documents skipped.

Splash knows documents only as run-time segment ids, which never skip a tile. Here Tessera brings the documents of a batch
into Splash's arrays, and the unmodified kernel (interpreted, so that any machine can run it) computes attention and
its gradients from them. Once baked: the arrays and their stored tiles say everything. Once with no tile stored: the
arrays skip the tiles between documents, segment ids and Splash's own causal function do the rest, and shapes are the
same for every batch. Both are compared with dense attention.

Usage: use_with_splash.py --program PATH_TO_TESSERA. Needs jax; exits 77 without it.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"  # the kernel is interpreted; an accelerator would only round more

try:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask_info as mask_info
except ImportError:
    print("skipped: jax is not installed here; script/setup --peers installs it")
    sys.exit(77)

TOKENS, HEADS, DIM, TILE = 1024, 2, 128, 128
DOCUMENTS = [300, 84, 256, 200, 184]  # lengths; boundaries need not fall on tiles

CONTRACT = f"""
version = 1
[shape]
q_len = {TOKENS}
num_q_heads = {HEADS}
num_kv_heads = {HEADS}
dim_qk = {DIM}
[mask]
expr = "causal and documents"
"""


def export(program, folder, *flags):
    """The arrays of one direction as Splash's MaskInfo, and the program's whole answer."""
    command = [program, "export", "--to", "splash", folder / "contract.toml", "--batch", folder / "batch.json",
               "--tile", f"{TILE}x{TILE}", "--json", *flags]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)

    def array(name):
        value = answer["arrays"][name]
        return value and jnp.array(np.array(value["data"], value["dtype"]).reshape(value["shape"]))

    fields = ("data_next", "mask_next", "block_mask", "partial_mask_blocks", "q_sequence")
    return mask_info.MaskInfo(**{name: array(name) for name in fields}), answer


def make_kernel(program, folder, mask_function, *flags):
    forward, answer = export(program, folder, *flags)
    dkv, _ = export(program, folder, *flags, "--direction", "dkv")
    sizes = splash.BlockSizes(block_q=TILE, block_kv=TILE, block_kv_compute=TILE, block_q_dkv=TILE, block_kv_dkv=TILE,
                              block_kv_dkv_compute=TILE, block_q_dq=TILE, block_kv_dq=TILE)
    kernel = splash.SplashAttentionKernel(
        forward, forward, dkv, block_sizes=sizes, is_mqa=False, save_residuals=False,
        mask_value=splash.DEFAULT_MASK_VALUE, attn_logits_soft_cap=None, residual_checkpoint_name=None,
        mask_function=mask_function, interpret=True)
    mask_bytes = sum(info.partial_mask_blocks.nbytes for info in (forward, dkv) if info.partial_mask_blocks is not None)
    return kernel, answer, mask_bytes


def dense_attention(q, k, v, mask):
    scores = jnp.where(mask, jnp.einsum("hqd,hkd->hqk", q, k), -jnp.inf)
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, axis=-1), v)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="tessera", help="the tessera program")
    program = parser.parse_args().program
    ids = np.repeat(np.arange(len(DOCUMENTS)), DOCUMENTS)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "contract.toml").write_text(CONTRACT)
        (folder / "batch.json").write_text(json.dumps({"doc_ids": [ids.tolist()]}))
        baked, baked_answer, baked_bytes = make_kernel(program, folder, None, "--segments", "baked")
        causal = masks.CausalMask((TOKENS, TOKENS)).mask_function  # what the answer's mask_function says
        skips, answer, skips_bytes = make_kernel(program, folder, causal, "--segments", "skip", "--fixed-shapes")
        _, plain = export(program, folder, "--segments", "runtime")
    segment_ids = splash.SegmentIds(*(jnp.array(answer["segment_ids"][side]["data"]) for side in ("q", "kv")))

    rng = np.random.default_rng(0)
    q, k, v, weights = (jnp.array(rng.standard_normal((HEADS, TOKENS, DIM)), jnp.float32) for _ in range(4))
    q = q / np.sqrt(DIM)  # Splash leaves scaling to its caller
    mask = (ids[:, None] == ids[None, :]) & np.tri(TOKENS, dtype=bool)

    def loss(attend):
        return lambda *inputs: jnp.sum(attend(*inputs) * weights)

    def with_gradients(attend):
        return (attend(q, k, v), *jax.grad(loss(attend), argnums=(0, 1, 2))(q, k, v))

    worst = 0.0
    want = with_gradients(lambda *inputs: dense_attention(*inputs, mask))
    kernels = {"baked": baked, "no tile stored": lambda *inputs: skips(*inputs, segment_ids=segment_ids)}
    for how, attend in kernels.items():
        for name, have, expected in zip(("o", "dq", "dk", "dv"), with_gradients(attend), want):
            error = float(jnp.max(jnp.abs(have - expected)))
            worst = max(worst, error)
            print(f"{how + ':':<15} {name:<2} largest difference from dense attention {error:.2e}")

    visited = [said["tiles"]["partial"] + said["tiles"]["full"] for said in (plain, baked_answer, answer)]
    print(f"tiles visited: {visited[0]} with segment ids alone, {visited[1]} with documents baked in, {visited[2]} with no "
          f"tile stored: {1 - visited[2] / visited[0]:.0%} saved")
    print(f"mask bytes: {baked_bytes} baked, {skips_bytes} with no tile stored")
    return 0 if worst < 1e-3 and visited[0] > visited[1] == visited[2] and skips_bytes == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
