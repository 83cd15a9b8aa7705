"""The kernels against float64 on odd shapes and masks, and NaN where nobody may see it.
  python3 bench/cuda/check.py bf16:128:128 f16:192:128 ..."""
import math, os, sys, time, random
import numpy as np, torch
from kernels import *

FOLDER = CUBINS
TY = {"bf16": torch.bfloat16, "f16": torch.float16}


def reference(pr, q, k, v, do, allowed, softcap, scale, sinks, chunk=None):
    h, hk = pr.h, pr.hk
    q, do, k, v = q.double(), do.double(), *(x.double().repeat_interleave(h // hk, 1) for x in (k, v))
    x = q @ k.mT * scale
    s = softcap * torch.tanh(x / softcap) if softcap else x
    g = 1 - (s / softcap) ** 2 if softcap else 1.0
    s = s.masked_fill(~allowed, -math.inf)
    top = s.max(-1).values
    lse = torch.logsumexp(s, -1)
    empty = ~allowed.any(-1)
    if sinks is not None:
        lse = torch.where(empty, lse, torch.logaddexp(lse, sinks.double()[None, :, None].expand_as(lse)))
    p = torch.exp(s - torch.where(lse == -math.inf, 0.0, lse)[..., None])
    o = p @ v
    delta = (o * do).sum(-1, keepdim=True)
    ds = p * (do @ v.mT - delta) * g * scale
    grp = lambda y: y.view(pr.b, hk, h // hk, *y.shape[2:]).sum(2)
    dsink = None
    if sinks is not None:
        dsink = -(torch.where(empty, 0.0, torch.exp(sinks.double()[None, :, None] - lse)) * delta[..., 0]).sum((0, 2))
    return o, lse, top, (ds @ k, grp(ds.mT @ q), grp(p.mT @ do)), dsink, empty


def lens_ids(lens, ids=None):
    return np.repeat(np.arange(len(lens)) if ids is None else np.array(ids), lens).astype(np.int32)


def rdocs(t, mean, seed):
    g, lens = random.Random(seed), []
    while sum(lens) < t:
        lens.append(min(int(g.expovariate(1 / mean)) + 3, t - sum(lens)))
    return lens_ids(lens)


def cases():
    C = (-FAR, 1)
    r = np.random.default_rng(5)
    out = []
    add = lambda name, pr, **kw: out.append((name, pr, kw))
    for t in (1, 63, 128, 129, 512, 1000, 2500):
        add(f"causal {t}", Problem(1, 2, 2, t, t, [[band(diag=C)]]))
    add("full 300x500 b2 mqa", Problem(2, 4, 1, 300, 500, [[band()]]))
    add("full 640x77", Problem(1, 2, 2, 640, 77, [[band()]]))
    add("causal offset", Problem(1, 2, 1, 200, 700, [[band(diag=(-FAR, 501))]]))
    add("window 100", Problem(1, 3, 3, 777, 777, [[band(diag=(-99, 1))]]), row_max=True)
    add("window 512 sinklogit", Problem(1, 4, 2, 1500, 1500, [[band(diag=(-511, 1))]]), sinks=True, row_max=True)
    d = rdocs(1500, 150, 3)
    add("documents", Problem(1, 2, 2, 1500, 1500, [[band(diag=C, documents=True)]], docs=[(d, d)]))
    ds = [rdocs(1111, 200, s) for s in (5, 6)]
    add("documents gqa b2", Problem(2, 8, 2, 1111, 1111, [[band(diag=(-199, 1), documents=True)], [band(diag=(-199, 1), documents=True)]], docs=[(x, x) for x in ds]))
    add("documents+sink(4,doc)", Problem(1, 4, 2, 1111, 1111, [[band(diag=(-99, 1), documents=True), band(diag=C, documents=True, sink=4)]], docs=[(ds[0], ds[0])]))
    e = lens_ids([100, 200, 150, 300, 250], [0, 1, 0, -1, 1])
    add("documents equal", Problem(1, 2, 1, 1000, 1000, [[band(documents=True)]], docs=[(e, e)]))
    add("equal sink", Problem(1, 2, 1, 1000, 1000, [[band(documents=True, sink=120)]], docs=[(e, e)]))
    add("valid", Problem(3, 2, 2, 600, 600, [[band(diag=C, valid=True)]] * 3, valid=[(600, 600), (0, 0), (333, 401)]), sinks=True)
    add("valid docs", Problem(2, 2, 1, 500, 500, [[band(diag=C, valid=True, documents=True)]] * 2, docs=[(rdocs(500, 60, 1),) * 2, (rdocs(500, 90, 2),) * 2], valid=[(450, 450), (500, 77)]))
    add("empty rows", Problem(1, 2, 2, 900, 900, [[band(q=(200, 300), kv=(50, 400)), band(q=(700, 701), kv=(3, 4))]]), sinks=True, row_max=True)
    add("all empty", Problem(1, 2, 2, 300, 300, [[band(q=(0, 0))]]), sinks=True)
    add("window or sink", Problem(1, 2, 2, 900, 900, [[band(diag=(-127, 1)), band(kv=(0, 10), diag=(-FAR, -127))]]))
    bm = r.random((700, 700)) < 0.3
    bm[:, 400:] &= bm[:, 400:] & (r.random((700, 1)) < 0.2)
    add("bitmap", Problem(1, 2, 2, 700, 700, [[band(bitmap=bm)]]), row_max=True)
    bm2 = r.random((333, 555)) < 0.1
    add("bitmap causal", Problem(1, 2, 1, 333, 555, [[band(bitmap=bm2, diag=(-FAR, 223))]]))
    pick = [band(q=(0, 900), kv=(b0, b0 + 128), diag=C, rowbits=r.random(900) < 0.5) for b0 in range(0, 900, 128)]
    add("routed", Problem(1, 4, 2, 900, 900, [pick]))
    add("per head", Problem(2, 4, 2, 700, 700, [[band(diag=C)], [band(diag=(-63, 1))], [band(q=(100, 300))]], mask_of=[[0, 1, 2, 0], [1, 1, 0, 2]]))
    add("short rows many heads", Problem(1, 16, 16, 2500, 2500, [[band(diag=(-9, 1)), band(q=(300, 1000), kv=(0, 290))]]))
    for cap, gain in ((30, 1), (30, 5), (30, 12), (60, 40), (5, 4), (100, 30)):
        add(f"softcap {cap} gain {gain}", Problem(1, 4, 2, 700, 700, [[band(diag=(-299, 1))]]), softcap=float(cap), gain=gain, row_max=True, sinks=cap == 5)
    add("softcap empty", Problem(1, 2, 2, 900, 900, [[band(q=(200, 300), kv=(50, 400))]]), softcap=5.0, gain=4, row_max=True, sinks=True)
    add("all together", Problem(2, 8, 2, 1111, 1111, [[band(diag=(-199, 1), documents=True)], [band(diag=(-199, 1), documents=True)]], docs=[(x, x) for x in ds]), softcap=30.0)
    add("bthd", Problem(2, 4, 2, 400, 400, [[band(diag=C)]]), bthd=True)
    return out


def make(b, h, t, d, dtype, g, bthd=False, gain=1.0):
    if bthd:
        return (torch.randn(b, t, h, d, device=DEV, generator=g) * gain).to(TY[dtype]).transpose(1, 2)
    return (torch.randn(b, h, t, d, device=DEV, generator=g) * gain).to(TY[dtype])


def run_case(pr, dtype, dqk, dv, q, k, v, do, softcap, sinks, row_max, bthd=False, att=None):
    att = att or Attention(pr, dtype, dqk, dv, softcap=softcap, folder=FOLDER)
    like = lambda x: torch.full_like(x, math.nan)
    o = like(do)
    lse = torch.full((pr.b, pr.h, pr.t), math.nan, device=DEV)
    rm = torch.full_like(lse, math.nan) if row_max else None
    att.bind_forward(q, k, v, o, lse, rm, sinks)()
    dq, dk, dvv = like(q), like(k), like(v)
    dsink = torch.full((pr.h,), math.nan, device=DEV) if sinks is not None else None
    att.bind_backward(q, k, v, o, do, lse, dq, dk, dvv, sinks, dsink)()
    torch.cuda.synchronize()
    return att, o, lse, rm, (dq, dk, dvv), dsink


def check(dtype, dqk, dv, only=None):
    bad = 0
    for name, pr, kw in cases():
        if only and only not in name:
            continue
        softcap, gain, sk, row_max, bthd = kw.get("softcap", 0.0), kw.get("gain", 1), kw.get("sinks"), kw.get("row_max"), kw.get("bthd", False)
        g = torch.Generator(device=DEV).manual_seed(sum(map(ord, name)))
        q, k, v, do = make(pr.b, pr.h, pr.t, dqk, dtype, g, bthd, gain), make(pr.b, pr.hk, pr.tk, dqk, dtype, g, bthd), make(pr.b, pr.hk, pr.tk, dv, dtype, g, bthd), make(pr.b, pr.h, pr.t, dv, dtype, g, bthd)
        sinks = torch.randn(pr.h, device=DEV, generator=g) if sk else None
        allowed = pr.allowed()
        att, o, lse, rm, grads, dsink = run_case(pr, dtype, dqk, dv, q, k, v, do, softcap, sinks, row_max)
        ro, rl, rt, rg, rds, empty = reference(pr, q, k, v, do, allowed, softcap, att.scale, sinks)
        dist = lambda x, y: ((x.double() - y).norm() / max(y.norm().item(), 1e-3)).item()
        notes = []
        eo, el = dist(o, ro), max([0.0, *((lse.double() - rl)[~empty].abs() / rl[~empty].abs().clamp(min=1)).tolist()])
        eg = [dist(x, y) for x, y in zip(grads, rg)]
        if not (lse[empty] == -math.inf).all(): notes.append("lse of empty rows")
        if not (o[empty] == 0).all(): notes.append("o of empty rows")
        if not (grads[0][empty] == 0).all(): notes.append("dq of empty rows")
        seen = allowed.view(pr.b, pr.hk, -1, pr.t, pr.tk).any(2).any(2)
        if not all((x[~seen] == 0).all() for x in grads[1:]): notes.append("dk, dv of empty columns")
        for n, x in zip(("o", "dq", "dk", "dv"), (o, *grads)):
            if not x.isfinite().all(): notes.append(f"{n} not finite")
        if rm is not None:
            em = (rm.double() - rt)[~empty].abs().max().item() if (~empty).any() else 0
            if not em < 3e-5 * max(1, rt[~empty].abs().max().item() if (~empty).any() else 1): notes.append(f"row_max {em:.1e}")
            if not (rm[empty] == -math.inf).all(): notes.append("row_max of empty rows")
        if dsink is not None:
            es = dist(dsink, rds)
            if not es < 1e-2: notes.append(f"dsink {es:.1e}")
        tol = 1.0 if dtype == "bf16" else 0.25
        if not eo < 4e-3 * tol: notes.append("O")
        if not el < 4e-6 * max(1, gain / 10): notes.append("LSE")
        # dP - delta cancels where a row sees one key: what f32 rounds of a row of do and one of v goes into dq and dk.
        longest = math.prod(x.double().norm(dim=-1).max().item() for x in (do, v, k)) * att.scale * gain
        off = [(x.double() - y).norm().item() for x, y in zip(grads, rg)]
        allowed_off = [6e-3 * (tol if gain < 10 else 2) * max(y.norm().item(), 1e-3) + 2**-24 * longest for y in rg]
        if not all(x < y for x, y in zip(off, allowed_off)): notes.append("GRAD")
        # the same bits again
        att2, o2, lse2, rm2, grads2, ds2 = run_case(pr, dtype, dqk, dv, q, k, v, do, softcap, sinks, row_max, att=att)
        if not (torch.equal(o, o2) and torch.equal(lse, lse2) and all(torch.equal(x, y) for x, y in zip(grads, grads2))): notes.append("other bits the second time")
        bad += bool(notes)
        print(f"{dtype} {dqk}/{dv} {name:22s} slots {att.lists[0]['num_slots']:4d} partial {att.lists[0]['partial']:3d} o {eo:.1e} lse {el:.0e} grads {' '.join(f'{x:.1e}' for x in eg)} {'; '.join(notes) and 'BAD ' + '; '.join(notes)}", flush=True)
    return bad


def poison(dtype, dqk, dv, softcap=0.0):
    """NaN and Inf: in padding nothing changes; in a valid token nothing changes for those who do not see it, and those who do see it."""
    bad = 0
    t = 700
    ids = lens_ids([150, 130, 100, 220, 100], [0, 1, -1, 2, 3])
    for what, pr in (("documents", Problem(1, 4, 2, t, t, [[band(diag=(-FAR, 1), documents=True)]], docs=[(ids, ids)])),
                     ("full documents", Problem(1, 4, 2, t, t, [[band(documents=True)]], docs=[(ids, ids)])),
                     ("valid", Problem(1, 4, 2, t, t, [[band(diag=(-299, 1), valid=True)]], valid=[(450, 450)]))):
        g = torch.Generator(device=DEV).manual_seed(1)
        clean = [make(1, n, t, d, dtype, g) for n, d in ((4, dqk), (2, dqk), (2, dv), (4, dv))]
        allowed = pr.allowed()
        sees = allowed[0, 0]
        att, o, lse, _, grads, _ = run_case(pr, dtype, dqk, dv, *clean, softcap, None, False)
        pad = ~sees.any(1) & ~sees.any(0)
        for value in (math.nan, math.inf, -math.inf):
            x = [y.clone() for y in clean]
            for y in x:
                y[:, :, pad] = value
            _, o2, lse2, _, grads2, _ = run_case(pr, dtype, dqk, dv, *x, softcap, None, False, att=att)
            same = torch.equal(o, o2) and torch.equal(lse, lse2) and all(torch.equal(a, b) for a, b in zip(grads, grads2))
            if not same:
                bad += 1
                print("BAD padding", what, value, [int((a != b).sum()) for a, b in zip((o, lse, *grads), (o2, lse2, *grads2))])
            for tok in (160, 400):  # a valid token, one element
                for which in range(4):
                    x = [y.clone() for y in clean]
                    x[which][:, :, tok, 5] = value
                    _, o2, lse2, _, grads2, _ = run_case(pr, dtype, dqk, dv, *x, softcap, None, False, att=att)
                    rows = sees[:, tok] if which in (1, 2) else torch.arange(t, device=DEV) == tok  # rows that are reached
                    keys = sees[rows].any(0)  # keys those rows see
                    if which in (1, 2):
                        keys[tok] = True
                    o_ok = torch.equal(o[:, :, ~rows], o2[:, :, ~rows]) if which < 3 else torch.equal(o, o2)
                    l_ok = torch.equal(lse[:, :, ~rows], lse2[:, :, ~rows]) if which in (0, 1) else torch.equal(lse, lse2)
                    g_ok = torch.equal(grads[0][:, :, ~rows], grads2[0][:, :, ~rows]) and all(torch.equal(a[:, :, ~keys], b[:, :, ~keys]) for a, b in zip(grads[1:], grads2[1:]))
                    hit = True
                    if which == 2:
                        hit = not o2[:, :, rows, 5].isfinite().any() and bool(o2[:, :, rows, 6].isfinite().all())
                        near = ((o2[:, :, rows, 6].float() - o[:, :, rows, 6].float()).abs().max() < 2e-2).item()
                        hit = hit and near
                    if which == 0 and not (softcap and math.isinf(value)):  # a capped infinity is finite
                        hit = bool((~o2[:, :, rows].isfinite()).any())
                    if which == 3:
                        hit = not grads2[2][:, :, keys, 5].isfinite().any() and bool(grads2[2][:, :, keys, 6].isfinite().all())
                    if not (o_ok and l_ok and g_ok and hit):
                        bad += 1
                        print("BAD poison", what, value, "qkvd"[which], tok, o_ok, l_ok, g_ok, hit, flush=True)
    print(f"{dtype} {dqk}/{dv} softcap {softcap} poison: {'good' if not bad else bad}", flush=True)
    return bad


if __name__ == "__main__":
    start, bad = time.time(), 0
    for d in sys.argv[1:] or ["bf16:128:128"]:
        ty, a, b = d.split(":")
        bad += check(ty, int(a), int(b), os.environ.get("ONLY"))
        if not os.environ.get("ONLY"):
            bad += poison(ty, int(a), int(b)) + poison(ty, int(a), int(b), 30.0)
    print(f"checks: {'all good' if not bad else f'{bad} BAD'}  {time.time() - start:.0f} s", flush=True)
    sys.exit(bad > 0)
