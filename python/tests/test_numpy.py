"""The NumPy interface: numbers beside the textbook's, views without copies, contracts, plans and receipts."""

import json
import tracemalloc
import warnings

import ml_dtypes
import numpy as np
import pytest
from conftest import causal_documents, dense, random_documents

import tessera
from tessera import mask as m

B, H, KV, T, D, DV = 2, 4, 2, 200, 16, 24


def contract(**more):
    fields = dict(batch=B, q_len=T, num_q_heads=H, num_kv_heads=KV, dim_qk=D, dim_v=DV, mask=m.causal & m.documents,
                  tile=64, tile_reason="a small test")
    return tessera.Contract(**(fields | more))


def inputs(rng, dtype=np.float32, layout="bhtd"):
    shapes = [(B, H, T, D), (B, KV, T, D), (B, KV, T, DV), (B, H, T, DV)]
    if layout == "bthd":
        shapes = [(b, t, h, d) for b, h, t, d in shapes]
    return [rng.standard_normal(shape, np.float32).astype(dtype) for shape in shapes]


def close(got, want, dtype=np.float32):
    eps = {np.dtype(np.float32): 2e-6, np.dtype(np.float16): 2e-3}.get(np.dtype(dtype), 2e-2)
    got, want = np.asarray(got, np.float64), np.asarray(want)
    assert got.shape == want.shape
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
    finite = np.isfinite(want)
    size = max(1.0, np.abs(want[finite]).max(initial=0))
    np.testing.assert_allclose(got[finite], want[finite], rtol=0, atol=16 * eps * size)


