"""Masks to and from PyTorch's FlexAttention."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, Callable

import numpy as np
import torch

from . import _native
from . import mask as m
from ._contract import Contract

if TYPE_CHECKING:
    from ._plan import Plan


def from_flex(
    mask: Any,
    *,
    q_len: int | None = None,
    kv_len: int | None = None,
    batch: int | None = None,
    num_q_heads: int | None = None,
    device: Any = None,
    **more: Any,
) -> Contract:
    """A contract from a FlexAttention `mask_mod` or `BlockMask`. `more` is what else `tessera.Contract` takes.

    The function is evaluated for every pair, with indices on `device`: where the tensors are that it looks into, "cuda" for
    those of a GPU. A `BlockMask` has its own, and a function alone has the CPU where nothing is said. Of a `BlockMask` its blocks count too, as FlexAttention has it: what is in no
    block is not seen, what is in a full block is, and the function decides in the others. Lengths, batch and heads are
    the `BlockMask`'s. A mask that turns out to be full or a window is written as that term; anything else becomes a
    bitmap, with a warning of its cost. What follows the batch, as documents do, is refused: say it with a term
    (`documents`, `valid`), and give the ids to `plan`.

    >>> import tessera.torch
    >>> tessera.torch.from_flex(lambda b, h, q, kv: q >= kv, q_len=512, dim_qk=64).mask
    'causal'
    """
    blocks = mask if hasattr(mask, "kv_num_blocks") else None
    if blocks is not None:
        lengths = blocks.seq_lengths
        if (q_len or lengths[0], kv_len or lengths[1]) != tuple(lengths):
            raise ValueError(f"q_len, kv_len: this BlockMask is of {lengths[0]} queries and {lengths[1]} keys")
        q_len, kv_len = lengths
        rows, heads = blocks.kv_num_blocks.shape[:2]
        batch = _count("batch", batch, rows)
        num_q_heads = _count("num_q_heads", num_q_heads, heads)
    elif not callable(mask):
        raise TypeError(f"mask: a mask_mod or a BlockMask expected, got {type(mask).__name__}")
    if q_len is None:
        raise TypeError("q_len is needed with a mask_mod")
    kv_len = q_len if kv_len is None else kv_len
    batch, num_q_heads = batch or 1, num_q_heads or 1
    if device is None:
        device = "cpu" if blocks is None else blocks.kv_num_blocks.device
    bits = _evaluate(mask if blocks is None else blocks.mask_mod, (batch, num_q_heads, q_len, kv_len), device)
    if blocks is not None:
        partial, full = _spread(blocks, blocks.kv_num_blocks, blocks.kv_indices), None
        if blocks.full_kv_num_blocks is not None:
            full = _spread(blocks, blocks.full_kv_num_blocks, blocks.full_kv_indices)
        bits &= partial
        if full is not None:
            bits |= full
    if not all(np.array_equal(bits[0], row) for row in bits[1:]):
        raise ValueError("this mask differs between batch rows: documents and valid lengths are terms of a contract, "
                         "whose ids go to plan()")  # fmt: skip
    heads = [_term(head) for head in bits[0]] if not (bits[0] == bits[0, :1]).all() else [_term(bits[0, 0])]
    if any(head is None for head in heads):
        expression: Any = m.bitmap(bits[0] if len(heads) > 1 else bits[0, 0])
    else:
        expression = heads if len(heads) > 1 else heads[0]
    return Contract(q_len=q_len, kv_len=kv_len, batch=batch, num_q_heads=num_q_heads, mask=expression, offset=0, **more)


def _count(name: str, given: int | None, own: int) -> int:
    """A BlockMask of one row or head stands for any number of them."""
    if given is not None and own not in (1, given):
        raise ValueError(f"{name}: this BlockMask has {own} of its own, got {given}")
    return own if given is None else given


def _spread(mask: Any, counts: Any, indices: Any) -> np.ndarray:
    """[rows, heads, q_len, kv_len]: the pairs of the listed blocks."""
    counts, indices = counts.cpu().numpy(), indices.cpu().numpy()
    (q_len, kv_len), (block_q, block_kv) = mask.seq_lengths, mask.BLOCK_SIZE
    listed = np.zeros((*counts.shape, max(-(-kv_len // block_kv), int(indices.max(initial=0)) + 1)), np.bool_)
    for place in np.ndindex(counts.shape):
        listed[place][indices[place][: counts[place]]] = True
    return listed.repeat(block_q, 2)[:, :, :q_len].repeat(block_kv, 3)[..., :kv_len]


def _evaluate(mask_mod: Callable[..., Any], shape: tuple[int, int, int, int], device: Any) -> np.ndarray:
    """Row of queries by row, so that no more is held than the answer."""
    out = np.empty(shape, np.bool_)
    kv = torch.arange(shape[3], device=device)
    for b in range(shape[0]):
        for h in range(shape[1]):
            for q in range(0, shape[2], 256):
                rows = torch.arange(q, min(q + 256, shape[2]), device=device)[:, None]
                answer = torch.as_tensor(mask_mod(kv.new_tensor(b), kv.new_tensor(h), rows, kv[None]))
                if answer.dtype != torch.bool:
                    raise TypeError(f"mask: the mask_mod must answer with booleans, it gave {answer.dtype}")
                out[b, h, q : q + 256] = np.broadcast_to(answer.cpu().numpy(), (len(rows), shape[3]))
    return out


def _term(bits: np.ndarray) -> m.Mask | None:
    """The mask as a term, where it is one."""
    if bits.all():
        return m.full
    row, column = np.nonzero(bits)
    if not len(row):
        return None
    left, right = int((row - column).max()), int((column - row).max())
    if left < 0 or right < 0:
        return None
    i, j = np.arange(bits.shape[0])[:, None], np.arange(bits.shape[1])[None]
    if not np.array_equal(bits, (j >= i - left) & (j <= i + right)):
        return None
    unbounded = left >= bits.shape[0] - 1
    if right == 0:
        return m.causal if unbounded else m.causal & m.window(left, 0)
    return m.window(-1 if unbounded else left, -1 if right >= bits.shape[1] - 1 else right)


def to_flex(
    plan: "Plan",
    *,
    block_size: int | tuple[int, int] = 128,
    mask_mod: Callable[..., Any] | None = None,
    device: Any = None,
) -> Any:
    """A `BlockMask` that skips what the plan skips, the batch's documents among it, without evaluating the mask.

    Its `mask_mod`, which FlexAttention asks inside partial blocks, is written from the contract's terms; a mask with
    bitmaps, picks or terms of a program's own needs one from you. `device` is where FlexAttention's tensors will be; where
    nothing is said, that is where the plan's attention takes its own: the GPU it was prepared for, else the CPU.
    """
    from torch.nn.attention.flex_attention import BlockMask

    plan = getattr(plan, "plan", plan)
    if plan._batch is None:
        raise ValueError("a plan that was loaded does not know its batch")
    attention = plan.attention
    contract = attention.contract
    if device is None:
        device = f"cuda:{attention._options['ordinal']}" if attention._is_on_gpu else "cpu"
    tile = block_size if isinstance(block_size, tuple) else (block_size, block_size)
    options = {"tile_q": tile[0], "tile_kv": tile[1], "segments": 1}
    exported = _native.new_export(contract._native, plan._batch, "flex", options).arrays()
    arrays = {name: None if array is None else torch.from_numpy(array.copy()).to(device)
              for name, array in exported.items()}  # fmt: skip
    shape = contract.shape
    if mask_mod is None:
        mask_mod = _mask_mod(plan, device)
    return BlockMask(seq_lengths=(shape.q_len, shape.kv_len), BLOCK_SIZE=tile, mask_mod=mask_mod, **arrays)


def _mask_mod(plan: "Plan", device: Any) -> Callable[..., Any]:
    fields = plan.attention.contract.to_dict()["mask"]
    if "heads" in fields:
        raise ValueError("heads differ in their masks: give mask_mod")
    offset = fields["offset"]
    arrays = plan.to_numpy()
    shape = plan.attention.contract.shape
    facts = {name: fact.to(device) for name, fact in _token_facts(arrays, shape).items()}

    def build(node: ast.expr) -> Callable[..., Any]:
        if isinstance(node, ast.BoolOp):
            sides = [build(value) for value in node.values]

            def joined(b: Any, h: Any, q: Any, kv: Any) -> Any:
                out = sides[0](b, h, q, kv)
                for side in sides[1:]:
                    out = out & side(b, h, q, kv) if isinstance(node.op, ast.And) else out | side(b, h, q, kv)
                return out

            return joined
        name = node.func.id if isinstance(node, ast.Call) else getattr(node, "id", "")
        given = node.args if isinstance(node, ast.Call) else []
        words = [one.id for one in given if isinstance(one, ast.Name)]
        numbers = [ast.literal_eval(one) for one in given if not isinstance(one, ast.Name)]
        return _term_mod(name, numbers, words, offset, facts)

    return build(ast.parse(fields["expr"], mode="eval").body)


def _token_facts(arrays: dict[str, np.ndarray], shape: Any) -> dict[str, torch.Tensor]:
    """Document and place in it of every token, and valid lengths, spread out of the plan's segments."""
    out = {}
    for side, length in (("q", shape.q_len), ("kv", shape.kv_len)):
        doc = np.full((shape.batch, length), -1, np.int64)
        place = np.full((shape.batch, length), length, np.int64)
        offsets, segments = arrays[f"{side}_segment_offsets"], arrays[f"{side}_segments"]
        for row in range(min(shape.batch, max(0, len(offsets) - 1))):
            for begin, end, of, rank in segments[int(offsets[row]) : int(offsets[row + 1])]:
                doc[row, begin:end] = of
                place[row, begin:end] = rank + np.arange(end - begin)
        valid = arrays[f"{side}_valid"].astype(np.int64)
        valid = np.where(valid < 0, length, valid) if len(valid) else np.full(shape.batch, length)
        out |= {f"{side}_doc": torch.from_numpy(doc), f"{side}_place": torch.from_numpy(place),
                f"{side}_valid": torch.from_numpy(np.ascontiguousarray(valid))}  # fmt: skip
    return out


