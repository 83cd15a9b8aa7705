"""One library's CPU attention, driven by bench_cpu over a pipe so that its runs and ours take turns.

Usage: cpu_attention.py sdpa|unfused|flex|onnx [--threads N]
       cpu_attention.py --self-check      compares every library that is here with a dense softmax on small cases

Requests and replies are JSON, one per line. A reply with "ok": false carries the "reason".
  {"op": "hello"}                                      -> title, version
  {"op": "prepare", "case": {...}, "inputs": FILE}     -> "how": {mode: text}, "modes": {mode: "" or why not}
  {"op": "run", "mode": "forward" | "forward_backward"} -> seconds
  {"op": "outputs", "mode": ..., "file": FILE}         writes o and, after a backward, dq, dk, dv (safetensors)
  {"op": "matmul", "dtype": "f32" | "bf16"}            -> gflops of a 2048^3 product (PyTorch only)
A case has tokens, heads, kv_heads, dim, dtype, mask ("causal", "window" or "documents", the last two causal as well),
window (keys before the query), document_lengths and softcap (0 = off). Masks and layouts are made in "prepare": only
the library's own call is timed.
"""

import argparse
import ctypes
import json
import math
import os
import random
import struct
import sys
import tempfile
import time

FORWARD, BOTH = "forward", "forward_backward"
NO_BACKWARD = "no backward on CPUs"
# An unfused score tensor may take this much; a backward holds several of them.
UNFUSED_BYTES = 1 << 27


class Skip(Exception):
    """This library does not do this; the text says why."""


# ---- files -----------------------------------------------------------------------------------------------------------


def read_safetensors(path):
    """name -> (type, shape, bytearray)"""
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        data = file.read()
    entries = ((name, entry) for name, entry in header.items() if name != "__metadata__")
    return {
        name: (entry["dtype"], entry["shape"], bytearray(data[entry["data_offsets"][0] : entry["data_offsets"][1]]))
        for name, entry in entries
    }


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


# ---- PyTorch ---------------------------------------------------------------------------------------------------------


class Torch:
    """What the three ways through PyTorch share: tensors, timing, autograd."""

    modes = {FORWARD: "", BOTH: ""}

    def __init__(self, threads):
        try:
            import torch
        except ImportError as error:
            raise Skip(f"PyTorch is not installed ({error})") from None
        self.torch = torch
        torch.set_num_threads(threads)
        self.version = torch.__version__
        self.types = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
        self.results = {}

    def prepare(self, case, inputs):
        self.case, self.results = case, {}
        loaded = {
            name: self.torch.frombuffer(data, dtype=self.types[dtype]).reshape(shape).clone()
            for name, (dtype, shape, data) in read_safetensors(inputs).items()
        }
        self.q, self.k, self.v, self.dout = loaded["q"], loaded["k"], loaded["v"], loaded.get("do")
        self.set_up()
        how = self.how if isinstance(self.how, dict) else {FORWARD: self.how, BOTH: self.how}
        return {"how": how, "modes": self.modes}

    def visible(self):
        """The boolean [tokens, tokens] mask, for libraries that take one."""
        torch, tokens = self.torch, self.case["tokens"]
        mask = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        if self.case["mask"] == "window":
            mask &= torch.ones(tokens, tokens, dtype=torch.bool).triu(-self.case["window"])
        if self.case["mask"] == "documents":
            ids = self.document_ids()
            mask &= ids[:, None] == ids[None, :]
        return mask

    def document_ids(self):
        lengths = self.torch.tensor(self.case["document_lengths"])
        return self.torch.repeat_interleave(self.torch.arange(len(lengths)), lengths)

    def run(self, mode):
        leaves = (self.q, self.k, self.v)
        for tensor in leaves:
            tensor.requires_grad_(mode == BOTH)
        begin = time.perf_counter()
        if mode == BOTH:
            out = self.attention(mode)
            grads = self.torch.autograd.grad(out, leaves, self.dout)
        else:
            with self.torch.no_grad():
                out, grads = self.attention(mode), ()
        seconds = time.perf_counter() - begin
        self.results[mode] = dict(zip(("o", "dq", "dk", "dv"), (out.detach(), *grads)))
        return seconds

    def outputs(self, mode, path):
        names = {dtype: name for name, dtype in self.types.items()}
        tensors = {}
        for name, tensor in self.results[mode].items():
            tensor = tensor.contiguous()
            data = ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())
            tensors[name] = (names[tensor.dtype], tensor.shape, data)
        write_safetensors(path, tensors)

    def matmul(self, dtype):
        size = 2048
        a, b = (self.torch.randn(size, size).to(self.types[dtype.upper()]) for _ in range(2))
        best = math.inf
        for _ in range(5):
            begin = time.perf_counter()
            self.torch.mm(a, b)
            best = min(best, time.perf_counter() - begin)
        return 2 * size**3 / best * 1e-9


