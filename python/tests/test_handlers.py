"""The CPU's handlers, called as XLA calls them, with what must be refused: an error of XLA's, with the engine's code in it, and
never a crash. Needs no JAX, so it runs under the address sanitizer too; the CUDA handlers' part is handler_check.py."""

import os

import numpy as np
import pytest
from conftest import dense
from handler_check import BF16, F32, U8, Xla, address

import tessera
from tessera import _native

SIZES = dict(batch=2, q_len=64, num_q_heads=4, num_kv_heads=2, dim_qk=16, dim_v=8, mask="causal", sink_logits=True)


class Call:
    """A program's call of one attention: its buffers by name, to be replaced by wrong ones."""

    FORWARD, RESULTS = "q k v plan sinks".split(), "o lse".split()
    BACKWARD, GRADIENTS = "dout q k v o lse plan sinks".split(), "dq dk dv dsinks".split()

    def __init__(self):
        rng = np.random.default_rng(0)
        self.attn = tessera.Engine().prepare(tessera.Contract(**SIZES))
        shape, registered = self.attn.contract.shape, self.attn._register()
        self.number = registered.number
        self.operand = registered.operand(self.attn.plan())
        self.arrays = {name: rng.standard_normal(getattr(shape, of), np.float32)
                       for name, of in zip("q k v o dout dq dk dv".split(), "q k v o o q k v".split())}  # fmt: skip
        self.arrays |= {"lse": np.zeros(shape.rows, np.float32), "sinks": rng.standard_normal(4, np.float32),
                        "dsinks": np.zeros(4, np.float32), "plan": self.operand}  # fmt: skip
        self.xla = Xla(None)
        self.handlers = {name: address(capsule) for name, capsule in _native.xla_ffi_handlers()["cpu"].items()}

    def buffer(self, name):
        array = self.arrays[name]
        return array.ctypes.data, U8 if array.dtype == np.uint8 else F32, array.shape

    def __call__(self, way="forward", drop=(), number=None, xla=None, **wrong):
        operands, results = (self.FORWARD, self.RESULTS) if way == "forward" else (self.BACKWARD, self.GRADIENTS)
        given = [[wrong.get(name) or self.buffer(name) for name in names if name not in drop] for names in (operands, results)]
        return (xla or self.xla).call(self.handlers[f"tessera_{way}"], *given, self.number if number is None else number)


@pytest.fixture
def call():
    return Call()


def test_the_numbers_are_attention(call):
    assert call() is None and call("backward") is None, call.xla.errors
    a = call.arrays
    allowed = np.broadcast_to(np.tri(64, dtype=bool), (2, 4, 64, 64))
    want = dense(a["q"], a["k"], a["v"], allowed, sinks=a["sinks"], dout=a["dout"])
    for name, expected in zip(("o", "lse", "dq", "dk", "dv"), want):
        np.testing.assert_allclose(a[name], expected, rtol=0, atol=1e-4)


# By name: which buffer, what stands in its place (address, element type, shape), and the error.
WRONG = {
    "another rank": ("q", lambda at, kind, shape: (at, kind, shape[1:]), "TSR-R001: q has another shape"),
    "an axis of vmap's": ("k", lambda at, kind, shape: (at, kind, (1, *shape)), "TSR-R001: k has another shape"),
    "a longer axis": ("v", lambda at, kind, shape: (at, kind, (*shape[:3], 9)), "TSR-R001: v has another shape"),
    "an empty axis": ("q", lambda at, kind, shape: (at, kind, (0, *shape[1:])), "TSR-R001: q has another shape"),
    "integers": ("q", lambda at, kind, shape: (at, U8, shape), "TSR-R001: q has an element type"),
    "another float": ("q", lambda at, kind, shape: (at, BF16, shape), "TSR-R001"),
    "no memory": ("v", lambda at, kind, shape: (None, kind, shape), "TSR-R001"),
    "an odd address": ("k", lambda at, kind, shape: (at + 1, kind, shape), "multiple of 4"),
    "short sink logits": ("sinks", lambda at, kind, shape: (at, kind, (3,)), "TSR-R001: sink_logits: 4 numbers"),
    "sink logits of bytes": ("sinks", lambda at, kind, shape: (at, U8, shape), "TSR-R001: sink_logits: 4 numbers"),
    "a plan of floats": ("plan", lambda at, kind, shape: (at, F32, shape), "TSR-A001: plan: an operand's bytes"),
    "a plan of two axes": ("plan", lambda at, kind, shape: (at, kind, (1, *shape)), "TSR-A001: plan: an operand's bytes"),
    "a plan cut off": ("plan", lambda at, kind, shape: (at, kind, (50,)), "TSR-P005"),
    "a plan without memory": ("plan", lambda at, kind, shape: (None, kind, shape), "TSR-P005"),
    "an empty plan": ("plan", lambda at, kind, shape: (None, kind, (0,)), "TSR-P005"),
}


