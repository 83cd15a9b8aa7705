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
FORWARD, BACKWARD = 1, 2
F32 = 1


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int64), ("batch_stride", ctypes.c_int64),
                ("head_stride", ctypes.c_int64), ("token_stride", ctypes.c_int64)]


class RunArgs(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("q", Tensor), ("k", Tensor), ("v", Tensor), ("dout", Tensor),
                ("sink_logits", ctypes.c_void_p), ("o", Tensor), ("lse", ctypes.c_void_p),
                ("row_max", ctypes.c_void_p), ("delta", ctypes.c_void_p), ("dq", Tensor), ("dk", Tensor),
                ("dv", Tensor), ("dsink_logits", ctypes.c_void_p)]


class TileCounts(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("empty", ctypes.c_int64), ("partial", ctypes.c_int64),
                ("full", ctypes.c_int64)]


def load(path):
    lib = ctypes.CDLL(path)
    handle, text = ctypes.c_void_p, ctypes.c_char_p
    out = ctypes.POINTER(ctypes.c_void_p)
    signatures = {
        "tessera_version": (text, []),
        "tessera_abi_version": (ctypes.c_int64, []),
        "tessera_contract_parse": (ctypes.c_int, [text, text, out, out]),
        "tessera_contract_key": (text, [handle]),
        "tessera_contract_free": (None, [handle]),
        "tessera_batch_parse": (ctypes.c_int, [text, out, out]),
        "tessera_batch_free": (None, [handle]),
        "tessera_plan_make": (ctypes.c_int, [handle, handle, text, handle, out, out]),
        "tessera_plan_fingerprint": (text, [handle]),
        "tessera_plan_json": (ctypes.c_int, [handle, out, out]),
        "tessera_plan_tile_counts": (ctypes.c_int, [handle, ctypes.c_int64, ctypes.POINTER(TileCounts), out]),
        "tessera_plan_free": (None, [handle]),
        "tessera_run": (ctypes.c_int, [handle, ctypes.c_int64, ctypes.POINTER(RunArgs), handle, out, out]),
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


def to_bf16(value):
    """Exact for the small whole numbers used here."""
    return struct.unpack("<I", struct.pack("<f", value))[0] >> 16


def from_bf16(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


class CInterface(unittest.TestCase):
    def plan(self, dtype="f32", valid=LEN):
        contract = call(LIB.tessera_contract_parse, (CONTRACT % dtype).encode(), None)
        self.addCleanup(LIB.tessera_contract_free, contract)
        batch = call(LIB.tessera_batch_parse, json.dumps({"valid_tokens": [valid]}).encode())
        self.addCleanup(LIB.tessera_batch_free, batch)
        plan = call(LIB.tessera_plan_make, contract, batch, b"cpu", None)
        self.addCleanup(LIB.tessera_plan_free, plan)
        return plan

    def run_uniform(self, plan, valid, element=ctypes.c_float, to_bits=float, from_bits=float):
        """Equal keys give every allowed value the same weight: o is a running mean of v, lse a logarithm."""
        zeros = (element * (BATCH * LEN * HEADS * DIM))()
        v = (element * (BATCH * LEN * DIM))(*[to_bits((t * 7 + d) % 5) for t in range(LEN) for d in range(DIM)])
        o = (element * (BATCH * LEN * HEADS * DIM))()
        lse = (ctypes.c_float * (BATCH * HEADS * LEN))()
        args = RunArgs(struct_size=ctypes.sizeof(RunArgs))
        args.q = Tensor(ctypes.addressof(zeros), 0, LEN * HEADS * DIM, DIM, HEADS * DIM)
        args.k = Tensor(ctypes.addressof(zeros), 0, LEN * DIM, 0, DIM)
        args.v = Tensor(ctypes.addressof(v), 0, LEN * DIM, 0, DIM)
        args.o = Tensor(ctypes.addressof(o), 0, LEN * HEADS * DIM, DIM, HEADS * DIM)  # [B,T,H,D]
        args.lse = ctypes.addressof(lse)
        receipt = call(LIB.tessera_run, plan, FORWARD, args, None)
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
        receipt = self.run_uniform(self.plan(), LEN)
        self.assertTrue(receipt["ok"])
        self.assertEqual(receipt["options"]["plan"], "given")
        self.assertRegex(receipt["batch_digest"], r"^[0-9a-f]{32}$")

    def test_valid_prefix(self):
        self.run_uniform(self.plan(valid=23), 23)

    def test_bf16(self):
        self.run_uniform(self.plan("bf16"), LEN, ctypes.c_uint16, to_bf16, from_bf16)

    def test_plan(self):
        plan = self.plan()
        counts = TileCounts(struct_size=ctypes.sizeof(TileCounts))
        error = ctypes.c_void_p()
        self.assertEqual(LIB.tessera_plan_tile_counts(plan, 0, counts, ctypes.byref(error)), 0)
        self.assertEqual((counts.empty + counts.partial + counts.full), HEADS * 9)
        text = call(LIB.tessera_plan_json, plan)
        self.assertIn(LIB.tessera_plan_fingerprint(plan).decode(), json.dumps(json.loads(ctypes.string_at(text.value))))
        LIB.tessera_string_free(text)

    def test_errors(self):
        with self.assertRaises(TesseraError) as caught:
            call(LIB.tessera_contract_parse, b"version = 9", None)
        self.assertRegex(caught.exception.code, r"^TSR-C00\d$")
        with self.assertRaises(TesseraError) as caught:
            call(LIB.tessera_contract_parse, None, None)
        self.assertEqual(caught.exception.code, "TSR-A001")
        with self.assertRaises(TesseraError) as caught:
            call(LIB.tessera_run, self.plan(), FORWARD, RunArgs(struct_size=ctypes.sizeof(RunArgs)), None)
        self.assertEqual(caught.exception.code, "TSR-R001")
        receipt = json.loads(LIB.tessera_receipt_json(caught.exception.handle))
        LIB.tessera_receipt_free(caught.exception.handle)
        self.assertEqual((receipt["ok"], receipt["failed_at"]), (False, "inputs"))
        with self.assertRaises(TesseraError) as caught:
            call(LIB.tessera_run, self.plan(), FORWARD, RunArgs(), None)
        self.assertEqual(caught.exception.code, "TSR-A001")
        self.assertIn("struct_size is 0", str(caught.exception))

    def test_threads(self):
        plan, digests, lock = self.plan(), [], threading.Lock()

        def work():
            digest = self.run_uniform(plan, LEN)["output_digest"]
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