class Sdpa(Torch):
    title = "PyTorch fused SDPA"

    def set_up(self):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        if self.case["softcap"]:
            raise Skip("scaled_dot_product_attention has no softcap")
        self.fused = lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION)
        causal = self.case["mask"] == "causal"
        self.mask = None if causal else self.visible()
        self.how = "is_causal" if causal else "boolean attn_mask"

    def attention(self, mode):
        with self.fused():
            return self.torch.nn.functional.scaled_dot_product_attention(
                self.q, self.k, self.v, attn_mask=self.mask, is_causal=self.mask is None,
                enable_gqa=self.q.shape[1] != self.k.shape[1],
            )


class Unfused(Torch):
    """The whole score tensor: written out, or SDPA's own unfused path; whichever is faster in a mode."""

    title = "PyTorch unfused"
    operators = ("written_out", "math_backend")

    def set_up(self):
        case = self.case
        scores = case["heads"] * case["tokens"] ** 2 * self.q.element_size()
        if scores > UNFUSED_BYTES:
            raise Skip(f"its score tensor takes {scores >> 20} MiB; runs where that is at most {UNFUSED_BYTES >> 20}")
        self.mask = self.visible()
        self.hidden = ~self.mask
        self.group = self.q.shape[1] // self.k.shape[1]
        self.how = {}
        for mode in (FORWARD, BOTH) if self.dout is not None else (FORWARD,):
            seconds = {}
            for name in self.operators:
                if name == "math_backend" and case["softcap"]:
                    continue
                self.how[mode] = name
                seconds[name] = self.run(mode)
                if seconds[name] < 5:
                    seconds[name] = self.run(mode)
            if not seconds:
                raise Skip("scaled_dot_product_attention has no softcap")
            self.how[mode] = min(seconds, key=seconds.get)

    def attention(self, mode):
        return getattr(self, self.how[mode])()

    def written_out(self):
        k, v, softcap = self.k, self.v, self.case["softcap"]
        if self.group > 1:
            k, v = k.repeat_interleave(self.group, 1), v.repeat_interleave(self.group, 1)
        scores = self.q @ k.transpose(-2, -1) * self.q.shape[-1] ** -0.5
        if softcap:
            scores = softcap * self.torch.tanh(scores / softcap)
        return self.torch.softmax(scores.masked_fill(self.hidden, -math.inf), -1) @ v

    def math_backend(self):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        causal = self.case["mask"] == "causal"
        with sdpa_kernel(SDPBackend.MATH):
            return self.torch.nn.functional.scaled_dot_product_attention(
                self.q, self.k, self.v, attn_mask=None if causal else self.mask, is_causal=causal, enable_gqa=self.group > 1
            )


