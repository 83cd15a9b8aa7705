"""Whatever is given: the engine's error, or a ValueError or TypeError that names the argument. Never a crash."""

import numpy as np
import pytest

import tessera
from tessera import mask as m

SHAPE = (1, 2, 64, 8)


@pytest.fixture
def bound():
    attn = tessera.Engine().prepare(tessera.Contract(q_len=64, num_q_heads=2, dim_qk=8, mask=m.causal))
    return attn.bind(attn.plan())


def good():
    return np.ones(SHAPE, np.float32)


def unaligned():
    raw = np.zeros(np.prod(SHAPE) * 4 + 1, np.uint8)
    return raw[1:].view(np.float32).reshape(SHAPE)


WRONG = {
    "float64": (lambda: np.ones(SHAPE), TypeError, "float64"),
    "integers": (lambda: np.ones(SHAPE, np.int32), TypeError, "int32"),
    "objects": (lambda: np.ones(SHAPE, object), TypeError, "object"),
    "strings": (lambda: np.full(SHAPE, "a"), TypeError, "U1"),
    "complex": (lambda: np.ones(SHAPE, np.complex64), TypeError, "complex64"),
    "big-endian": (lambda: np.ones(SHAPE, ">f4"), TypeError, "byte order"),
    "another float": (lambda: np.ones(SHAPE, np.float16), tessera.TesseraError, "F32 expected"),
    "unaligned": (unaligned, (tessera.TesseraError, TypeError), "multiple of 4|strides"),
    "field of a packed struct": (
        lambda: np.zeros(SHAPE, np.dtype([("a", "u1"), ("x", "<f4")]))["x"], TypeError, "strides"),
    "last axis strided": (lambda: np.ones((1, 2, 64, 16), np.float32)[..., ::2], ValueError, "last axis"),
    "last axis reversed": (lambda: good()[..., ::-1], ValueError, "last axis"),
    "transposed dims": (lambda: np.ones((1, 2, 8, 64), np.float32).swapaxes(2, 3), ValueError, "last axis"),
    "negative stride": (lambda: good()[:, :, ::-1], tessera.TesseraError, "strides of 0 or more"),
    "shape": (lambda: np.ones((1, 2, 64, 9), np.float32), ValueError, r"\[1, 2, 64, 8\] expected"),
    "another layout": (lambda: np.ones((1, 64, 2, 8), np.float32), ValueError, r"got \[1, 64, 2, 8\]"),
    "rank": (lambda: np.ones((2, 64, 8), np.float32), ValueError, "expected"),
    "empty": (lambda: np.ones((0, 2, 64, 8), np.float32), ValueError, "expected"),
    "a list": (lambda: good().tolist(), TypeError, "numpy.ndarray expected, got list"),
    "a number": (lambda: 3.0, TypeError, "numpy.ndarray"),
    "nothing": (lambda: None, tessera.TesseraError, "no such tensor"),
}  # fmt: skip


@pytest.mark.parametrize("name", "qkv")
@pytest.mark.parametrize("wrong", WRONG)
def test_forward_refuses(bound, wrong, name):
    make, error, text = WRONG[wrong]
    arrays = {"q": good(), "k": good(), "v": good()}
    arrays[name] = make()
    out = np.full(SHAPE, 7, np.float32)
    with pytest.raises(error, match=text) as caught:
        bound.forward(**arrays, out=out)
    assert name in str(caught.value)
    assert (out == 7).all(), "nothing was written"


@pytest.mark.parametrize("wrong", [w for w in WRONG if w not in ("nothing", "another float")])
def test_backward_refuses(bound, wrong):
    make, error, text = WRONG[wrong]
    o, lse = bound.forward(good(), good(), good())
    with pytest.raises(error, match=text):
        bound.backward(good(), good(), good(), o, lse, make())


def test_outputs_refused(bound):
    x = good()
    read_only = good()
    read_only.flags.writeable = False
    bound.forward(read_only, read_only, read_only)  # as inputs they are fine
    with pytest.raises(ValueError, match="o: .*read-only"):
        bound.forward(x, x, x, out=read_only)
    with pytest.raises(tessera.TesseraError, match="shares some with q"):
        bound.forward(x, good(), good(), out=x)
    with pytest.raises(tessera.TesseraError, match="overlap"):
        bound.forward(x, x, x, out=np.lib.stride_tricks.as_strided(good(), SHAPE, (0, 0, 32, 4)))
    with pytest.raises(TypeError, match="lse: float32"):
        bound.forward(x, x, x, lse=np.zeros((1, 2, 64)))
    with pytest.raises(ValueError, match="lse: 128 numbers"):
        bound.forward(x, x, x, lse=np.zeros((1, 2, 63), np.float32))
    with pytest.raises(ValueError, match="lse: .*read-only"):
        bound.forward(x, x, x, lse=_frozen())
    with pytest.raises(tessera.TesseraError, match="sink_logits"):
        bound.forward(x, x, x, sink_logits=np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="layout"):
        bound.forward(x, x, x, layout="thd")


