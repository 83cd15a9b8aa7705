"""libtessera.so as its C interface has it (include/tessera/c_api.h), as far as the bench calls it. Tensors are PyTorch's, on a GPU
or on the host, and go by address: what is timed is the library's public call and nothing else."""
import ctypes as c
import json

DTYPES = {"bf16": 2, "f16": 3}
MEMORIES = {"cpu": 0, "cuda": 1}


class Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p)] + [(n, c.c_int64) for n in ("dtype", "batch_stride", "head_stride", "token_stride", "memory", "ordinal")]


class Args(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("q", Tensor), ("k", Tensor), ("v", Tensor), ("dout", Tensor), ("sink_logits", c.c_void_p), ("o", Tensor),
                ("lse", c.c_void_p), ("row_max", c.c_void_p), ("delta", c.c_void_p), ("dq", Tensor), ("dk", Tensor), ("dv", Tensor), ("dsink_logits", c.c_void_p)]


class AttentionOptions(c.Structure):  # up to the last field that is set; the library takes zeros for the rest
    _fields_ = [("struct_size", c.c_size_t), ("lane", c.c_char_p), ("isa", c.c_char_p), ("exclude", c.c_void_p), ("num_exclude", c.c_size_t)] + [
        (n, c.c_int64) for n in ("strict", "passes", "threads", "memory", "ordinal")]


class CallOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("stream", c.c_void_p)]


class TileCounts(c.Structure):
    _fields_ = [("struct_size", c.c_size_t)] + [(n, c.c_int64) for n in ("empty", "partial", "full")]


class Library:
    def __init__(self, path):
        self.so = c.CDLL(path)
        for name in ("error_text", "bound_lane", "bound_kernel", "version"):
            getattr(self.so, "tessera_" + name).restype = c.c_char_p
        self.so.tessera_bound_workspace_bytes.restype = c.c_int64
        self.so.tessera_plan_bytes.restype = c.c_void_p
        # Without argument types ctypes passes pointers that were put in c_void_p whole.
        self.engine = self.make("engine_new", None)

    def __getattr__(self, name):
        return getattr(self.so, "tessera_" + name)

    def call(self, name, *args):
        error = c.c_void_p()
        if getattr(self.so, "tessera_" + name)(*args, c.byref(error)):
            text = self.so.tessera_error_text(error).decode()
            self.so.tessera_error_free(error)
            raise RuntimeError(text)

    def make(self, name, *args):
        out = c.c_void_p()
        self.call(name, *args, c.byref(out))
        return out


def tensor_of(x):
    b, h, t, _ = x.stride()
    return Tensor(x.data_ptr(), 0, b, h, t, MEMORIES[x.device.type], 0)


class Bound:
    """One plan of one contract, with the tensors of its calls."""

    def __init__(self, library, contract, target, lane, device, doc_ids=None, picks=None):
        self.library, so = library, library
        self.handles = []
        keep = lambda kind, handle: self.handles.append((kind, handle)) or handle
        made = keep("contract", so.make("contract_parse", json.dumps(contract).encode(), None))
        batch = None
        if doc_ids is not None or picks is not None:
            batch = keep("batch", so.make("batch_new"))
        if doc_ids is not None:
            rows, length = doc_ids.shape
            so.call("batch_set_doc_ids", batch, c.c_int64(0), doc_ids.ctypes.data_as(c.c_void_p), c.c_int64(rows), c.c_int64(length))
        if picks is not None:
            blocks, block_tokens = picks
            shape = (c.c_int64 * blocks.ndim)(*blocks.shape)
            so.call("batch_set_picks", batch, blocks.ctypes.data_as(c.c_void_p), shape, c.c_int64(blocks.ndim), c.c_int64(block_tokens))
        options = AttentionOptions(c.sizeof(AttentionOptions), lane.encode(), None, None, 0, 1, 3, 0, MEMORIES[device], 0)
        attention = keep("attention", so.make("attention_new", so.engine, made, target.encode(), c.byref(options)))
        self.attention, self.batch = attention, batch
        self.plan = keep("plan", so.make("attention_plan", attention, batch, None, None))
        self.bound = keep("bound", so.make("attention_bind", attention, self.plan))
        self.kernel = so.bound_kernel(self.bound).decode()

    def close(self):
        for kind, handle in reversed(self.handles):
            getattr(self.library, kind + "_free")(handle)
        self.handles = []

    def tiles(self, direction):
        counts = TileCounts(c.sizeof(TileCounts))
        self.library.call("plan_tile_counts", self.plan, c.c_int64(direction), c.byref(counts))
        return counts.partial + counts.full

    def plan_bytes(self):
        size = c.c_size_t()
        self.library.plan_bytes(self.plan, c.byref(size))
        return size.value

    def workspace_bytes(self):
        return self.library.bound_workspace_bytes(self.bound)

    def calls(self, stream, q, k, v, o, lse, dout, dq, dk, dv):
        """The two passes as functions of nothing, every argument made beforehand."""
        args = Args(c.sizeof(Args))
        for name, x in (("q", q), ("k", k), ("v", v), ("o", o), ("dout", dout), ("dq", dq), ("dk", dk), ("dv", dv)):
            setattr(args, name, tensor_of(x))
        args.lse = lse.data_ptr()
        options = CallOptions(c.sizeof(CallOptions), stream)
        given = (self.bound, c.byref(args), c.byref(options) if stream else None, None)
        self.keep = (args, options, q, k, v, o, lse, dout, dq, dk, dv)
        return (lambda: self.library.call("bound_forward", *given)), (lambda: self.library.call("bound_backward", *given))