class Flex(Torch):
    title = "FlexAttention compiled"
    modes = {FORWARD: "", BOTH: NO_BACKWARD}

    def __init__(self, threads):
        super().__init__(threads)
        # A machine it does not compile on says so once, not for every case.
        case = {"tokens": 128, "mask": "causal", "window": 0, "softcap": 0}
        self.case, self.results = case, {}
        self.q, self.k, self.v = (self.torch.zeros(1, 1, 128, 64) for _ in range(3))
        self.set_up()

    def set_up(self):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        torch, case = self.torch, self.case
        window, softcap, tokens = case["window"], case["softcap"], case["tokens"]
        ids = self.document_ids() if case["mask"] == "documents" else None
        masks = {
            "causal": lambda b, h, q, k: q >= k,
            "window": lambda b, h, q, k: (q >= k) & (q - k <= window),
            "documents": lambda b, h, q, k: (q >= k) & (ids[q] == ids[k]),
        }
        block_mask = create_block_mask(masks[case["mask"]], None, None, tokens, tokens, device="cpu")
        capped = lambda score, b, h, q, k: softcap * torch.tanh(score / softcap)
        torch._dynamo.reset()
        compiled = torch.compile(flex_attention, dynamic=False)
        self.attention = lambda mode: compiled(
            self.q, self.k, self.v, score_mod=capped if softcap else None, block_mask=block_mask,
            enable_gqa=self.q.shape[1] != self.k.shape[1],
        )
        self.how = "torch.compile, block mask"
        try:
            self.run(FORWARD)  # compiles
        except Exception as error:
            raise Skip("does not compile here: " + one_line(error).split("NotImplementedError: ")[-1]) from None


# ---- ONNX Runtime ----------------------------------------------------------------------------------------------------


class Onnx:
    title = "ONNX Runtime"
    modes = {FORWARD: "", BOTH: "ONNX Runtime has no backward"}
    operators = ("group_query_attention", "multi_head_attention", "attention")

    def __init__(self, threads):
        try:
            import numpy
            import onnx
            import onnxruntime
        except ImportError as error:
            raise Skip(f"ONNX Runtime is not installed ({error})") from None
        self.np, self.onnx, self.ort = numpy, onnx, onnxruntime
        self.version = onnxruntime.__version__
        self.options = onnxruntime.SessionOptions()
        self.options.intra_op_num_threads = threads
        self.options.inter_op_num_threads = 1
        self.options.log_severity_level = 4
        # Threads that spin after a run would take time from whoever runs next.
        self.options.add_session_config_entry("session.force_spinning_stop", "1")

    def session(self, node, feeds, outputs, opset):
        helper, types = self.onnx.helper, self.onnx.TensorProto
        known = {"float32": types.FLOAT, "float16": types.FLOAT16, "int32": types.INT32, "bool": types.BOOL}
        graph = helper.make_graph(
            [node], "attention",
            [helper.make_tensor_value_info(name, known[str(x.dtype)], x.shape) for name, x in feeds.items()],
            [helper.make_tensor_value_info(name, types.FLOAT, None) for name in outputs],
        )
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return self.ort.InferenceSession(model.SerializeToString(), self.options, ["CPUExecutionProvider"])

    def flat(self, x):
        """[B,H,T,D] as [B,T,H*D]"""
        return self.np.ascontiguousarray(x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1))

    def group_query_attention(self, q, k, v):
        case = self.case
        if case["mask"] == "documents":
            raise Skip("GroupQueryAttention has no documents")
        batch, kv_heads, tokens, dim = k.shape
        past = self.np.zeros((batch, kv_heads, 0, dim), self.np.float32)
        feeds = {
            "q": self.flat(q), "k": self.flat(k), "v": self.flat(v), "past_k": past, "past_v": past,
            "lengths": self.np.full((batch,), tokens - 1, self.np.int32), "total": self.np.array(tokens, self.np.int32),
        }
        extra = {}
        if case["mask"] == "window":
            extra["local_window_size"] = case["window"] + 1  # it counts the query's own key
        if case["softcap"]:
            extra["softcap"] = float(case["softcap"])
        outputs = ["o", "present_k", "present_v"]
        node = self.onnx.helper.make_node(
            "GroupQueryAttention", list(feeds), outputs, domain="com.microsoft", num_heads=case["heads"],
            kv_num_heads=kv_heads, scale=dim**-0.5, **extra,
        )
        return self.session(node, feeds, outputs, 23), feeds, True

    def multi_head_attention(self, q, k, v):
        case = self.case
        if case["mask"] != "causal" or case["softcap"] or case["heads"] != case["kv_heads"]:
            raise Skip("MultiHeadAttention is plain or causal")
        feeds = {"q": self.flat(q), "k": self.flat(k), "v": self.flat(v)}
        node = self.onnx.helper.make_node(
            "MultiHeadAttention", list(feeds), ["o"], domain="com.microsoft", num_heads=case["heads"], unidirectional=1,
            scale=q.shape[-1] ** -0.5,
        )
        return self.session(node, feeds, ["o"], 23), feeds, True

    def attention(self, q, k, v):
        case, np = self.case, self.np
        feeds = {"q": q, "k": k, "v": v}
        if case["mask"] != "causal":
            rows, columns = np.arange(case["tokens"])[:, None], np.arange(case["tokens"])[None, :]
            mask = rows >= columns
            if case["mask"] == "window":
                mask &= rows - columns <= case["window"]
            else:
                ids = np.repeat(np.arange(len(case["document_lengths"])), case["document_lengths"])
                mask &= ids[:, None] == ids[None, :]
            feeds["mask"] = mask
        extra = {"softcap": float(case["softcap"])} if case["softcap"] else {}
        node = self.onnx.helper.make_node(
            "Attention", list(feeds), ["o"], is_causal=int(case["mask"] == "causal"), scale=q.shape[-1] ** -0.5, **extra
        )
        return self.session(node, feeds, ["o"], 23), feeds, False

    def prepare(self, case, inputs):
        self.case = case
        if case["dtype"] != "f32":
            raise Skip(f"its CPU kernels for attention take f32, not {case['dtype']}")
        loaded = read_safetensors(inputs)
        q, k, v = (self.np.frombuffer(loaded[n][2], self.np.float32).reshape(loaded[n][1]) for n in "qkv")
        # Whichever of its operators is fastest for this case.
        best, reasons = math.inf, []
        for name in self.operators:
            try:
                self.prepared = getattr(self, name)(q, k, v)
                self.run(FORWARD)
                seconds = self.run(FORWARD)
            except Exception as error:
                reasons.append(f"{name}: {one_line(error)}")
                continue
            if seconds < best:
                best, chosen, how = seconds, self.prepared, name
        if best == math.inf:
            raise Skip("; ".join(reasons))
        self.prepared = chosen
        return {"how": {FORWARD: how}, "modes": self.modes}

    def run(self, mode):
        session, feeds, self.is_flat = self.prepared
        begin = time.perf_counter()
        self.result = session.run(["o"], feeds)[0]
        return time.perf_counter() - begin

    def outputs(self, mode, path):
        o = self.result
        if self.is_flat:
            o = o.reshape(o.shape[0], o.shape[1], self.case["heads"], -1).transpose(0, 2, 1, 3)
        write_safetensors(path, {"o": ("F32", o.shape, self.np.ascontiguousarray(o).tobytes())})