def test_exchanged_axes_are_recognised(bound):
    x = good()
    turned = np.ascontiguousarray(x.transpose(0, 2, 1, 3))
    for given, layout in ((turned, "bhtd"), (x, "bthd")):
        with pytest.raises(ValueError, match=r"q: shape \[1, 2, 64, 8\] expected.*with heads and tokens exchanged it fits: see layout="):
            bound.forward(given, given, given, layout=layout)
    with pytest.raises(ValueError, match=r"got \[1, 2, 8, 64\]$"):
        bound.forward(x.reshape(1, 2, 8, 64), x, x)


def _frozen():
    lse = np.zeros((1, 2, 64), np.float32)
    lse.flags.writeable = False
    return lse


def test_a_failed_call_leaves_its_receipt(bound):
    with pytest.raises(tessera.TesseraError) as caught:
        bound.forward(good(), good(), None, receipt=True)
    assert caught.value.code == "TSR-R001" and caught.value.violations[0][0] == "v"
    assert not caught.value.receipt.ok and caught.value.receipt["failed_at"] == "forward"


def test_contract_errors_have_code_and_violations():
    with pytest.raises(tessera.TesseraError) as caught:
        tessera.Contract(q_len=0, dim_qk=-1, num_q_heads=6, num_kv_heads=4, mask="causal")
    assert caught.value.code == "TSR-C003" and len(caught.value.violations) >= 3
    assert isinstance(caught.value, ValueError) and "num_kv_heads" in str(caught.value)
    for make, code in [
        (lambda: tessera.Contract(q_len=64, dim_qk=8, mask="causal and"), "TSR-C004"),
        (lambda: tessera.Contract(q_len=64, dim_qk=8, mask="caussal"), "TSR-C004"),
        (lambda: tessera.Contract(q_len=64, dim_qk=8, mask="causal", dtype="f64"), "TSR-C002"),
        (lambda: tessera.Contract(q_len="64", dim_qk=8, mask="causal"), "TSR-C002"),
        (lambda: tessera.Contract(q_len=64, dim_qk=8, mask='bitmap("missing.npy")'), "TSR-C005"),
        (lambda: tessera.Contract(q_len=64, dim_qk=8, mask="causal", capacity={"wide": 1}), "TSR-C002"),
        (lambda: tessera.Contract.parse("version = "), "TSR-C001"),
        (lambda: tessera.Contract.from_dict({"version": 1, "shapes": {}}), "TSR-C002"),
    ]:
        with pytest.raises(tessera.TesseraError) as caught:
            make()
        assert caught.value.code == code, caught.value
    with pytest.raises(TypeError):
        m.bitmap(np.zeros((4, 4)))
    with pytest.raises(TypeError, match="booleans"):
        tessera.Contract(q_len=64, dim_qk=8, mask=m.bitmap(lambda q, kv: q - kv))


