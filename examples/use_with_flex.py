#!/usr/bin/env python3
"""Packed documents on PyTorch's FlexAttention, with a BlockMask that was never a T x T mask.

`create_block_mask` evaluates the mask for every pair. Here Tessera writes the BlockMask's fields directly, documents
baked in, and FlexAttention takes them. Compiled FlexAttention walks just these tiles; where this machine has no
compiled path on the CPU it runs eagerly, which is said. The result is compared with dense attention.

Usage: use_with_flex.py --program PATH_TO_TESSERA. Needs torch; exits 77 without it.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    from torch.nn.attention import flex_attention as flex
except ImportError:
    print("skipped: torch is not installed here; script/setup --torch installs it")
    sys.exit(77)

BATCH, TOKENS, HEADS, DIM, TILE = 2, 1000, 2, 64, 128  # a length that tiles do not divide
DOCUMENTS = [[300, 84, 256, 200, 160], [512, 488]]

CONTRACT = f"""
version = 1
[shape]
batch = {BATCH}
q_len = {TOKENS}
num_q_heads = {HEADS}
num_kv_heads = {HEADS}
dim_qk = {DIM}
[mask]
expr = "causal and documents"
"""


def export(program, folder, segments):
    command = [program, "export", "--to", "flex", folder / "contract.toml", "--batch", folder / "batch.json",
               "--tile", f"{TILE}x{TILE}", "--segments", segments, "--json"]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    arrays = {name: torch.tensor(value["data"], dtype=torch.int32).reshape(value["shape"])
              for name, value in answer["arrays"].items()}
    return arrays, answer["tiles"]


def attention(q, k, v, block_mask):
    """FlexAttention compiled for this CPU where that exists, eager otherwise."""
    try:
        return torch.compile(flex.flex_attention)(q, k, v, block_mask=block_mask), "compiled"
    except Exception as reason:  # each PyTorch names what it lacks in its own way
        first_line = str(reason).strip().splitlines()[0]
        return flex.flex_attention(q, k, v, block_mask=block_mask), f"eager, because compiling failed: {first_line}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="tessera", help="the tessera program")
    program = parser.parse_args().program
    ids = torch.stack([torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row)) for row in DOCUMENTS])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "contract.toml").write_text(CONTRACT)
        (folder / "batch.json").write_text(json.dumps({"doc_ids": ids.tolist()}))
        arrays, baked = export(program, folder, "baked")
        _, plain = export(program, folder, "runtime")

    def may_attend(b, h, q, kv):
        return (q >= kv) & (ids[b, q] == ids[b, kv])

    block_mask = flex.BlockMask(seq_lengths=(TOKENS, TOKENS), BLOCK_SIZE=(TILE, TILE), mask_mod=may_attend, **arrays)

    torch.manual_seed(0)
    q, k, v = (torch.randn(BATCH, HEADS, TOKENS, DIM) for _ in range(3))
    got, how = attention(q, k, v, block_mask)
    token = torch.arange(TOKENS)
    mask = (token[:, None] >= token[None, :]) & (ids[:, None, :, None] == ids[:, None, None, :])
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    error = (got - want).abs().max().item()

    # What create_block_mask would have built from every pair.
    slow = flex.create_block_mask(may_attend, BATCH, None, TOKENS, TOKENS, device="cpu", BLOCK_SIZE=TILE)
    same = torch.equal(slow.to_dense(), block_mask.to_dense())

    visited = baked["partial"] + baked["full"]
    causal = BATCH * (plain["partial"] + plain["full"])  # one mask for every row
    print(f"FlexAttention ran {how}")
    print(f"o largest difference from dense attention {error:.2e}")
    print(f"BlockMask equals create_block_mask's: {same}")
    print(f"tiles visited: {causal} without baking, {visited} with documents baked in: {1 - visited / causal:.0%} saved")
    return 0 if error < 1e-4 and same and visited < causal else 1


if __name__ == "__main__":
    sys.exit(main())
