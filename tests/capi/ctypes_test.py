"""The shared library from Python, with nothing but the standard library: what a binding in any language has to do."""

import ctypes
import json
import math
import struct
import sys
import threading
import unittest

BATCH, LEN, HEADS, DIM = 1, 40, 2, 4
CONTRACT = f"""
version = 1
[shape]
batch = {BATCH}
q_len = {LEN}
num_q_heads = {HEADS}
num_kv_heads = 1
dim_qk = {DIM}
dtype = "%s"
[mask]
expr = "causal and valid"
[tiles]
q = 16
kv = 16
reason = "a small test"
"""


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int64), ("batch_stride", ctypes.c_int64),
                ("head_stride", ctypes.c_int64), ("token_stride", ctypes.c_int64), ("memory", ctypes.c_int64),
                ("ordinal", ctypes.c_int64)]


class Args(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("q", Tensor), ("k", Tensor), ("v", Tensor), ("dout", Tensor),
                ("sink_logits", ctypes.c_void_p), ("o", Tensor), ("lse", ctypes.c_void_p),
                ("row_max", ctypes.c_void_p), ("delta", ctypes.c_void_p), ("dq", Tensor), ("dk", Tensor),
                ("dv", Tensor), ("dsink_logits", ctypes.c_void_p)]


class CallOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("stream", ctypes.c_void_p), ("digests", ctypes.c_int64),
                ("input_source", ctypes.c_char_p), ("batch_source", ctypes.c_char_p),
                ("contract_source", ctypes.c_char_p)]


class Array(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("dtype", ctypes.c_char_p),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("rank", ctypes.c_int64), ("data", ctypes.c_void_p),
                ("num_bytes", ctypes.c_size_t)]


class TileCounts(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("empty", ctypes.c_int64), ("partial", ctypes.c_int64),
                ("full", ctypes.c_int64)]