@pytest.mark.parametrize("layout", ["bhtd", "bthd"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_forward_and_backward_equal_dense(rng, dtype, layout):
    attn = tessera.Engine().prepare(contract(dtype=dtype))
    ids = random_documents(rng, B, T, 4)
    bound = attn.bind(attn.plan(doc_ids=ids))
    q, k, v, dout = inputs(rng, dtype, layout)
    o, lse = bound.forward(q, k, v, layout=layout)
    assert o.dtype == dtype and o.shape == dout.shape
    dq, dk, dv = bound.backward(q, k, v, o, lse, dout, layout=layout)

    def bhtd(x):
        return x if layout == "bhtd" else x.swapaxes(1, 2)

    want = dense(*map(bhtd, (q, k, v)), causal_documents(ids, H), dout=bhtd(dout))
    for got, expected in zip((bhtd(o), lse, bhtd(dq), bhtd(dk), bhtd(dv)), want):
        close(got, expected, dtype)


def test_bfloat16_as_bits_is_the_same(rng):
    attn = tessera.Engine().prepare(contract(dtype="bf16", mask=m.causal))
    bound = attn.bind(attn.plan())
    q, k, v, _ = inputs(rng, ml_dtypes.bfloat16)
    bits = [x.view(np.uint16) for x in (q, k, v)]
    assert np.array_equal(bound.forward(*bits).o, bound.forward(q, k, v).o.view(np.uint16))


def test_softcap_and_sink_logits(rng):
    attn = tessera.Engine().prepare(contract(mask=m.causal, softcap=5.0, scale=0.4, sink_logits=True))
    bound = attn.bind(attn.plan())
    q, k, v, dout = inputs(rng)
    sinks = rng.standard_normal(H, np.float32)
    o, lse = bound.forward(q, k, v, sink_logits=sinks)
    back = bound.backward(q, k, v, o, lse, dout, sink_logits=sinks)
    allowed = np.broadcast_to(np.tri(T, dtype=bool), (B, H, T, T))
    want = dense(q, k, v, allowed, scale=0.4, softcap=5.0, sinks=sinks.astype(np.float64), dout=dout)
    for got, expected in zip((o, lse, *back), want):
        close(got, expected)
    assert back.dsink_logits.shape == (H,) and np.isfinite(back.dsink_logits).all()


def test_valid_tokens_leave_the_rest_empty(rng):
    attn = tessera.Engine().prepare(contract(mask=m.causal & m.valid))
    valid = np.array([0, 150], np.int32)
    q, k, v, _ = inputs(rng)
    o, lse = attn.bind(attn.plan(valid_tokens=valid)).forward(q, k, v)
    inside = np.arange(T) < valid[:, None]
    allowed = np.tri(T, dtype=bool) & inside[:, :, None] & inside[:, None, :]
    want = dense(q, k, v, np.broadcast_to(allowed[:, None], (B, H, T, T)))
    close(o, want[0])
    close(lse, want[1])
    assert (o[0] == 0).all() and np.isneginf(lse[0]).all()


def test_heads_differ(rng):
    attn = tessera.Engine().prepare(contract(mask=[m.causal, "full", m.causal & m.window(15, 0), m.chunk(32)]))
    q, k, v, _ = inputs(rng)
    o, lse = attn.bind(attn.plan()).forward(q, k, v)
    i, j = np.arange(T)[:, None], np.arange(T)[None]
    heads = [j <= i, np.ones((T, T), bool), (j <= i) & (j >= i - 15), i // 32 == j // 32]
    want = dense(q, k, v, np.broadcast_to(np.stack(heads), (B, H, T, T)))
    close(o, want[0])
    close(lse, want[1])


@pytest.mark.parametrize("per_head", [False, True])
def test_a_function_and_an_array_become_a_bitmap(rng, tmp_path, per_head):
    bits = rng.random((H, T, T) if per_head else (T, T)) < 0.3
    wide = np.broadcast_to(bits, (H, T, T))
    with pytest.warns(tessera.BitmapWarning, match=f"{bits.size:,} single pairs"):
        array = contract(mask=m.causal & m.bitmap(bits))
    with pytest.warns(tessera.BitmapWarning):
        function = m.bitmap((lambda h, q, kv: wide[h, q, kv]) if per_head else (lambda q, kv: bits[q, kv]))
        called = contract(mask=m.causal & function)
    assert array.key == called.key
    attn = tessera.Engine().prepare(array)
    q, k, v, _ = inputs(rng)
    o, _ = attn.bind(attn.plan()).forward(q, k, v)
    close(o, dense(q, k, v, np.broadcast_to(wide & np.tri(T, dtype=bool), (B, H, T, T)))[0])
    array.save(tmp_path / "contract.toml")
    assert tessera.Contract.load(tmp_path / "contract.toml").key == array.key


def test_routed_from_q_and_k(rng):
    routing = dict(query_tile=64, selected_block=64, block_stride=32, compression_block=32, top_n=2, kv_tile=64)
    attn = tessera.Engine().prepare(contract(q_len=512, mask=m.causal & m.blocks, routing=routing))
    q = rng.standard_normal((B, H, 512, D), np.float32)
    k = rng.standard_normal((B, KV, 512, D), np.float32)
    v = rng.standard_normal((B, KV, 512, DV), np.float32)
    with pytest.raises(tessera.TesseraError) as caught:
        attn.plan()
    assert caught.value.code == "TSR-P009"
    plan = attn.plan(q=q, k=k)
    assert plan != attn.plan(q=-q, k=k)
    o, _ = attn.bind(plan).forward(q, k, v)
    assert np.isfinite(o).all()


def test_documents_in_three_forms_are_one_plan():
    attn = tessera.Engine().prepare(contract())
    ids = np.repeat(np.array([[0, 1, 2], [0, 1, 1]], np.int32), (50, 100, 50), axis=1)
    by_ids = attn.plan(doc_ids=ids)
    assert attn.plan(doc_lengths=[[50, 100, 50], [50, 150]]) == by_ids
    assert attn.plan(cu_seqlens=[[0, 50, 150, 200], np.array([0, 50, 200])]) == by_ids
    assert attn.plan(doc_ids=ids.astype(np.int64)) == by_ids
    assert attn.plan(doc_ids=ids.astype(">i4")) == by_ids
    assert attn.plan(doc_ids=ids.tolist()) == by_ids
    assert attn.plan(q_doc_ids=ids, kv_doc_ids=ids) == by_ids


def test_q_and_kv_of_different_lengths(rng):
    c = tessera.Contract(q_len=64, kv_len=100, dim_qk=8, mask="documents", tile=32, tile_reason="a small test")
    attn = tessera.Engine().prepare(c)
    q_ids, kv_ids = np.arange(64, dtype=np.int32) // 16, np.arange(100, dtype=np.int32) // 25
    q, k = rng.standard_normal((1, 1, 64, 8), np.float32), rng.standard_normal((1, 1, 100, 8), np.float32)
    o, _ = attn.bind(attn.plan(q_doc_ids=q_ids, kv_doc_ids=kv_ids)).forward(q, k, k)
    close(o, dense(q, k, k, (q_ids[:, None] == kv_ids)[None, None])[0])


def test_plan_arrays_are_views_and_say_what_json_says():
    attn = tessera.Engine().prepare(contract())
    plan = attn.plan(doc_lengths=[[50, 150], [200]])
    arrays, said = plan.to_numpy(), plan.to_dict()
    low = plan._native.bytes().ctypes.data
    high = low + plan._native.bytes().nbytes
    for name, array in arrays.items():
        assert not array.flags.writeable
        assert array.size == 0 or low <= array.ctypes.data and array.ctypes.data + array.nbytes <= high, name
    assert arrays["forward.slots"].dtype == np.uint32 and arrays["forward.row_offsets"].dtype == np.uint64
    assert arrays["q_segments"][:, 1].tolist() == [50, 200, 200]
    assert len(arrays["items"]) == arrays["cleanup_offsets"][-1] and arrays["items"]["kind"].max() <= 2
    assert said["fingerprint"] == plan.fingerprint
    del plan, attn  # the views keep the plan
    assert arrays["forward.row_offsets"][-1] == len(arrays["forward.slots"])


def test_plan_saved_and_loaded_runs_the_same(rng, tmp_path):
    attn = tessera.Engine().prepare(contract())
    plan = attn.plan(doc_ids=random_documents(rng, B, T, 3))
    plan.save(tmp_path / "a.plan")
    loaded = attn.load_plan(tmp_path / "a.plan")
    assert loaded == plan and loaded.to_bytes() == plan.to_bytes()
    q, k, v, _ = inputs(rng)
    assert np.array_equal(attn.bind(loaded).forward(q, k, v).o, attn.bind(plan).forward(q, k, v).o)
    assert [path.name for path in tmp_path.iterdir()] == ["a.plan"]


def test_nothing_is_copied(rng):
    """Strided views of one buffer in, a caller's own memory out; and no Python memory of a tensor's size is taken."""
    attn = tessera.Engine().prepare(contract(num_kv_heads=H, dim_v=D, mask=m.causal))
    bound = attn.bind(attn.plan())
    packed = rng.standard_normal((B, T, 3, H, D), np.float32)
    q, k, v = (packed[:, :, i].swapaxes(1, 2) for i in range(3))
    out, lse = np.empty((B, T, H, D), np.float32), np.empty((B, H, T), np.float32)
    bound.forward(q, k, v, out=out.swapaxes(1, 2), lse=lse)
    tracemalloc.start()
    result = bound.forward(q, k, v, out=out.swapaxes(1, 2), lse=lse)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.o.ctypes.data == out.ctypes.data and result.lse is lse
    assert peak < out.nbytes / 4, peak
    close(result.o, dense(q, k, v, np.broadcast_to(np.tri(T, dtype=bool), (B, H, T, T)))[0])
    # Without `out` the result has the memory order of q.
    assert bound.forward(q, k, v).o.swapaxes(1, 2).flags.c_contiguous


def test_contract_from_every_form(tmp_path):
    c = contract(softcap=30.0, offset=0, capacity={"width": "pow2"})
    assert tessera.Contract.parse(c.text) == c
    assert tessera.Contract.parse(json.dumps(c.to_dict())) == c
    assert tessera.Contract.from_dict(c.to_dict()) == c
    c.save(tmp_path / "c.toml")
    assert tessera.Contract.load(tmp_path / "c.toml") == c
    assert {c: 1}[tessera.Contract.parse(c.text)] == 1
    assert c.shape.o == (B, H, T, DV) and c.shape.dtype == "f32"
    assert contract(dtype=np.float16).shape.dtype == "f16"
    assert contract(mask="causal").key == contract(mask=m.causal & m.window(T, 0)).key


def test_mask_expressions():
    assert str(m.causal & m.documents & (m.window(1023, 0) | m.sink(4, document=True))) == (
        "causal and documents and (window(1023, 0) or sink(4, document))"
    )
    assert str(m.causal | m.prefix(8) & m.valid) == "causal or prefix(8) and valid"
    assert str((m.causal | m.prefix(8)) & m.valid) == "(causal or prefix(8)) and valid"
    assert str("causal" & m.valid) == "(causal) and valid"
    for wrong in (lambda: m.causal and m.valid, lambda: ~m.causal, lambda: m.window(1.5, 0), lambda: m.causal & 3):
        with pytest.raises(TypeError):
            wrong()


def test_receipts():
    attn = tessera.Engine().prepare(contract(mask=m.causal))
    bound = attn.bind(attn.plan())
    q, k, v, dout = inputs(np.random.default_rng(0))
    assert bound.forward(q, k, v).receipt is None
    result = bound.forward(q, k, v, digests=True)
    receipt = result.receipt
    assert receipt.ok and receipt["executed"] == bound.lane == attn.lane == "cpu"
    assert len(receipt["output_digest"]) == 32 and receipt["input_source"] == "numpy"
    assert str(receipt) in receipt._repr_html_() and json.loads(receipt.json) == receipt.to_dict()
    back = bound.backward(q, k, v, result.o, result.lse, dout, receipt=True)
    assert back.receipt.ok
    refused = {d["lane"]: d["reason"] for d in attn.decisions if not d["accepted"]}
    assert "cpu" not in refused and all(refused.values())


def test_html_escapes_what_a_contract_may_say():
    from tessera._receipt import _cell

    hostile = "<script>alert(1)</script>"
    assert "<script" not in _cell(hostile) and "<script" not in _cell({"a": [hostile]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        c = contract(mask=m.causal)
    plan = tessera.Engine().prepare(c).plan()
    assert "<table>" in plan._repr_html_() and "<script" not in plan._repr_html_()


def test_a_plan_shows_itself(tmp_path):
    contract = tessera.Contract(q_len=300, dim_qk=32, mask="causal and documents")
    plan = tessera.Engine().prepare(contract).plan(doc_lengths=[100, 200])
    view = plan.show(tmp_path / "plan.html", open=False)
    text = view.path.read_text(encoding="utf-8")
    assert view.path == tmp_path / "plan.html" and plan.fingerprint in text and text.lower().startswith("<!doctype html>")
    # A notebook's frame has the page as an attribute: nothing of it gets out.
    assert view._repr_html_().count("<") == 2 and 'sandbox="allow-scripts"' in view._repr_html_()
    assert plan.show(open=False).path.exists()
    with pytest.raises(OSError, match="nowhere"):
        plan.show(tmp_path / "nowhere" / "plan.html", open=False)


def test_versions(root):
    assert tessera.__version__ == tessera._native.version()
    text = root / "pyproject.toml"
    if text.exists():
        assert f'version = "{tessera.__version__}"' in text.read_text()
