"""The handlers that XLA calls for CUDA, called as XLA calls them, on a driver that writes down what it is asked: test_gpu.py
builds that driver and runs this in a process of its own. The one argument is the driver's file. Needs neither JAX nor a GPU."""

import ctypes as c
import sys

import numpy as np

import tessera
from tessera import _native

SIZES = dict(batch=2, q_len=200, num_q_heads=4, num_kv_heads=2, dim_qk=64, dtype="bf16")
U8, F32, BF16, S64 = 6, 11, 16, 5


def struct(*fields):
    return type("Struct", (c.Structure,), {"_fields_": list(fields)})


Pointer, Size = c.c_void_p, c.c_size_t
StreamArgs = struct(("size", Size), ("extension", Pointer), ("ctx", Pointer), ("stream", Pointer))
ErrorArgs = struct(("size", Size), ("extension", Pointer), ("message", c.c_char_p), ("code", c.c_uint32))
CreateError = c.CFUNCTYPE(Pointer, c.POINTER(ErrorArgs))
GetStream = c.CFUNCTYPE(Pointer, c.POINTER(StreamArgs))
Version = struct(("size", Size), ("extension", Pointer), ("major", c.c_int), ("minor", c.c_int))
Api = struct(("size", Size), ("extension", Pointer), ("version", Version), ("internal", Pointer), ("error_create", CreateError),
             ("unused", Pointer * 3), ("stream_get", GetStream))  # fmt: skip
Buffer = struct(("size", Size), ("extension", Pointer), ("dtype", c.c_uint32), ("data", Pointer), ("rank", c.c_int64),
                ("dims", c.POINTER(c.c_int64)))  # fmt: skip
Values = struct(("size", Size), ("extension", Pointer), ("count", c.c_int64), ("types", c.POINTER(c.c_uint32)),
                ("values", c.POINTER(Pointer)))  # fmt: skip
Scalar = struct(("dtype", c.c_uint32), ("value", Pointer))
Attrs = struct(("size", Size), ("extension", Pointer), ("count", c.c_int64), ("types", c.POINTER(c.c_uint32)),
               ("names", Pointer), ("attrs", c.POINTER(Pointer)))  # fmt: skip
CallFrame = struct(("size", Size), ("extension", Pointer), ("api", c.POINTER(Api)), ("ctx", Pointer), ("stage", c.c_uint32),
                   ("args", Values), ("rets", Values), ("attrs", Attrs))  # fmt: skip


class Machine:
    """The driver: memory of a GPU's, streams, and what was asked."""

    def __init__(self, path):
        self.library = c.CDLL(path)
        self.library.fake_allocate.restype = self.library.fake_stream.restype = self.library.fake_other_stream.restype = Pointer
        self.library.fake_launches.restype = c.c_char_p

    def allocate(self, num_bytes):
        return self.library.fake_allocate(c.c_size_t(num_bytes))

    def put(self, array):
        at = self.allocate(array.nbytes)
        c.memmove(at, array.ctypes.data, array.nbytes)
        return at

    def stream(self):
        return self.library.fake_stream()

    def calls(self, *names):
        return sum(self.library.fake_calls(name.encode()) for name in names)

    def launches(self):
        """[(kernel, stream, address of the plan or 0)] since the last time."""
        lines = self.library.fake_launches().decode().split("\n")
        return [(name, int(stream), int(plan)) for name, stream, plan in (line.split() for line in lines if line)]


class Xla:
    """As much of XLA as a handler sees."""

    def __init__(self, stream, stream_error=None):
        self.errors = []

        def create(args):
            self.errors.append(args.contents.message.decode())
            return 4096  # the address of an error

        def get(args):
            args.contents.stream = stream
            return stream_error

        self.api = Api(size=c.sizeof(Api), error_create=CreateError(create), stream_get=GetStream(get))

    def change(self, frame, scalar):
        """Of a call, what a test wants otherwise."""

    def call(self, handler, operands, results, number):
        """What the handler answers: nothing, or what is wrong."""
        keep = []

        def values(buffers):
            made = []
            for data, dtype, shape in buffers:
                dims = (c.c_int64 * len(shape))(*shape)
                made.append(Buffer(c.sizeof(Buffer), None, dtype, data, len(shape), dims))
                keep.append(dims)
            places = (Pointer * len(made))(*(c.addressof(one) for one in made))
            keep.extend((made, places))
            return Values(c.sizeof(Values), None, len(made), (c.c_uint32 * len(made))(*[1] * len(made)), places)

        value = c.c_int64(number)
        scalar = Scalar(S64, c.addressof(value))
        attrs = Attrs(c.sizeof(Attrs), None, 1, (c.c_uint32 * 1)(3), None, (Pointer * 1)(c.addressof(scalar)))
        frame = CallFrame(c.sizeof(CallFrame), None, c.pointer(self.api), None, 3, values(operands), values(results), attrs)
        self.change(frame, scalar)
        self.errors.clear()
        answer = c.CFUNCTYPE(Pointer, c.POINTER(CallFrame))(handler)(c.byref(frame))
        return self.errors[0] if self.errors else answer