def load(path):
    lib = ctypes.CDLL(path)
    handle, text = ctypes.c_void_p, ctypes.c_char_p
    out = ctypes.POINTER(ctypes.c_void_p)
    i64, status = ctypes.c_int64, ctypes.c_int
    call_of_bound = [handle, ctypes.POINTER(Args), ctypes.POINTER(CallOptions), out, out]
    signatures = {
        "tessera_version": (text, []),
        "tessera_abi_version": (i64, []),
        "tessera_contract_parse": (status, [text, text, out, out]),
        "tessera_contract_key": (text, [handle]),
        "tessera_contract_free": (None, [handle]),
        "tessera_batch_parse": (status, [text, out, out]),
        "tessera_batch_new": (status, [out, out]),
        "tessera_batch_set_valid_tokens": (status, [handle, i64, ctypes.POINTER(ctypes.c_int32), i64, out]),
        "tessera_batch_free": (None, [handle]),
        "tessera_engine_new": (status, [handle, out, out]),
        "tessera_engine_free": (None, [handle]),
        "tessera_attention_new": (status, [handle, handle, text, handle, out, out]),
        "tessera_attention_json": (status, [handle, out, out]),
        "tessera_attention_plan": (status, [handle, handle, handle, handle, out, out]),
        "tessera_attention_bind": (status, [handle, handle, out, out]),
        "tessera_attention_free": (None, [handle]),
        "tessera_plan_fingerprint": (text, [handle]),
        "tessera_plan_json": (status, [handle, out, out]),
        "tessera_plan_tile_counts": (status, [handle, i64, ctypes.POINTER(TileCounts), out]),
        "tessera_plan_free": (None, [handle]),
        "tessera_bound_forward": (status, call_of_bound),
        "tessera_bound_backward": (status, call_of_bound),
        "tessera_bound_lane": (text, [handle]),
        "tessera_bound_free": (None, [handle]),
        "tessera_export_new": (status, [handle, handle, handle, out, out]),
        "tessera_export_num_arrays": (ctypes.c_size_t, [handle]),
        "tessera_export_array": (status, [handle, ctypes.c_size_t, ctypes.POINTER(Array), out]),
        "tessera_export_json": (status, [handle, out, out]),
        "tessera_export_free": (None, [handle]),
        "tessera_receipt_json": (text, [handle]),
        "tessera_receipt_free": (None, [handle]),
        "tessera_error_code": (text, [handle]),
        "tessera_error_text": (text, [handle]),
        "tessera_error_free": (None, [handle]),
        "tessera_string_free": (None, [handle]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


class TesseraError(Exception):
    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def call(function, *arguments):
    """Calls a C function whose last two parameters are an output handle and an error; gives the handle."""
    out, error = ctypes.c_void_p(), ctypes.c_void_p()
    status = function(*arguments, ctypes.byref(out), ctypes.byref(error))
    if status == 0:
        return out
    problem = TesseraError(LIB.tessera_error_code(error).decode(), LIB.tessera_error_text(error).decode())
    problem.handle = out
    LIB.tessera_error_free(error)
    raise problem


def text_of(function, handle):
    """What a function that gives a `char*` says."""
    text = call(function, handle)
    copy = ctypes.string_at(text.value).decode()
    LIB.tessera_string_free(text)
    return copy


def to_bf16(value):
    """Exact for the small whole numbers used here."""
    return struct.unpack("<I", struct.pack("<f", value))[0] >> 16


def from_bf16(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


class CInterface(unittest.TestCase):
    def keep(self, free, handle):
        self.addCleanup(free, handle)
        return handle

    def contract(self, dtype="f32"):
        return self.keep(LIB.tessera_contract_free, call(LIB.tessera_contract_parse, (CONTRACT % dtype).encode(), None))

    def attention(self, dtype="f32"):
        engine = self.keep(LIB.tessera_engine_free, call(LIB.tessera_engine_new, None))
        return self.keep(LIB.tessera_attention_free,
                         call(LIB.tessera_attention_new, engine, self.contract(dtype), b"cpu", None))

    def plan(self, attention, valid=LEN):
        """From an array; a batch of text gives the same plan."""
        batch = self.keep(LIB.tessera_batch_free, call(LIB.tessera_batch_new))
        error = ctypes.c_void_p()
        self.assertEqual(LIB.tessera_batch_set_valid_tokens(batch, 0, (ctypes.c_int32 * 1)(valid), 1, error), 0)
        plan = self.keep(LIB.tessera_plan_free, call(LIB.tessera_attention_plan, attention, batch, None, None))
        parsed = self.keep(LIB.tessera_batch_free,
                           call(LIB.tessera_batch_parse, json.dumps({"valid_tokens": [valid]}).encode()))
        same = self.keep(LIB.tessera_plan_free, call(LIB.tessera_attention_plan, attention, parsed, None, None))
        self.assertEqual(LIB.tessera_plan_fingerprint(plan), LIB.tessera_plan_fingerprint(same))
        return plan

    def bound(self, dtype="f32", valid=LEN):
        attention = self.attention(dtype)
        return self.keep(LIB.tessera_bound_free,
                         call(LIB.tessera_attention_bind, attention, self.plan(attention, valid)))

    def run_uniform(self, bound, valid, element=ctypes.c_float, to_bits=float, from_bits=float):
        """Equal keys give every allowed value the same weight: o is a running mean of v, lse a logarithm."""
        zeros = (element * (BATCH * LEN * HEADS * DIM))()
        v = (element * (BATCH * LEN * DIM))(*[to_bits((t * 7 + d) % 5) for t in range(LEN) for d in range(DIM)])
        o = (element * (BATCH * LEN * HEADS * DIM))()
        lse = (ctypes.c_float * (BATCH * HEADS * LEN))()
        args = Args(struct_size=ctypes.sizeof(Args))
        args.q = Tensor(ctypes.addressof(zeros), 0, LEN * HEADS * DIM, DIM, HEADS * DIM)
        args.k = Tensor(ctypes.addressof(zeros), 0, LEN * DIM, 0, DIM)
        args.v = Tensor(ctypes.addressof(v), 0, LEN * DIM, 0, DIM)
        args.o = Tensor(ctypes.addressof(o), 0, LEN * HEADS * DIM, DIM, HEADS * DIM)  # [B,T,H,D]
        args.lse = ctypes.addressof(lse)
        options = CallOptions(struct_size=ctypes.sizeof(CallOptions), digests=1, input_source=b"a test")
        receipt = call(LIB.tessera_bound_forward, bound, args, options)
        text = LIB.tessera_receipt_json(receipt).decode()
        LIB.tessera_receipt_free(receipt)
        for t in range(LEN):
            for h in range(HEADS):
                count = t + 1 if t < valid else 0
                want_lse = math.log(count) if count else -math.inf
                got_lse = lse[h * LEN + t]
                self.assertTrue(got_lse == want_lse or abs(got_lse - want_lse) < 1e-6, (t, h, got_lse, want_lse))
                for d in range(DIM):
                    values = [(i * 7 + d) % 5 for i in range(count)]
                    want = sum(values) / count if count else 0.0
                    got = from_bits(o[(t * HEADS + h) * DIM + d])
                    self.assertLess(abs(got - want), 0.02 if element is ctypes.c_uint16 else 1e-6, (t, h, d))
        return json.loads(text)

    def test_version(self):
        self.assertRegex(LIB.tessera_version().decode(), r"^\d+\.\d+\.\d+$")
        self.assertGreaterEqual(LIB.tessera_abi_version(), 0)

    def test_forward(self):
        bound = self.bound()
        self.assertEqual(LIB.tessera_bound_lane(bound), b"cpu")
        receipt = self.run_uniform(bound, LEN)
        self.assertTrue(receipt["ok"])
        self.assertEqual(receipt["options"]["plan"], "given")
        self.assertEqual(receipt["input_source"], "a test")
        for name in ("batch_digest", "input_digest", "output_digest"):
            self.assertRegex(receipt[name], r"^[0-9a-f]{32}$")

    def test_valid_prefix(self):
        self.run_uniform(self.bound(valid=23), 23)

    def test_bf16(self):
        self.run_uniform(self.bound("bf16"), LEN, ctypes.c_uint16, to_bf16, from_bf16)

    def test_attention(self):
        said = json.loads(text_of(LIB.tessera_attention_json, self.attention()))
        self.assertEqual(said["lane"], "cpu")
        decisions = {decision["lane"]: decision for decision in said["decisions"]}
        self.assertTrue(decisions["cpu"]["accepted"])
        self.assertEqual(decisions["call_jax"]["reason"], "dispatch.only_by_name")

    def test_plan(self):
        plan = self.plan(self.attention())
        counts = TileCounts(struct_size=ctypes.sizeof(TileCounts))
        error = ctypes.c_void_p()
        self.assertEqual(LIB.tessera_plan_tile_counts(plan, 0, counts, ctypes.byref(error)), 0)
        self.assertEqual((counts.empty + counts.partial + counts.full), HEADS * 9)
        self.assertIn(LIB.tessera_plan_fingerprint(plan).decode(), text_of(LIB.tessera_plan_json, plan))

    def test_export(self):
        text = CONTRACT % "f32"
        text = text.replace("q_len = 40", "q_len = 256").replace("and valid", "")
        contract = self.keep(LIB.tessera_contract_free, call(LIB.tessera_contract_parse, text.encode(), None))
        exported = self.keep(LIB.tessera_export_free, call(LIB.tessera_export_new, contract, None, None))
        arrays = json.loads(text_of(LIB.tessera_export_json, exported))["arrays"]
        self.assertEqual(LIB.tessera_export_num_arrays(exported), len(arrays))
        error = ctypes.c_void_p()
        for index, (name, want) in enumerate(arrays.items()):
            array = Array(struct_size=ctypes.sizeof(Array))
            self.assertEqual(LIB.tessera_export_array(exported, index, array, error), 0)
            self.assertEqual(array.name.decode(), name)
            self.assertEqual(array.data is None, want is None)
            if want is not None:
                self.assertEqual([array.shape[axis] for axis in range(array.rank)], want["shape"])
                self.assertEqual(array.num_bytes % max(1, math.prod(want["shape"])), 0)

    def test_errors(self):
        with self.assertRaises(TesseraError) as caught:
            call(LIB.tessera_contract_parse, b"version = 9", None)
        self.assertRegex(caught.exception.code, r"^TSR-C00\d$")
        with self.assertRaises(TesseraError) as caught:
            call(LIB.tessera_contract_parse, None, None)
        self.assertEqual(caught.exception.code, "TSR-A001")
        with self.assertRaises(TesseraError) as caught:
            call(LIB.tessera_bound_forward, self.bound(), Args(struct_size=ctypes.sizeof(Args)), None)
        self.assertEqual(caught.exception.code, "TSR-R001")
        receipt = json.loads(LIB.tessera_receipt_json(caught.exception.handle))
        LIB.tessera_receipt_free(caught.exception.handle)
        self.assertEqual((receipt["ok"], receipt["failed_at"]), (False, "forward"))
        with self.assertRaises(TesseraError) as caught:
            call(LIB.tessera_bound_forward, self.bound(), Args(), None)
        self.assertEqual(caught.exception.code, "TSR-A001")
        self.assertIn("struct_size is 0", str(caught.exception))

    def test_threads(self):
        bound, digests, lock = self.bound(), [], threading.Lock()

        def work():
            digest = self.run_uniform(bound, LEN)["output_digest"]
            with lock:
                digests.append(digest)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(digests), 4)
        self.assertEqual(len(set(digests)), 1)


if __name__ == "__main__":
    LIB = load(sys.argv.pop(1))
    unittest.main()
