"""cost_peers.py FOLDER: has JAX and Tokamax lower their splash kernels for the cases of cost.py, on this machine and for a
TPU that is not here: NAME.mlir, and what its grid visits, NAME.steps. Tiles are those at which they take the fewest
bundles up to 1024: queries and keys by 1024, keys 512 at a time; with a window also by 512, of which the better counts."""

import json
import os
import pathlib
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import jax.numpy as jnp
import numpy as np
from jax._src.pallas.mosaic import tpu_info
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as jax_kernel
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as jax_mask
from tokamax._src.ops.experimental.tpu.splash_attention import base as tokamax_base
from tokamax._src.ops.experimental.tpu.splash_attention import splash_attention_kernel as tokamax_kernel
from tokamax._src.ops.experimental.tpu.splash_attention import splash_attention_mask as tokamax_mask

# What they would ask the TPU.
tpu_info.get_device_kind = lambda: "TPU v6 lite"
tpu_info.get_num_device_cores = lambda: 1

KEYS, DIM = 512, 128
# mask, softcap, tokens, whether documents are packed, tile
CASES = {
    "full": ("full", None, 2048, False, 1024),
    "softcap": ("full", 30.0, 2048, False, 1024),
    "documents": ("causal", None, 8192, True, 1024),
    "all": ("local", 30.0, 8192, True, 1024),
    "all_by_512": ("local", 30.0, 8192, True, 512),
}


def mask_of(library, kind, tokens):
    shape = (tokens, tokens)
    if kind == "full":
        return library.FullMask(shape)
    return library.CausalMask(shape) if kind == "causal" else library.LocalMask(shape, (1023, 0), 0)


def sizes(tile):
    blocks = {"block_q": tile, "block_kv": tile, "block_kv_compute": KEYS}
    return blocks | {"block_q_dkv": tile, "block_kv_dkv": tile, "block_kv_dkv_compute": KEYS}


def jax_made(kind, softcap, tokens, tile):
    blocks = jax_kernel.BlockSizes(**sizes(tile), block_q_dq=None, block_kv_dq=None, use_fused_bwd_kernel=True)
    mask = jax_mask.MultiHeadMask([mask_of(jax_mask, kind, tokens)])
    return jax_kernel.make_splash_mha_single_device(mask=mask, block_sizes=blocks, attn_logits_soft_cap=softcap)


def jax_backward(kernel, q, k, v, o, lse, do, segments):
    options = dict(kernel.kwargs)
    kept = (q, k, v, jax_kernel.SegmentIds(*segments) if segments else None, None, o, lse, kernel.dq_mask_info,
            kernel.dkv_mask_info)
    return jax_kernel._splash_attention_bwd(
        False, options.get("mask_value", jax_kernel.DEFAULT_MASK_VALUE), options.get("is_mqa", False), options["block_sizes"],
        None, options.get("mask_function"), options.get("attn_logits_soft_cap"), False, kept, do)[3:6]


def jax_steps(info):
    kinds = np.asarray(info.block_mask)[0]
    return {"steps": kinds.size, "rows": kinds.shape[0], "full": int((kinds == 2).sum()), "partial": int((kinds == 1).sum())}


def tokamax_made(kind, softcap, tokens, tile):
    config = tokamax_kernel.SplashConfig(**sizes(tile), attn_logits_soft_cap=softcap)
    return tokamax_kernel.make_splash_mha_single_device(mask_of(tokamax_mask, kind, tokens), config=config)


def tokamax_backward(kernel, q, k, v, o, lse, do, segments):
    options = dict(kernel.kwargs)
    kept = (q, k, v, tokamax_base.SegmentIds(*segments) if segments else None, None, o, lse, kernel.dkv_mask_info)
    return tokamax_kernel._splash_attention_bwd(
        False, options["mask_value"], False, options["config"], options["mask_function"], options["fwd_mask_sparsity"],
        options["dkv_mask_sparsity"], kept, do)[2:5]


def tokamax_steps(info, rows):
    if info.block_mask is None:  # every tile is full, and its lists are not needed
        return {"steps": rows * rows, "rows": rows, "full": rows * rows, "partial": 0}
    kinds = np.asarray(info.block_mask).reshape(-1)
    if info.num_active_blocks is not None:
        kinds = kinds[: int(np.asarray(info.num_active_blocks).max())]
    return {"steps": kinds.size, "rows": rows, "full": int((kinds == 2).sum()), "partial": int((kinds == 1).sum())}


def main(folder):
    spec = lambda *shape, of=jnp.bfloat16: jax.ShapeDtypeStruct(shape, of)
    libraries = {
        "jax": (jax_made, jax_backward, jax_kernel.SegmentIds, lambda info, _: jax_steps(info)),
        "tokamax": (tokamax_made, tokamax_backward, tokamax_base.SegmentIds, tokamax_steps),
    }
    for library, (make, backward, ids, steps) in libraries.items():
        for case, (kind, softcap, tokens, packed, tile) in CASES.items():
            kernel = make(kind, softcap, tokens, tile)
            tensor, lse = spec(1, tokens, DIM), spec(1, tokens, of=jnp.float32)
            segments = [spec(tokens, of=jnp.int32)] * 2 if packed else []
            forward = lambda q, k, v, *s: kernel(q, k, v, segment_ids=ids(*s) if s else None)
            gradients = lambda q, k, v, o, lse, do, *s: backward(kernel, q, k, v, o, lse, do, s)
            for part, call, args, info in (
                ("forward", forward, [tensor] * 3, kernel.fwd_mask_info),
                ("backward", gradients, [tensor] * 4 + [lse, tensor], kernel.dkv_mask_info),
            ):
                name = f"{library}_{case}_{part}"
                text = jax.jit(call).trace(*args, *segments).lower(lowering_platforms=("tpu",)).as_text()
                (folder / f"{name}.mlir").write_text(text)
                counted = {"kernel": library, "scores": tile * tile, "units": tokens * tokens / 512**2}
                counted |= steps(info, tokens // tile)
                (folder / f"{name}.steps").write_text(json.dumps(counted))


main(pathlib.Path(sys.argv[1]))
