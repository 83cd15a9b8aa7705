"""The kernels alone, without the library: plans made with numpy as device images, parameters as in src/lanes/cuda/abi.h,
launches through the driver in PyTorch's context. For tuning: no C++ has to be built beside the cubins."""
import ctypes, math, os
import numpy as np
import torch

# Where ninja puts them; a folder of variants can be given in its place.
CUBINS = os.environ.get("CUBINS", "build/release/src/lanes/cuda/cubins")
DEV = "cuda"
FAR = 1 << 28
LAST, DOCUMENT, VALID, BITS, ROWS, SAME, SINK = 1, 2, 4, 8, 16, 32, 64
LOG2E = 1.4426950408889634

drv = ctypes.CDLL("libcuda.so.1")
_modules = {}


def ok(rc):
    if rc:
        name = ctypes.c_char_p()
        drv.cuGetErrorName(rc, ctypes.byref(name))
        raise RuntimeError(f"driver error {rc} {name.value}")


def kernel(kind, dtype, dqk, dv, cap, smem=0, folder=None):
    name = f"tessera_{kind}_{dtype}_{dqk}_{dv}_{cap}"
    key = (name, folder)
    if key not in _modules:
        torch.zeros(1, device=DEV)
        data = open(f"{folder or CUBINS}/{name}.cubin", "rb").read()
        module, fn = ctypes.c_void_p(), ctypes.c_void_p()
        ok(drv.cuModuleLoadData(ctypes.byref(module), data))
        ok(drv.cuModuleGetFunction(ctypes.byref(fn), module, name.encode()))
        if smem > 48 * 1024:
            ok(drv.cuFuncSetAttribute(fn, 8, smem))
        _modules[key] = fn
    return _modules[key]


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint32), ("pad", ctypes.c_uint32), ("value", ctypes.c_int32), ("rest", ctypes.c_uint8 * 60)]


