"""Tessera: block-sparse attention. A contract says which tokens may attend to which; an engine plans and runs it.

>>> import numpy as np, tessera
>>> from tessera import mask as m
>>> contract = tessera.Contract(q_len=1024, num_q_heads=2, dim_qk=64, mask=m.causal & m.documents)
>>> attn = tessera.Engine().prepare(contract)
>>> bound = attn.bind(attn.plan(doc_lengths=[300, 724]))
>>> x = np.random.default_rng(0).standard_normal((1, 2, 1024, 64), np.float32)
>>> o, lse = bound.forward(x, x, x)
>>> o.shape, bound.lane
((1, 2, 1024, 64), 'cpu')

`tessera.torch` and `tessera.jax` take the tensors of those; neither is needed.
"""

from . import _native, mask
from ._contract import Contract, Shape
from ._engine import Attention, BackwardResult, Bound, Engine, ForwardResult
from ._errors import BitmapWarning, TesseraError
from ._plan import Plan, TileCounts
from ._receipt import Receipt
from ._view import View

__version__ = _native.version()
__all__ = [
    "Attention", "BackwardResult", "BitmapWarning", "Bound", "Contract", "Engine", "ForwardResult", "Plan", "Receipt",
    "Shape", "TesseraError", "TileCounts", "View", "mask",
]  # fmt: skip
