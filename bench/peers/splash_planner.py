"""Times JAX Splash's own mask planner: forward and dkv MaskInfo for one mask, caches cleared. Prints seconds.

Usage: splash_planner.py causal|window TOKENS TILE. Exits 3 when JAX is not installed.
"""

import sys
import time

try:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask_info as mask_info
except ImportError:
    sys.exit(3)

kind, tokens, tile = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
mask = masks.CausalMask((tokens, tokens))
if kind == "window":
    mask = masks.LogicalAnd(mask, masks.LocalMask((tokens, tokens), (4095, 0), 0))
heads = masks.MultiHeadMask([mask])
for function in (mask_info.process_mask, mask_info.process_mask_dkv):
    if hasattr(function, "cache_clear"):
        function.cache_clear()
begin = time.perf_counter()
mask_info.process_mask(heads, (tile, tile))
mask_info.process_mask_dkv(heads, (tile, tile))
print(time.perf_counter() - begin)
