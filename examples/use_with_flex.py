#!/usr/bin/env python3
"""Packed documents on PyTorch's FlexAttention, with a BlockMask that was never a T x T mask.

`create_block_mask` evaluates the mask for every pair. Here Tessera writes the BlockMask's fields directly, documents
baked in, and FlexAttention takes them. Compiled FlexAttention walks just these tiles; where this machine has no
compiled path on the CPU it runs eagerly, which is said. The result is compared with dense attention.

Needs torch and the tessera package (docs/use_with_flex.md); exits 77 without them.
"""

import sys

try:
    import tessera
    import tessera.torch
    import torch
    from torch.nn.attention import flex_attention as flex
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

BATCH, TOKENS, HEADS, DIM, TILE = 2, 1000, 2, 64, 128  # a length that tiles do not divide
DOCUMENTS = [[300, 84, 256, 200, 160], [512, 488]]


def attention(q, k, v, block_mask):
    """FlexAttention compiled for this CPU where that exists, eager otherwise."""
    try:
        return torch.compile(flex.flex_attention)(q, k, v, block_mask=block_mask), "compiled"
    except Exception as reason:  # each PyTorch names what it lacks in its own way
        first_line = str(reason).strip().splitlines()[0]
        return flex.flex_attention(q, k, v, block_mask=block_mask), f"eager, because compiling failed: {first_line}"


def tiles_of(block_mask):
    return int(block_mask.kv_num_blocks.sum() + block_mask.full_kv_num_blocks.sum())


def main():
    shape = dict(batch=BATCH, q_len=TOKENS, num_q_heads=HEADS, dim_qk=DIM)
    engine = tessera.Engine()
    plan = engine.prepare(tessera.Contract(**shape, mask="causal and documents")).plan(doc_lengths=DOCUMENTS)
    block_mask = tessera.torch.to_flex(plan, block_size=TILE)
    causal = tessera.torch.to_flex(engine.prepare(tessera.Contract(**shape, mask="causal")).plan(), block_size=TILE)

    torch.manual_seed(0)
    q, k, v = (torch.randn(BATCH, HEADS, TOKENS, DIM) for _ in range(3))
    got, how = attention(q, k, v, block_mask)
    ids = torch.stack([torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row)) for row in DOCUMENTS])
    token = torch.arange(TOKENS)
    mask = (token[:, None] >= token[None, :]) & (ids[:, None, :, None] == ids[:, None, None, :])
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    error = (got - want).abs().max().item()

    def may_attend(b, h, q, kv):
        return (q >= kv) & (ids[b, q] == ids[b, kv])

    # What create_block_mask would have built from every pair.
    slow = flex.create_block_mask(may_attend, BATCH, None, TOKENS, TOKENS, device="cpu", BLOCK_SIZE=TILE)
    same = torch.equal(slow.to_dense(), block_mask.to_dense())

    visited, plain = tiles_of(block_mask), tiles_of(causal) * (BATCH // causal.shape[0])  # one mask for every row
    print(f"FlexAttention ran {how}")
    print(f"o largest difference from dense attention {error:.2e}")
    print(f"BlockMask equals create_block_mask's: {same}")
    print(f"tiles that each head visits: {plain} without baking, {visited} with documents baked in: {1 - visited / plain:.0%} saved")
    return 0 if error < 1e-4 and same and visited < plain else 1


if __name__ == "__main__":
    sys.exit(main())