def test_batches_refused():
    c = tessera.Contract(q_len=64, dim_qk=8, mask="causal and documents and valid")
    attn = tessera.Engine().prepare(c)
    ids, valid = np.zeros((1, 64), np.int32), np.array([64])
    assert attn.plan(doc_ids=ids, valid_tokens=valid).tiles().partial == 1
    for given, error in [
        (dict(doc_ids=ids), tessera.TesseraError),  # validity is missing
        (dict(valid_tokens=valid), tessera.TesseraError),
        (dict(doc_ids=ids[:, :63], valid_tokens=valid), tessera.TesseraError),
        (dict(doc_ids=np.zeros((2, 64), np.int32), valid_tokens=valid), tessera.TesseraError),
        (dict(doc_ids=ids.astype(np.float32), valid_tokens=valid), TypeError),
        (dict(doc_ids=ids.astype(np.int64) + 2**40, valid_tokens=valid), ValueError),
        (dict(doc_ids=np.zeros((1, 1, 64), np.int32), valid_tokens=valid), ValueError),
        (dict(doc_ids=np.int32(3), valid_tokens=valid), ValueError),
        (dict(doc_lengths=[[65]], valid_tokens=valid), tessera.TesseraError),
        (dict(doc_lengths=[[-1, 65]], valid_tokens=valid), tessera.TesseraError),
        (dict(doc_lengths=["a"], valid_tokens=valid), TypeError),
        (dict(cu_seqlens=[[64, 0]], valid_tokens=valid), tessera.TesseraError),
        (dict(doc_ids=ids, valid_tokens=[65]), tessera.TesseraError),
        (dict(doc_ids=ids, valid_tokens=[1, 2]), tessera.TesseraError),
        (dict(doc_ids=ids, valid_tokens=valid, valid_slots=[1]), TypeError),
        (dict(doc_ids=ids, valid_tokens=valid, picks=np.zeros((1, 1, 1, 1), np.int32)), TypeError),
        (dict(doc_ids=ids, valid_tokens=valid, picks=np.zeros((1, 1), np.int32), block_tokens=4), tessera.TesseraError),
        (dict(doc_ids=[[0, 1]] * 3, valid_tokens=valid), tessera.TesseraError),
    ]:
        with pytest.raises(error):
            attn.plan(**given)
    reappears = np.zeros((1, 64), np.int32)
    reappears[0, 20:30] = 1
    with pytest.raises(tessera.TesseraError) as caught:
        attn.plan(doc_ids=reappears, valid_tokens=valid)
    assert caught.value.code == "TSR-C007"


def test_plans_of_another_contract_and_damaged_bytes(tmp_path):
    engine = tessera.Engine()
    one = engine.prepare(tessera.Contract(q_len=64, dim_qk=8, mask="causal"))
    other = engine.prepare(tessera.Contract(q_len=128, dim_qk=8, mask="causal"))
    plan = one.plan()
    with pytest.raises(tessera.TesseraError) as caught:
        other.bind(plan)
    assert caught.value.code == "TSR-P007"
    with pytest.raises(tessera.TesseraError) as caught:
        other.plan_from_bytes(plan.to_bytes())
    assert caught.value.code == "TSR-P007"
    data = bytearray(plan.to_bytes())
    for cut in (0, 7, 100, len(data) - 1):
        with pytest.raises(tessera.TesseraError):
            one.plan_from_bytes(bytes(data[:cut]))
    data[300] ^= 255
    with pytest.raises(tessera.TesseraError) as caught:
        one.plan_from_bytes(bytes(data))
    assert caught.value.code == "TSR-P005"
    with pytest.raises(FileNotFoundError):
        one.load_plan(tmp_path / "none")
    with pytest.raises(TypeError):
        one.bind("plan")
    forward = engine.prepare(one.contract, passes="forward")
    bound = forward.bind(forward.plan())
    x = np.ones((1, 1, 64, 8), np.float32)
    o, lse = bound.forward(x, x, x)
    with pytest.raises(tessera.TesseraError):
        bound.backward(x, x, x, o, lse, x)


def test_prepare_refuses():
    engine = tessera.Engine()
    c = tessera.Contract(q_len=64, dim_qk=8, mask="causal")
    for given, error, text in [
        (dict(lane="gpu"), tessera.TesseraError, "TSR-L001"),
        (dict(isa="mmx"), tessera.TesseraError, "TSR-L004"),
        (dict(target="abacus"), tessera.TesseraError, "TSR-C008"),
        (dict(passes="sideways"), ValueError, "passes"),
        (dict(threads=0), ValueError, "threads"),
        (dict(memory="disk"), ValueError, "memory"),
        (dict(tile=(0, 5)), tessera.TesseraError, "TSR-P002"),
        (dict(exclude=["gpu"]), tessera.TesseraError, "TSR-L001"),
    ]:
        with pytest.raises(error, match=text):
            attn = engine.prepare(c, **given)
            attn.plan()
    with pytest.raises(TypeError, match="Contract"):
        engine.prepare("causal")
    refused = engine.prepare(c, exclude=["cpu", "reference", "xla_chunked"])
    with pytest.raises(tessera.TesseraError, match="TSR-L002"):
        refused.check()


def test_a_mask_that_is_a_function_or_an_array_names_bitmap():
    for mask in (lambda q, kv: q >= kv, np.ones((64, 64), bool)):
        with pytest.raises(TypeError, match=r"mask: text, an expression .* goes into tessera.mask.bitmap\(\)"):
            tessera.Contract(q_len=64, dim_qk=8, mask=mask)


