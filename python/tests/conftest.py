"""Random numbers with a seed that is printed, and attention as the textbook has it."""

import os
import pathlib
import time

import numpy as np
import pytest

SEED = int(os.environ.get("TESSERA_SEED", time.time_ns() % 2**32))


def pytest_report_header(config):
    return f"TESSERA_SEED={SEED} repeats the random inputs of this run"


@pytest.fixture
def rng():
    return np.random.default_rng(SEED)


@pytest.fixture
def root():
    """The source tree, which the tests of an installed package may lie in."""
    return pathlib.Path(__file__).resolve().parents[2]


def dense(q, k, v, allowed, *, scale=None, softcap=0.0, sinks=None, dout=None):
    """Attention in float64 over a [batch, heads, q, kv] boolean mask: o and lse, and with dout also the gradients."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    raw = np.einsum("bhqd,bhkd->bhqk", q, wide_k) * scale
    capped = softcap * np.tanh(raw / softcap) if softcap else raw
    score = np.where(allowed, capped, -np.inf)
    top = score.max(-1, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, sinks[None, :, None, None])
    safe = np.where(np.isfinite(top), top, 0)
    weight = np.exp(score - safe)
    total = weight.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks[None, :, None, None] - safe)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + safe)[..., 0]
    p = weight / np.where(total > 0, total, 1)
    o = np.einsum("bhqk,bhkd->bhqd", p, wide_v)
    if sinks is None:
        lse = np.where(allowed.any(-1), lse, -np.inf)
    if dout is None:
        return o, lse
    dout = np.asarray(dout, np.float64)
    dp = np.einsum("bhqd,bhkd->bhqk", dout, wide_v)
    delta = (o * dout).sum(-1, keepdims=True)
    ds = p * (dp - delta)
    if softcap:
        ds = ds * (1 - (capped / softcap) ** 2)
    dq = np.einsum("bhqk,bhkd->bhqd", ds, wide_k) * scale

    def by_group(x):
        return x.reshape(x.shape[0], k.shape[1], group, *x.shape[2:]).sum(2)

    dk = by_group(np.einsum("bhqk,bhqd->bhkd", ds, q) * scale)
    dv = by_group(np.einsum("bhqk,bhqd->bhkd", p, dout))
    return o, lse, dq, dk, dv


def causal_documents(ids, heads):
    """[batch, heads, q, kv]: causal, and of one document."""
    length = ids.shape[1]
    same = (ids[:, :, None] == ids[:, None, :]) & (ids[:, :, None] >= 0)
    return np.broadcast_to((same & np.tri(length, dtype=bool))[:, None], (len(ids), heads, length, length))


def random_documents(rng, batch, length, count):
    """Ids of documents of random lengths, [batch, length] int32."""
    ids = np.empty((batch, length), np.int32)
    for row in range(batch):
        cuts = np.sort(rng.choice(np.arange(1, length), count - 1, replace=False))
        ids[row] = np.searchsorted(cuts, np.arange(length), side="right")
    return ids