def _term_mod(name: str, numbers: list[int], words: list[str], offset: int, facts: dict[str, torch.Tensor]) -> Any:
    def same_document(b: Any, q: Any, kv: Any) -> Any:
        return (facts["q_doc"][b, q] == facts["kv_doc"][b, kv]) & (facts["q_doc"][b, q] >= 0)

    if name == "full":
        return lambda b, h, q, kv: (q >= 0) & (kv >= 0)
    if name == "causal":
        return lambda b, h, q, kv: kv <= q + offset
    if name == "window":
        left, right = (2**40 if n < 0 else n for n in numbers)
        return lambda b, h, q, kv: (kv >= q + offset - left) & (kv <= q + offset + right)
    if name == "chunk":
        return lambda b, h, q, kv: (q + offset) // numbers[0] == kv // numbers[0]
    if name == "prefix":
        return lambda b, h, q, kv: (q + offset < numbers[0]) & (kv < numbers[0])
    if name == "sink" and not words:
        return lambda b, h, q, kv: (kv < numbers[0]) & (q >= 0)
    if name == "sink":
        return lambda b, h, q, kv: same_document(b, q, kv) & (facts["kv_place"][b, kv] < numbers[0])
    if name == "documents":
        return lambda b, h, q, kv: same_document(b, q, kv)
    if name == "valid":
        return lambda b, h, q, kv: (q < facts["q_valid"][b]) & (kv < facts["kv_valid"][b])
    raise ValueError(f"{name}: FlexAttention has no such term; give mask_mod")