def test_odd_arguments_are_named():
    """What is not even of the right kind: an error that says which argument, never one of the binding's own words."""
    engine = tessera.Engine()
    c = tessera.Contract(q_len=64, num_q_heads=2, dim_qk=8, mask="causal and documents")
    attn = engine.prepare(c)
    plan = attn.plan(doc_lengths=[64])
    bound, x = attn.bind(plan), good()
    masked = np.ma.masked_array(np.zeros((1, 64), np.int32), mask=True)
    for call, error, text in [
        (lambda: tessera.Contract(q_len=64, dim_qk=8, mask=None), TypeError, "mask: .*NoneType"),
        (lambda: tessera.Contract(q_len=64, dim_qk=8, mask=3), TypeError, "mask: .*int"),
        (lambda: tessera.Contract(q_len=float("nan"), dim_qk=8, mask="causal"), ValueError, "finite"),
        (lambda: tessera.Contract(q_len=64, dim_qk=8, mask="causal", scale=np.inf), ValueError, "finite"),
        (lambda: tessera.Contract(q_len=64, dim_qk=8, mask="causal", tile=(1, 2, 3)), ValueError, "tile: "),
        (lambda: tessera.Contract.parse(b"version = 1"), TypeError, "text: "),
        (lambda: tessera.Contract.parse(c.text + "\0 mask"), ValueError, "zero"),
        (lambda: tessera.Contract.from_dict(None), TypeError, "fields: "),
        (lambda: tessera.Contract.from_dict({"mask": {"expr": m.bitmap(np.ones((4, 4), bool))}}), tessera.TesseraError, "shape"),
        (lambda: tessera.Contract(q_len=-4, dim_qk=8, mask=m.bitmap(lambda q, kv: q >= kv)), ValueError, "q_len|shape"),
        (lambda: engine.prepare(c, exclude=[1]), TypeError, "exclude: text"),
        (lambda: engine.prepare(c, exclude="cpu"), TypeError, "exclude: "),
        (lambda: engine.prepare(c, lane=3), TypeError, "lane: text"),
        (lambda: engine.prepare(c, ordinal="a"), TypeError, "ordinal: an int"),
        (lambda: engine.prepare(c, threads="2"), ValueError, "threads: "),
        (lambda: engine.prepare(c, threads=2**70), TypeError, "threads: an int"),
        (lambda: engine.prepare(c, target=3), TypeError, "target: "),
        (lambda: engine.prepare(c, tile=(1, 2, 3)), ValueError, "tile: "),
        (lambda: attn.plan(doc_ids=masked), TypeError, "doc_ids: a masked array"),
        (lambda: attn.plan(doc_ids=np.zeros((1, 0), np.int32)), tessera.TesseraError, "doc_ids"),
        (lambda: attn.plan(doc_lengths=64), TypeError, "doc_lengths: "),
        (lambda: attn.plan(doc_lengths={}), TypeError, "doc_lengths: "),
        (lambda: attn.plan_from_bytes(10), TypeError, "data: bytes"),
        (lambda: attn.plan_from_bytes("plan"), TypeError, "data: bytes"),
        (lambda: plan.show(receipt="r", open=False), TypeError, "receipt: "),
        (lambda: bound.forward(np.ma.masked_array(x), x, x), TypeError, "q: a masked array"),
        (lambda: bound.forward(None, None, None), tessera.TesseraError, "q: "),
        (lambda: bound.backward(None, None, None, None, None, None), tessera.TesseraError, "q: "),
    ]:  # fmt: skip
        with pytest.raises(error, match=text):
            call()
    # More names than anybody has, and options after them.
    assert engine.prepare(c, exclude=["cuda"] * 200, plugin="none", ledger="").lane == attn.lane
    assert attn.plan(doc_ids=np.zeros((1, 64), ">i4")) == attn.plan(doc_ids=np.zeros((1, 64), np.int32))


def test_native_classes_cannot_be_made_empty():
    for name in ("Contract", "Engine", "Attention", "Plan", "Bound", "Receipt", "Batch", "Export"):
        with pytest.raises(TypeError):
            getattr(tessera._native, name)()


def test_bridge_without_jax():
    """A reason, where the interpreter that the engine finds itself in has no JAX."""
    try:
        import jax  # noqa: F401
    except ImportError:
        pass
    else:
        pytest.skip("JAX is installed in this environment")
    attn = tessera.Engine().prepare(tessera.Contract(q_len=64, num_q_heads=2, dim_qk=8, mask=m.causal), lane="call_jax")
    with pytest.raises(tessera.TesseraError, match="call_jax.no_jax") as refused:
        attn.bind(attn.plan())
    assert refused.value.code == "TSR-L002"