class Config(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint32) for n in ("gx", "gy", "gz", "bx", "by", "bz", "shared")] + [("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint32)]


BESIDE = Attribute(6, 0, 1)  # programmatic stream serialization


def launch(fn, grid, threads, smem, params, beside=False):
    """beside: may begin before the launch in front of it has ended."""
    args = (ctypes.c_void_p * 1)(ctypes.addressof(params))
    config = Config(grid[0], grid[1], 1, threads, 1, 1, smem, torch.cuda.current_stream().cuda_stream, ctypes.addressof(BESIDE) if beside else None, 1 if beside else 0)
    ok(drv.cuLaunchKernelEx(ctypes.byref(config), fn, args, None))


# ---- abi.h ---------------------------------------------------------------------------------------------------------
def tile_of(kind, dqk):
    if kind == "forward":
        return 128, 128 if dqk <= 192 else 64
    if kind == "dq":
        return 128, 64
    return (128 if dqk <= 128 else 64), 64


def stages_of(kind, dqk):
    if kind == "forward":
        return (2 if dqk <= 128 else 1), 2, 2
    if dqk <= 128:
        return 2, 3, 3
    if kind == "dkv":
        return (2, 3, 3) if dqk <= 192 else (1, 2, 2)
    return (1, 3, 3) if dqk <= 192 else (1, 2, 1)


def shared_bytes(kind, dqk, dv):
    (r, c), (a, b, d) = tile_of(kind, dqk), stages_of(kind, dqk)
    control = 8192 if kind == "forward" else 3072
    if kind == "forward":
        return 2 * (a * r * dqk + c * (b * dqk + d * dv)) + control
    return 2 * (a * r * (dqk + dv) + c * (b * dqk + d * dv)) + control


class Map(ctypes.Structure):
    _fields_ = [("w", ctypes.c_uint64 * 16)]


class Rows(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("b", ctypes.c_int64), ("h", ctypes.c_int64), ("t", ctypes.c_int64)]


class Shape(ctypes.Structure):
    _fields_ = ([(n, ctypes.c_int32) for n in ("batch", "nq", "nkv", "q_len", "kv_len", "padded_q")] + [("scale", ctypes.c_float), ("scale_log2", ctypes.c_float)] +
                [("near", ctypes.c_float * 4)] + [(n, ctypes.c_float) for n in ("near_range", "far_exp", "most", "cap_log2")])


P = ctypes.c_void_p


class ForwardParams(ctypes.Structure):
    _fields_ = [("q", Map), ("k", Map), ("v", Map), ("o", Map), ("v_rows", Rows), ("plan", P), ("sinks", P), ("lse", P), ("row_max", P), ("ticket", P), ("parts", P), ("shape", Shape),
                ("pad", ctypes.c_uint8 * 64)]


class PrepareParams(ctypes.Structure):
    _fields_ = [("o", Rows), ("dout", Rows), ("lse", P), ("delta_in", P), ("sinks", P), ("lse2", P), ("delta", P), ("sink_parts", P), ("tickets", P), ("shape", Shape),
                ("dim_v", ctypes.c_int32), ("r", ctypes.c_int32), ("pad", ctypes.c_uint8 * 64)]


class BackwardParams(ctypes.Structure):
    _fields_ = [("rows", Map * 2), ("cols", Map * 2), ("out", Map * 2), ("col_rows", Rows * 2), ("plan", P), ("lse2", P), ("delta", P), ("ticket", P), ("parts", P), ("shape", Shape),
                ("pad", ctypes.c_uint8 * 64)]


class SinksParams(ctypes.Structure):
    _fields_ = [("parts", P), ("dsink", P), ("shape", Shape), ("pad", ctypes.c_uint8 * 64)]


def ptr(x):
    return None if x is None else x.data_ptr()


def rows_of(x):
    return Rows(x.data_ptr(), x.stride(0), x.stride(1), x.stride(2)) if x is not None else Rows(None, 0, 0, 0)


def encode(x, box_tokens, box_panels):
    """x is [B,H,T,D] with any strides, the last 1."""
    b, h, t, d = x.shape
    m = Map()
    raw = (ctypes.c_uint8 * 256)()
    base = (ctypes.addressof(raw) + 63) // 64 * 64
    u64, u32 = ctypes.c_uint64, ctypes.c_uint32
    dims = (u64 * 5)(64, t, d // 64, h, b)
    strides = (u64 * 4)(2 * x.stride(2), 128, 2 * x.stride(1), 2 * x.stride(0))
    box, step = (u32 * 5)(64, box_tokens, box_panels, 1, 1), (u32 * 5)(1, 1, 1, 1, 1)
    ty = 9 if x.dtype == torch.bfloat16 else 6
    ok(drv.cuTensorMapEncodeTiled(ctypes.c_void_p(base), ty, 5, ctypes.c_void_p(x.data_ptr()), dims, strides, box, step, 0, 3, 3, 0))
    ctypes.memmove(ctypes.addressof(m), base, 128)
    return m


# ---- plans ---------------------------------------------------------------------------------------------------------
def band(q=(0, FAR), kv=(0, FAR), diag=(-FAR, FAR), documents=False, valid=False, sink=0, bitmap=None, rowbits=None):
    """bitmap: [q, kv] bools, rowbits: function tile row -> picks, as [q] bools."""
    return dict(q=q, kv=kv, diag=diag, documents=documents or sink > 0, valid=valid, sink=sink, bitmap=bitmap, rowbits=rowbits)


def transposed(i):
    return dict(i, q=i["kv"], kv=i["q"], diag=(1 - i["diag"][1], 1 - i["diag"][0]), bitmap=None if i["bitmap"] is None else i["bitmap"].T, colbits=i["rowbits"], rowbits=None)


def spans_of(ids, ids2, keys_are_rows):
    """TokenSpan of each token of `ids`, over tokens of `ids2`; and the chain. Documents are runs of equal ids >= 0."""
    t, t2 = len(ids), len(ids2)
    stretches, rank, seen = {}, np.zeros(t2, np.int32), {}
    i = 0
    while i < t2:
        j = i
        while j < t2 and ids2[j] == ids2[i]:
            j += 1
        if ids2[i] >= 0:
            stretches.setdefault(int(ids2[i]), []).append((i, j, seen.get(int(ids2[i]), 0)))
            seen[int(ids2[i])] = seen.get(int(ids2[i]), 0) + j - i
        i = j
    own, count = np.zeros(t, np.int32), {}
    i = 0
    while i < t:
        j = i
        while j < t and ids[j] == ids[i]:
            j += 1
        own[i:j] = count.get(int(ids[i]), 0) + np.arange(j - i)
        count[int(ids[i])] = count.get(int(ids[i]), 0) + j - i
        i = j
    out, extra = np.zeros((t, 4), np.int32), []
    if not keys_are_rows:
        heads = {}
        for doc, ss in stretches.items():
            nxt = 0
            for b, e, r in reversed(ss[1:]):
                extra.append((b, e, b - r, nxt))
                nxt = len(extra)
            heads[doc] = (ss[0][0], ss[0][1], ss[0][0] - ss[0][2], nxt)
        i = 0
        while i < t:
            j = i
            while j < t and ids[j] == ids[i]:
                j += 1
            if ids[i] >= 0 and int(ids[i]) in heads:
                out[i:j] = heads[int(ids[i])]
            i = j
    else:
        for i in range(t):
            ss = stretches.get(int(ids[i])) if ids[i] >= 0 else None
            if not ss:
                continue
            nxt = 0
            for b, e, r in reversed(ss[1:]):
                extra.append((b, e, int(own[i]), nxt))
                nxt = len(extra)
            out[i] = (ss[0][0], ss[0][1], int(own[i]), nxt)
    return out, extra


class Problem:
    """masks: one list of items per mask; mask_of[b][h]; docs[b]: (q ids, kv ids) or None; valid[b]: (q, kv) or None."""

    def __init__(self, b, h, hk, t, tk, masks, mask_of=None, docs=None, valid=None):
        self.b, self.h, self.hk, self.t, self.tk, self.masks = b, h, hk, t, tk, masks
        self.mask_of = np.array(mask_of if mask_of is not None else [[i % len(masks) for _ in range(h)] for i in range(b)], np.uint32).reshape(b, h)
        self.docs, self.valid = docs, valid or [(t, tk)] * b
        # a mask's runtime facts: those of the first batch row that has it
        self.batch_of = [int(np.argwhere(self.mask_of == m)[0][0]) if (self.mask_of == m).any() else 0 for m in range(len(masks))]

    def allowed(self):
        """[B, H, T, Tk] on the device."""
        qi, ki = torch.arange(self.t, device=DEV)[:, None], torch.arange(self.tk, device=DEV)[None]
        out = torch.zeros(self.b, self.h, self.t, self.tk, dtype=torch.bool, device=DEV)
        for b in range(self.b):
            done = {}
            for h in range(self.h):
                m = int(self.mask_of[b, h])
                if m not in done:
                    any_ = torch.zeros(self.t, self.tk, dtype=torch.bool, device=DEV)
                    for i in self.masks[m]:
                        x = (qi >= i["q"][0]) & (qi < i["q"][1]) & (ki >= i["kv"][0]) & (ki < i["kv"][1]) & (ki - qi >= i["diag"][0]) & (ki - qi < i["diag"][1])
                        if i["documents"]:
                            a, c = (torch.from_numpy(np.ascontiguousarray(v)).to(DEV) for v in self.docs[b])
                            x &= (a[:, None] == c[None]) & (a[:, None] >= 0)
                            if i["sink"]:
                                ids = self.docs[b][1]
                                rank, seen = np.zeros(self.tk, np.int64), {}
                                for n, d in enumerate(ids):
                                    rank[n] = seen.get(int(d), 0)
                                    seen[int(d)] = rank[n] + 1
                                x &= torch.from_numpy(rank).to(DEV)[None] < i["sink"]
                        if i["valid"]:
                            x &= (qi < self.valid[b][0]) & (ki < self.valid[b][1])
                        if i["bitmap"] is not None:
                            x &= torch.from_numpy(np.ascontiguousarray(i["bitmap"])).to(DEV)
                        if i["rowbits"] is not None:
                            x &= torch.from_numpy(i["rowbits"]).to(DEV)[:, None]
                        any_ |= x
                    done[m] = any_
                out[b, h] = done[m]
        return out


CELL = 64


def idle_of(slots, cells, per_tile):
    """Idle: cells without a pair at both ends of a row's slots, for each half of its rows."""
    leads, trails = [], []
    for half in range(2):
        has = [cells[half, c * per_tile + i] or cleanup == 0 for c, cleanup in slots for i in range(per_tile)]
        first = has.index(True) if any(has) else len(has)
        leads.append(min(first, 255))
        trails.append(min(has[::-1].index(True), 255) if any(has) else 0)
    return (*leads, *trails)


def packed(idle):
    a, b, c, d = idle
    return int(np.uint32(a | b << 8 | c << 16 | d << 24).view(np.int32))


def make_list(pr, kind, dqk, bits):
    keys = kind == "dkv"
    tr, tc = tile_of(kind, dqk)
    rows_n, cols_n = (pr.tk, pr.t) if keys else (pr.t, pr.tk)
    rpm = -(-rows_n // tr)
    idle = []
    items, cache, slots, offsets, pairs = [(0, tr, 0, tc, -(1 << 30), 1 << 30, LAST, 0)], {}, [], [0], []
    begins = np.arange(0, cols_n, tc)
    tables = None
    if pr.docs is not None:
        tables = [spans_of(*(d[::-1] if keys else d), keys) for d in pr.docs]
    for m, its in enumerate(pr.masks):
        b = pr.batch_of[m]
        its = [transposed(i) for i in its] if keys else its
        total = 0
        for row in range(rpm):
            r = np.arange(row * tr, min((row + 1) * tr, rows_n))
            area, cuts, cells = [], [], np.zeros((2, cols_n // CELL + 1 + tc // CELL), bool)
            for i in its:
                lo, hi = np.maximum(i["kv"][0], r + i["diag"][0]), np.minimum(np.minimum(i["kv"][1], r + i["diag"][1]), cols_n)
                exact = i["bitmap"] is None and i["rowbits"] is None and i.get("colbits") is None
                if i["valid"]:
                    rv, cv = pr.valid[b][::-1] if keys else pr.valid[b]
                    hi = np.where(r < rv, np.minimum(hi, cv), lo)
                if i["documents"]:
                    sp = tables[b][0][r]
                    if not (sp[:, 3] != 0).any() and not (i["sink"] and keys):
                        lo, hi = np.maximum(lo, sp[:, 0]), np.minimum(hi, sp[:, 1])
                        if i["sink"]:
                            hi = np.minimum(hi, sp[:, 2] + i["sink"])
                    else:
                        exact = False
                hi = np.where((r < i["q"][0]) | (r >= i["q"][1]), lo, np.maximum(lo, hi))
                area.append(np.clip(np.minimum(hi[:, None], begins + tc) - np.maximum(lo[:, None], begins), 0, tc).sum(0))
                cuts.append(exact)
                for half in range(2):
                    mine = slice(half * CELL, (half + 1) * CELL)
                    for a, z in np.unique(np.stack([lo[mine], hi[mine]], 1), axis=0):
                        if a < z:
                            cells[half, a // CELL:(z - 1) // CELL + 1] = True
                total += int((hi - lo).sum())
            area = np.stack(area)
            for c in np.nonzero(area.sum(0))[0]:
                used = np.nonzero(area[:, c])[0]
                need = len(r) * min(tc, cols_n - c * tc)
                if any(cuts[u] and area[u, c] == need for u in used):
                    slots.append((c, 1 if (c + 1) * tc > cols_n else 0))
                    continue
                rel = []
                for u in used:
                    i, r0, c0 = its[u], row * tr, int(c) * tc
                    cl = lambda x: int(max(-(1 << 30), min(1 << 30, x)))
                    flags = (DOCUMENT if i["documents"] else 0) | (VALID if i["valid"] else 0) | ((SINK | i["sink"] << 8) if i["sink"] else 0)
                    at = 0
                    pack = lambda x: [int(v) for v in np.packbits(x.astype(np.uint8), axis=-1, bitorder="little").view(np.uint64).ravel()]
                    if i["bitmap"] is not None:
                        sub = np.zeros((tr, -(-tc // 64) * 64), bool)
                        part = i["bitmap"][r0:r0 + tr, c0:c0 + tc]
                        sub[:part.shape[0], :part.shape[1]] = part
                        flags, at = flags | BITS, len(bits)
                        bits.extend(pack(sub))
                    if i["rowbits"] is not None or i.get("colbits") is not None:
                        src, f0, n = (i["rowbits"], r0, tr) if i["rowbits"] is not None else (i["colbits"], c0, tc)
                        sub = np.zeros(-(-n // 64) * 64, bool)
                        part = src[f0:f0 + n]
                        sub[:len(part)] = part
                        flags, at = flags | (ROWS if i["rowbits"] is not None else BITS | SAME), len(bits)
                        bits.extend(pack(sub))
                    rel.append((cl(i["q"][0] - r0), cl(i["q"][1] - r0), cl(i["kv"][0] - c0), cl(i["kv"][1] - c0), cl(i["diag"][0] + r0 - c0), cl(i["diag"][1] + r0 - c0), flags, at))
                rel = tuple(rel)
                if rel not in cache:
                    cache[rel] = len(items) + 1
                    items.extend(rel[:-1])
                    items.append((*rel[-1][:6], rel[-1][6] | LAST, rel[-1][7]))
                slots.append((int(c), cache[rel]))
            idle.append(idle_of(slots[offsets[-1]:], cells, tc // CELL) if tr == 2 * CELL else (0, 0, 0, 0))
            offsets.append(len(slots))
        pairs.append(total)
    offsets = np.array(offsets, np.int64)
    # work: head groups whose K and V fit the second cache; in each, rows longest first; heads that share keys side by side
    per = pr.h // pr.hk
    groups = math.ceil(pr.hk / max(1, min(pr.hk, int(40e6 // (2 * pr.tk * 2 * dqk)))))
    fit = math.ceil(pr.hk / groups)
    work = []
    mo = pr.mask_of
    for b in range(pr.b):
        for g in range(0, pr.hk, fit):
            if keys:
                heads = range(g, min(g + fit, pr.hk))
                cnt = {(r, h): sum(int(offsets[mo[b, x] * rpm + r + 1] - offsets[mo[b, x] * rpm + r]) for x in range(h * per, (h + 1) * per)) for r in range(rpm) for h in heads}
                of = lambda r, x: idle[mo[b, x] * rpm + r]
                part = [(r, b * pr.hk + h, 0, cnt[r, h], -1, h * per, per, packed(of(r, h * per)) if len({int(mo[b, x]) for x in range(h * per, h * per + per)}) == 1 else 0) for r in range(rpm) for h in heads]
            else:
                part = []
                for r in range(rpm):
                    for h in range(g * per, min(g + fit, pr.hk) * per):
                        at = int(mo[b, h]) * rpm + r
                        part.append((r, b * pr.h + h, int(offsets[at]), int(offsets[at + 1] - offsets[at]), -1, 0, 0, packed(idle[at])))
            part.sort(key=lambda w: -w[3])
            work += part
    out = dict(work=np.array(work, np.int32), slots=np.array(slots if slots else [(0, 0)], np.int32), items=np.array([[v - (1 << 32) if v >= 1 << 31 else v for v in i] for i in items], np.int32), offsets=offsets.astype(np.uint32), rpm=rpm,
               num_slots=len(slots), partial=sum(1 for s in slots if s[1]), pairs=pairs)
    if tables is not None:
        spans, extra = [], []
        for tab, ex in tables:
            tab = tab.copy()
            tab[:, 3] += np.where(tab[:, 3] > 0, len(extra), 0)
            extra += [(b0, e0, o0, n + len(extra) if n else 0) for b0, e0, o0, n in [x for x in ex]] if not extra else [(b0, e0, o0, n + base if n else 0) for base in [len(extra)] for b0, e0, o0, n in ex]
            spans.append(np.pad(tab, ((0, rpm * tr - len(tab)), (0, 0))))
        out["tokens"] = np.concatenate(spans).astype(np.int32)
        out["spans"] = np.array(extra if extra else [(0, 0, 0, 0)], np.int32)
    return out


def make_image(pr, dqk):
    bits = []
    lists = [make_list(pr, k, dqk, bits) for k in ("forward", "dq", "dkv")]
    blobs, at = [], 128
    def add(a):
        nonlocal at
        raw = np.ascontiguousarray(a).tobytes()
        where = at // 16
        raw += b"\0" * (-len(raw) % 256)
        blobs.append(raw)
        at += len(raw)
        return where
    blobs.append(b"\0" * 96)
    at = 256
    head = []
    for l in lists:
        head += [add(l["work"]), len(l["work"]), add(l["slots"]), add(l["items"]), add(l["offsets"]), l["rpm"], add(l["tokens"]) if "tokens" in l else 0, add(l["spans"]) if "tokens" in l else 0, 0, 0]
    head += [add(pr.mask_of.ravel()), add(np.array(pr.valid, np.int32)), add(np.array(bits, np.uint64)) if bits else 0] + [0] * 7
    image = np.frombuffer(np.array(head, np.uint32).tobytes() + b"".join(blobs), np.uint8)
    return torch.from_numpy(image.copy()).to(DEV), lists


class Attention:
    def __init__(self, pr, dtype, dqk, dv, scale=None, softcap=0.0, folder=None, backward=True):
        self.pr, self.dtype, self.dqk, self.dv, self.folder, self.softcap = pr, dtype, dqk, dv, folder, softcap
        self.scale = scale or 1 / math.sqrt(dqk)
        self.image, self.lists = make_image(pr, dqk)
        self.padded = -(-pr.t // 128) * 128
        self.sms = torch.cuda.get_device_properties(0).multi_processor_count
        self.shape, self.back_shape = (self.make_shape(most) for most in (softcap * LOG2E, 1.0))
        self.ticket = torch.zeros(16, dtype=torch.int32, device=DEV)
        self.cap = "none" if not softcap else "bounded" if softcap <= 60 and dtype == "bf16" and dqk != 192 else "wide"
        self.pairs = sum(sum(self.lists[0]["pairs"][m] for m in pr.mask_of[b]) for b in range(pr.b))

    def make_shape(self, most):
        pr = self.pr
        s = Shape(pr.b, pr.h, pr.hk, pr.t, pr.tk, self.padded, self.scale, self.scale * LOG2E)
        if self.softcap:
            near, bb = (0.999999456, -0.333263179, 0.131902964, -0.04440222), self.scale / self.softcap
            for i in range(4):
                s.near[i] = near[i] * most * bb ** (2 * i + 1)
            s.near_range, s.far_exp, s.most, s.cap_log2 = 0.5 / bb, 2 * bb * LOG2E, most, self.softcap * LOG2E
        return s

    def kernel(self, kind):
        if kind in ("prepare",):
            return kernel("prepare", self.dtype, 0, 0, "none", 0, self.folder)
        if kind == "sinks":
            return kernel("sinks", "f32", 0, 0, "none", 0, self.folder)
        cap = self.cap if kind == "forward" else "capped" if self.softcap else "none"
        return kernel(kind, self.dtype, self.dqk, self.dv, cap, shared_bytes(kind, self.dqk, self.dv), self.folder)

    def bind_forward(self, q, k, v, o, lse, row_max=None, sinks=None):
        tr, tc = tile_of("forward", self.dqk)
        p = ForwardParams(encode(q, tr, self.dqk // 64), encode(k, tc, self.dqk // 64), encode(v, tc, self.dv // 64), encode(o, 64, 1), rows_of(v), ptr(self.image), ptr(sinks),
                          ptr(lse), ptr(row_max), ptr(self.ticket), None, self.shape)
        work = len(self.lists[0]["work"])
        grid, fn, smem = min(work, self.sms), self.kernel("forward"), shared_bytes("forward", self.dqk, self.dv)
        keep = (q, k, v, o, lse, row_max, sinks)

        def run():
            if grid < work:
                self.ticket.zero_()
            launch(fn, (grid, 1), 384, smem, p)
        run.keep = keep
        return run

    def bind_backward(self, q, k, v, o, do, lse, dq, dk, dv, sinks=None, dsink=None, delta=None):
        pr = self.pr
        n = pr.b * pr.h * self.padded
        ws = torch.full((16 + 2 * n + n // 64 + 64,), math.nan, device=DEV)
        lse2, dl, parts = ws[16:16 + n], ws[16 + n:16 + 2 * n], ws[16 + 2 * n:]
        prep = PrepareParams(rows_of(o), rows_of(do), ptr(lse), ptr(delta), ptr(sinks), ptr(lse2), ptr(dl), ptr(parts) if dsink is not None else None, ptr(ws), self.shape, self.dv, 0)
        calls = []
        for kind, rows, cols, outs, ti in (("dkv", (k, v), (q, do), (dk, dv), 2), ("dq", (q, do), (k, v), (dq, dq), 1)):
            tr, tc = tile_of(kind, self.dqk)
            dims = (self.dqk, self.dv)
            p = BackwardParams()
            for i in range(2):
                p.rows[i], p.cols[i], p.out[i], p.col_rows[i] = encode(rows[i], tr, dims[i] // 64), encode(cols[i], tc, dims[i] // 64), encode(outs[i], 64, 1), rows_of(cols[i])
            p.plan, p.lse2, p.delta, p.ticket, p.shape = ptr(self.image), ptr(lse2), ptr(dl), ptr(ws) + 4 * ti, self.back_shape
            work = len(self.lists[2 if kind == "dkv" else 1]["work"])
            grid = min(work, self.sms)
            calls.append((self.kernel(kind), (grid, 1), 384, shared_bytes(kind, self.dqk, self.dv), p, kind == "dq" and os.environ.get("BESIDE", "1") == "1"))
        fprep, fsink = self.kernel("prepare"), self.kernel("sinks") if dsink is not None else None
        sp = SinksParams(ptr(parts), ptr(dsink), self.shape)

        def run(which=7):
            if which & 1:
                launch(fprep, (self.padded // 64 * pr.b * pr.h, 1), 256, 0, prep)
                if fsink is not None:
                    launch(fsink, (pr.h, 1), 128, 0, sp)
            if which & 2:
                launch(*calls[0])
            if which & 4:
                launch(*calls[1])
        run.keep = (ws, q, k, v, o, do, lse, dq, dk, dv, sinks, dsink, delta, prep, calls, sp)
        return run
