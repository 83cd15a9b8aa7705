"""Times a library's own mask planner on one mask, caches cleared. Prints seconds.

Usage: mask_planner.py splash|tokamax|flex causal|window TOKENS TILE. Splash and Tokamax build forward and dkv, flex builds
both at once. Exits 3 when the library is not installed.
"""

import sys
import time

library, kind, tokens, tile = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
LEFT = 4095


def splash_like(masks, info, wrap):
    mask = masks.CausalMask((tokens, tokens))
    if kind == "window":
        mask = masks.LogicalAnd(mask, masks.LocalMask((tokens, tokens), (LEFT, 0), 0))
    for function in (info.process_mask, info.process_mask_dkv):
        if hasattr(function, "cache_clear"):
            function.cache_clear()
    begin = time.perf_counter()
    info.process_mask(wrap(mask), (tile, tile))
    info.process_mask_dkv(wrap(mask), (tile, tile))
    return time.perf_counter() - begin


def flex():
    from torch.nn.attention.flex_attention import create_block_mask

    def mask(b, h, q, kv):
        return (q >= kv) & (q - kv <= LEFT) if kind == "window" else q >= kv

    begin = time.perf_counter()
    create_block_mask(mask, None, None, tokens, tokens, device="cpu", BLOCK_SIZE=tile)
    return time.perf_counter() - begin


try:
    if library == "splash":
        from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
        from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask_info as info
        print(splash_like(masks, info, lambda mask: masks.MultiHeadMask([mask])))
    elif library == "tokamax":
        from tokamax._src.ops.experimental.tpu.splash_attention import splash_attention_mask as masks
        from tokamax._src.ops.experimental.tpu.splash_attention import splash_attention_mask_info as info
        print(splash_like(masks, info, lambda mask: mask))
    else:
        print(flex())
except ImportError:
    sys.exit(3)