def address(capsule):
    get = c.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = Pointer, [c.py_object, c.c_char_p]
    return get(capsule, None)


def main(path):
    machine = Machine(path)
    attn = tessera.Engine().prepare(tessera.Contract(mask="causal and documents", **SIZES), target="h200", memory="gpu")
    shape, registered = attn.contract.shape, attn._register()
    handlers = {name: address(capsule) for name, capsule in _native.xla_ffi_handlers()["CUDA"].items()}
    forward, backward = handlers["tessera_forward"], handlers["tessera_backward"]
    stream = machine.stream()
    xla = Xla(stream)

    def tensor(of):
        return machine.allocate(2 * int(np.prod(of))), BF16, of

    q, k, v, o, dout, dq, dk, dv = (tensor(getattr(shape, of)) for of in "q k v o o q k v".split())
    lse = machine.allocate(4 * int(np.prod(shape.rows))), F32, shape.rows

    def operand(lengths):
        image = registered.image(attn.plan(doc_lengths=lengths))
        return machine.put(image), U8, image.shape

    assert "no attention has this number" in xla.call(forward, [q, k, v, (q[0], U8, (64,))], [o, lse], 10**6)
    assert "no plan of this attention" in xla.call(forward, [q, k, v, (q[0], U8, (64,))], [o, lse], registered.number)
    batches = [operand([[50, 150], [200]]), operand([[200], [20] * 10]), operand([[199, 1], [100, 100]])]
    assert len({batch[2] for batch in batches}) == 1, "one length, so one program"
    waits = ("copy_to_device", "copy_to_host", "stream_finish", "event_finish")
    for turn, plan in enumerate([*batches, batches[0]]):
        before = machine.calls(*waits, "memory_alloc")
        assert xla.call(forward, [q, k, v, plan], [o, lse], registered.number) is None, xla.errors
        assert xla.call(backward, [dout, q, k, v, o, lse, plan], [dq, dk, dv], registered.number) is None, xla.errors
        ran = machine.launches()
        assert [name.split("_")[1] for name, _, _ in ran] == ["forward", "prepare", "dkv", "dq"], ran
        assert {at for _, at, _ in ran} == {stream}, "every launch is on XLA's stream"
        assert {at for name, _, at in ran if "prepare" not in name} == {plan[0]}, "and reads the operand where it is"
        if turn:
            assert machine.calls(*waits, "memory_alloc") == before, "nothing is copied, allocated or waited for"

    def refused(text, operands, results=(o, lse), by=xla, handler=forward):
        said = by.call(handler, list(operands), list(results), registered.number)
        assert text in str(said), (text, said)
        assert machine.launches() == [], "nothing was launched"

    plan = batches[0]
    on_host = np.zeros(shape.q, np.uint16)
    refused("q: memory of gpu:0 expected", [(on_host.ctypes.data, BF16, shape.q), k, v, plan])
    refused("image: memory of gpu:0 expected", [q, k, v, (on_host.ctypes.data, U8, (1024,))])
    refused("image: 160 bytes or more", [q, k, v, (plan[0], U8, (64,))])
    refused("an operand's bytes expected", [q, k, v, (plan[0], F32, plan[2])])
    refused("an operand's bytes expected", [q, k, v, (plan[0], U8, (1, *plan[2]))])  # an axis that vmap added
    refused("k has another shape", [q, q, v, plan])
    refused("q has an element type", [(q[0], U8, shape.q), k, v, plan])
    refused("another number of operands", [q, k, v])
    refused("of another context", [q, k, v, plan], by=Xla(machine.library.fake_other_stream()))
    assert Xla(stream, stream_error=8192).call(forward, [q, k, v, plan], [o, lse], registered.number) == 8192, "XLA's own error"
    print("good")


if __name__ == "__main__":
    main(sys.argv[1])