PEERS = {"sdpa": Sdpa, "unfused": Unfused, "flex": Flex, "onnx": Onnx}


def one_line(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."


def answer(peer, request):
    op = request["op"]
    if op == "hello":
        return {"title": peer.title, "version": peer.version}
    if op == "prepare":
        return peer.prepare(request["case"], request["inputs"])
    if op == "run":
        return {"seconds": peer.run(request["mode"])}
    if op == "outputs":
        peer.outputs(request["mode"], request["file"])
        return {}
    if op == "matmul":
        return {"gflops": peer.matmul(request["dtype"])}
    raise Skip(f"unknown op {op}")


def serve(name, threads):
    # Whatever a library prints must not end up between our lines.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer = missing = None
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "quit":
            break
        try:
            if missing:
                raise missing
            try:
                peer = peer or PEERS[name](threads)
            except Skip as reason:
                missing = reason
                raise
            reply = {"ok": True, **answer(peer, request)}
        except Exception as error:
            reply = {"ok": False, "reason": one_line(error)}
        print(json.dumps(reply), file=replies, flush=True)


# ---- self check ------------------------------------------------------------------------------------------------------


def dense(case, tensors):
    """Attention row by row in plain Python floats: slow, and knows nothing of any library."""
    tokens, dim, group = case["tokens"], case["dim"], case["heads"] // case["kv_heads"]
    ids = [i for i, length in enumerate(case["document_lengths"]) for _ in range(length)]
    values = {n: struct.unpack(f"<{len(tensors[n][2]) // 4}f", tensors[n][2]) for n in "qkv"}
    row = lambda name, head, token: values[name][(head * tokens + token) * dim : (head * tokens + token + 1) * dim]
    out = []
    for head in range(case["heads"]):
        for i in range(tokens):
            seen = range(i + 1)
            if case["mask"] == "window":
                seen = [j for j in seen if i - j <= case["window"]]
            if case["mask"] == "documents":
                seen = [j for j in seen if ids[i] == ids[j]]
            scores = [sum(a * b for a, b in zip(row("q", head, i), row("k", head // group, j))) * dim**-0.5 for j in seen]
            if case["softcap"]:
                scores = [case["softcap"] * math.tanh(s / case["softcap"]) for s in scores]
            weights = [math.exp(s - max(scores)) for s in scores]
            rows = [row("v", head // group, j) for j in seen]
            out += [sum(w * r[d] for w, r in zip(weights, rows)) / sum(weights) for d in range(dim)]
    return out


def differences(peer, case, tensors, folder):
    """Yields (how, largest difference from the dense softmax) for each way this library has; raises Skip."""
    inputs, outputs = os.path.join(folder, "in"), os.path.join(folder, "out")
    write_safetensors(inputs, tensors)
    want = dense(case, tensors)
    for operator in getattr(peer, "operators", (None,)):
        if operator:
            peer.operators = (operator,)
        try:
            how = peer.prepare(case, inputs)["how"][FORWARD]
        except Skip as reason:
            yield f"skipped: {reason}", None
            continue
        peer.run(FORWARD)
        peer.outputs(FORWARD, outputs)
        data = read_safetensors(outputs)["o"][2]
        got = struct.unpack(f"<{len(data) // 4}f", data)
        yield how, max(abs(a - b) for a, b in zip(got, want, strict=True))


def self_check():
    seed = os.environ.get("TESSERA_SEED") or str(random.randrange(1 << 30))
    generator = random.Random(seed)
    base = {"tokens": 24, "heads": 4, "kv_heads": 4, "dim": 16, "dtype": "f32", "window": 5, "softcap": 0}
    base["document_lengths"] = [7, 1, 16]
    cases = [base | {"mask": mask} for mask in ("causal", "window", "documents")]
    cases += [base | {"mask": "causal", "softcap": 3.0}, base | {"mask": "causal", "kv_heads": 2}]
    num_checked = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, peer_class in PEERS.items():
            for case in cases:
                try:
                    peer = peer_class(1)
                except Skip as reason:
                    print(f"{name}: {reason}")
                    break
                tensors = {}
                for tensor, num_heads in (("q", case["heads"]), ("k", case["kv_heads"]), ("v", case["kv_heads"])):
                    count = num_heads * case["tokens"] * case["dim"]
                    data = struct.pack(f"<{count}f", *(generator.gauss(0, 1) for _ in range(count)))
                    tensors[tensor] = ("F32", [1, num_heads, case["tokens"], case["dim"]], data)
                heads = f"{case['heads']}/{case['kv_heads']} heads"
                label = f"{name} on {case['mask']}, softcap {case['softcap']}, {heads}"
                for how, worst in differences(peer, case, tensors, folder):
                    print(f"{label}: {how}" + ("" if worst is None else f", largest difference {worst:.1e}"))
                    # Scores are below 4 and sums at most 24 long: f32 rounding stays under 100 units of 2^-24.
                    if worst is not None and not worst < 6e-6:
                        return f"{label}: {how} differs from the dense softmax by {worst} (TESSERA_SEED={seed})"
                    num_checked += worst is not None
    if num_checked == 0:
        print("skipped: neither PyTorch nor ONNX Runtime is here")
        return 77
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("peer", nargs="?", choices=sorted(PEERS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--self-check", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_check:
        return self_check()
    if arguments.peer is None:
        parser.error("which library?")
    return serve(arguments.peer, arguments.threads)


if __name__ == "__main__":
    sys.exit(main())
