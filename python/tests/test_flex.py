"""Masks to and from FlexAttention."""

import numpy as np
import pytest
from conftest import random_documents

import tessera

torch = pytest.importorskip("torch", reason="PyTorch is not installed in this environment")
import tessera.torch as tt  # noqa: E402

B, H, T, D = 2, 4, 96, 16


def prepare(mask):
    return tessera.Engine().prepare(tessera.Contract(batch=B, q_len=T, num_q_heads=H, dim_qk=D, mask=mask, tile=32,
                                                     tile_reason="a small test"))  # fmt: skip


@pytest.mark.parametrize(
    "mask_mod,text",
    [
        (lambda b, h, q, kv: q >= kv, "causal"),
        (lambda b, h, q, kv: (q >= kv) & (q - kv < 32), "causal and window(31, 0)"),
        (lambda b, h, q, kv: (q - kv).abs() <= 3, "window(3, 3)"),
        (lambda b, h, q, kv: q >= 0, "full"),
        (lambda b, h, q, kv: (q >= kv) | (kv % 7 == 0), "bitmap("),
    ],
)
def test_from_flex(mask_mod, text):
    from torch.nn.attention.flex_attention import create_block_mask

    warned = pytest.warns(tessera.BitmapWarning) if "bitmap" in text else _nothing()
    with warned:
        contract = tt.from_flex(mask_mod, q_len=100, kv_len=100, dim_qk=8)
    assert contract.mask.startswith(text)
    block_mask = create_block_mask(mask_mod, 1, 1, 100, 100, device="cpu")
    with pytest.warns(tessera.BitmapWarning) if "bitmap" in text else _nothing():
        assert tt.from_flex(block_mask, dim_qk=8).key == contract.key
    by_batch = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="differs between batch rows"):
        tt.from_flex(lambda b, h, q, kv: (q >= kv) & (by_batch[b] == 0), q_len=16, batch=2, dim_qk=8)


def test_from_flex_takes_the_blocks_of_a_block_mask():
    """What is in no block is not seen, whatever the function says; what is in a full block is: so do FlexAttention's
    kernels (not compiled, it looks at the function alone)."""
    from torch.nn.attention.flex_attention import BlockMask, create_block_mask

    def expect(contract, tiles, below):
        seen = torch.tensor(tiles).bool().repeat_interleave(32, 0).repeat_interleave(32, 1)
        full = torch.tensor(below).bool().repeat_interleave(32, 0).repeat_interleave(32, 1)
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=(seen | full)[None, None])
        torch.testing.assert_close(tt.attention(q, k, v, contract), want, rtol=0, atol=1e-4)

    counts = torch.tensor([[[1, 2, 1, 2]]], dtype=torch.int32)
    indices = torch.tensor([[[[0, 0, 0, 0], [0, 1, 0, 0], [2, 0, 0, 0], [0, 3, 0, 0]]]], dtype=torch.int32)
    blocks = BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=32)  # no function: the blocks are the mask
    with pytest.warns(tessera.BitmapWarning):
        contract = tt.from_flex(blocks, dim_qk=16)
    q, k, v = (torch.randn(1, 1, 128, 16) for _ in range(3))
    listed = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1]]
    expect(contract, listed, np.zeros((4, 4)))
    # The function lets nothing pass: what is left are the full blocks.
    above = torch.tensor([[[[3, 0, 0, 0], [3, 0, 0, 0], [3, 0, 0, 0], [2, 0, 0, 0]]]], dtype=torch.int32)
    full = BlockMask.from_kv_blocks(counts, indices, torch.ones(1, 1, 4, dtype=torch.int32), above, BLOCK_SIZE=32,
                                    mask_mod=lambda b, h, q, kv: q < 0)  # fmt: skip
    with pytest.warns(tessera.BitmapWarning):
        contract = tt.from_flex(full, dim_qk=16)
    expect(contract, np.zeros((4, 4)), [[0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 1, 0]])
    by_head = create_block_mask(lambda b, h, q, kv: (q >= kv) & ((h > 0) | (q - kv < 4)), None, 2, 64, 64, device="cpu")
    contract = tt.from_flex(by_head, dim_qk=8)
    assert contract.shape.num_q_heads == 2 and len(contract.mask) == 2
    assert tt.from_flex(create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 64, 64, device="cpu"), batch=3,
                        num_q_heads=4, dim_qk=8).shape.q == (3, 4, 64, 8)  # fmt: skip
    for wrong in (dict(num_q_heads=3), dict(q_len=65)):
        with pytest.raises(ValueError, match="BlockMask"):
            tt.from_flex(by_head, dim_qk=8, **wrong)
    with pytest.raises(TypeError, match="booleans"):
        tt.from_flex(lambda b, h, q, kv: q - kv, q_len=16, dim_qk=8)
    with pytest.raises(TypeError, match="mask_mod or a BlockMask"):
        tt.from_flex("causal", q_len=16, dim_qk=8)