@pytest.mark.parametrize("way", ["forward", "backward"])
@pytest.mark.parametrize("wrong", WRONG)
def test_bad_operands(call, wrong, way):
    assert call() is None
    name, replaced, text = WRONG[wrong]
    results = [call.arrays[one] for one in (call.RESULTS if way == "forward" else call.GRADIENTS)]
    for one in results:
        one.fill(7)
    said = call(way, **{name: replaced(*call.buffer(name))})
    assert text in str(said), said
    assert all((one == 7).all() for one in results), "nothing was written"


@pytest.mark.parametrize(
    "way,name", [("forward", "o"), ("forward", "lse"), ("backward", "dq"), ("backward", "dsinks"), ("backward", "lse"), ("backward", "dout")]
)
def test_bad_results(call, way, name):
    at, kind, shape = call.buffer(name)
    is_optional = (way, name) in (("forward", "lse"), ("backward", "dsinks"))
    for replaced in ((at, kind, (*shape, 2)), (at, U8, shape), *([] if is_optional else [(None, kind, shape)])):
        said = str(call(way, **{name: replaced}))
        assert "TSR-R" in said or "TSR-A" in said, (replaced, said)
    if way == "forward" and name == "o":
        q = np.zeros((2, 4, 64, 16), np.float32)
        said = call(q=(q.ctypes.data, F32, q.shape), o=(q.ctypes.data, F32, call.arrays["o"].shape))
        assert "shares some with q" in str(said), said


def test_bad_calls(call):
    for way, name in (("forward", "q"), ("forward", "lse"), ("backward", "plan"), ("backward", "dv")):
        assert "another number of operands or results" in str(call(way, drop=(name,)))
    assert "no attention has this number" in call(number=10**9)
    assert "no attention has this number" in call(number=-1)
    damaged = call.operand.copy()
    damaged[16] ^= 1  # another fingerprint, so that the bytes are looked at
    damaged[400] ^= 255
    assert "TSR-P005" in call(plan=(damaged.ctypes.data, U8, damaged.shape))
    length = call.operand.copy()
    length[8:16] = 255  # more bytes than there are
    assert "TSR-P005" in call(plan=(length.ctypes.data, U8, length.shape))
    other = tessera.Engine().prepare(tessera.Contract(**(SIZES | dict(mask="full"))))
    foreign = other._register().operand(other.plan())
    assert "TSR-P007" in call(plan=(foreign.ctypes.data, U8, foreign.shape))
    assert call() is None, "and none of that has harmed it"


def test_bad_attributes(call):
    def none(frame, scalar):
        frame.attrs.count = 0

    def of_another_type(frame, scalar):
        scalar.dtype = F32

    def no_scalar(frame, scalar):
        frame.attrs.types[0] = 1

    for change, text in ((none, "one attribute"), (of_another_type, "an int64 expected"), (no_scalar, "one attribute")):
        xla = Xla(None)
        xla.change = change
        assert text in str(call(xla=xla))


def test_a_fork_after_use_is_refused(call):
    """What a program of JAX's would be told, whose own threads do not outlive a fork either."""
    assert call() is None
    pid = os.fork()
    if pid == 0:
        said = [str(call(way)) for way in ("forward", "backward")]
        os._exit(0 if all("TSR-A001: this attention was prepared before os.fork()" in one for one in said) else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert call() is None
