#!/usr/bin/env python3
"""Packed documents on JAX's own Splash kernel, with the tiles between documents skipped.

Splash knows documents only as run-time segment ids, which never skip a tile. Here Tessera brings the documents of a batch
into Splash's arrays, and the unmodified kernel (interpreted, so that any machine can run it) computes attention and
its gradients from them. Once baked: the arrays and their stored tiles say everything. Once with no tile stored: the
arrays skip the tiles between documents, segment ids and Splash's own causal function do the rest, and shapes are the
same for every batch. Both are compared with dense attention.

Needs jax and the tessera package (docs/use_with_splash.md); exits 77 without them.
"""

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"  # the kernel is interpreted; an accelerator would only round more

try:
    import jax
    import jax.numpy as jnp
    import numpy as np
    import tessera
    import tessera.jax
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

TOKENS, HEADS, DIM, TILE = 1024, 2, 128, 128
DOCUMENTS = [300, 84, 256, 200, 184]  # lengths; boundaries need not fall on tiles


def make_infos(plan, **how):
    """Splash's MaskInfo of both directions."""
    return [tessera.jax.splash_mask_info(plan, block=(TILE, TILE), direction=direction, **how) for direction in ("forward", "dkv")]


def make_kernel(infos, mask_function):
    forward, dkv = infos
    sizes = splash.BlockSizes(block_q=TILE, block_kv=TILE, block_kv_compute=TILE, block_q_dkv=TILE, block_kv_dkv=TILE,
                              block_kv_dkv_compute=TILE, block_q_dq=TILE, block_kv_dq=TILE)
    return splash.SplashAttentionKernel(
        forward, forward, dkv, block_sizes=sizes, is_mqa=False, save_residuals=False,
        mask_value=splash.DEFAULT_MASK_VALUE, attn_logits_soft_cap=None, residual_checkpoint_name=None,
        mask_function=mask_function, interpret=True)


def tiles_of(infos):
    return int(np.count_nonzero(infos[0].block_mask))


def mask_bytes(infos):
    return sum(info.partial_mask_blocks.nbytes for info in infos if info.partial_mask_blocks is not None)


def dense_attention(q, k, v, mask):
    scores = jnp.where(mask, jnp.einsum("hqd,hkd->hqk", q, k), -jnp.inf)
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, axis=-1), v)


def main():
    ids = np.repeat(np.arange(len(DOCUMENTS), dtype=np.int32), DOCUMENTS)
    attention = tessera.Engine().prepare(
        tessera.Contract(q_len=TOKENS, num_q_heads=HEADS, dim_qk=DIM, mask="causal and documents"))
    plan = attention.plan(doc_ids=ids[None])
    infos = {
        "segment ids alone": make_infos(plan, segments="runtime"),
        "baked": make_infos(plan, segments="baked"),
        "no tile stored": make_infos(plan, segments="skip", fixed_shapes=True),  # for every batch the same shapes
    }
    baked = make_kernel(infos["baked"], None)
    skips = make_kernel(infos["no tile stored"], masks.CausalMask((TOKENS, TOKENS)).mask_function)
    segment_ids = splash.SegmentIds(jnp.array(ids), jnp.array(ids))

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

    plain, stored, skipped = (tiles_of(one) for one in infos.values())
    stored_bytes, skipped_bytes = mask_bytes(infos["baked"]), mask_bytes(infos["no tile stored"])
    print(f"tiles that each head visits: {plain} with segment ids alone, {stored} with documents baked in, {skipped} with no "
          f"tile stored: {1 - skipped / plain:.0%} saved")
    print(f"mask bytes: {stored_bytes} baked, {skipped_bytes} with no tile stored")
    return 0 if worst < 1e-3 and plain > stored == skipped and skipped_bytes == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