def test_flex_masks_are_made_where_they_are_asked_for(rng):
    """As far as that can be seen without a GPU: tensors that have a device and no memory."""
    from torch._subclasses import FakeTensorMode

    seen = set()

    def mask_mod(b, h, q, kv):
        seen.update(x.device.type for x in (b, h, q, kv))
        return q >= kv

    assert tt.from_flex(mask_mod, q_len=16, dim_qk=8, device="cpu").mask == "causal" and seen == {"cpu"}
    seen.clear()
    with pytest.raises(NotImplementedError, match="meta"):  # its answer has no values
        tt.from_flex(mask_mod, q_len=16, dim_qk=8, device="meta")
    assert seen == {"meta"}
    attn = prepare("causal and valid and documents and (window(15, 0) or sink(4, document))")
    plan = attn.plan(doc_ids=random_documents(rng, B, T, 4), valid_tokens=[T, T - 20])

    def devices(mask):
        return {x.device.type for x in (mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices)}

    def ask(mask, device):
        at = torch.arange(T, device=device)
        zero = at.new_zeros((1, 1))
        return mask.mask_mod(zero, zero, at[:, None], at[None])

    here = tt.to_flex(plan, block_size=32)
    assert devices(here) == {"cpu"}
    bits = ask(here, "cpu")
    assert devices(tt.to_flex(plan, block_size=32, device="meta")) == {"meta"}
    with FakeTensorMode(allow_non_fake_inputs=True):
        there = tt.to_flex(plan, block_size=32, device="cuda")
        assert devices(there) == {"cuda"}
        answer = ask(there, "cuda")  # which raises where it would read the CPU's memory
        assert answer.device.type == "cuda" and answer.shape == bits.shape and answer.dtype == torch.bool


def test_from_flex_by_head():
    contract = tt.from_flex(lambda b, h, q, kv: (q >= kv) & ((h > 0) | (q - kv < 4)), q_len=64, num_q_heads=2, dim_qk=8)
    assert [head if isinstance(head, str) else head["expr"] for head in contract.mask] == [
        "causal and window(3, 0)", "causal",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["causal and documents", "causal and documents and (window(15, 0) or sink(4, document))",
                                  "documents and valid", "chunk(24) or prefix(8)", "causal and (window(7, 0) or sink(3))"])  # fmt: skip
def test_to_flex_is_the_same_mask(rng, text):
    from torch.nn.attention.flex_attention import flex_attention

    attn = prepare(text)
    batch = {}
    if "documents" in text:
        batch["doc_ids"] = random_documents(rng, B, T, 4)
    if "valid" in text:
        batch["valid_tokens"] = [T, T - 20]
    plan = attn.plan(**batch)
    q, k, v = (torch.from_numpy(rng.standard_normal((B, H, T, D), np.float32)) for _ in range(3))
    got = flex_attention(q, k, v, block_mask=tt.to_flex(plan, block_size=32))
    want = tt.attention(q, k, v, plan)
    if "valid" in text:  # FlexAttention leaves rows that see nothing to chance
        got, want = got[0], want[0]
    torch.testing.assert_close(got, want, rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match="does not know its batch"):
        tt.to_flex(attn.plan_from_bytes(plan.to_bytes()))


class _nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False
