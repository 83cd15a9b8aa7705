"""Variants of the kernels beside cuDNN and compiled FlexAttention, interleaved in one process; table.py is the library's own bench.
  python3 bench/cuda/bench.py [flex] [T=8192,32768] [cases=causal,window,...] [dims=192:128] [dtype=f16] [folders=DIR,DIR of cubins]"""
import math, os, sys, time
import numpy as np, torch
from kernels import *


def timed(cands, rounds=20, warm=3):
    samples = {n: [] for n in cands}
    for i in range(rounds + warm):
        for name, f in cands.items():
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(400_000)
            a.record()
            f()
            b.record()
            torch.cuda.synchronize()
            if i >= warm:
                samples[name].append(a.elapsed_time(b))
    return {n: sorted(s)[len(s) // 2] for n, s in samples.items()}


def docs_of(t):
    g, lens = torch.Generator().manual_seed(0), []
    total = 0
    while total < t:
        n = min(int(torch.empty(1).exponential_(1 / 2048, generator=g).item()) + 16, t - total)
        lens.append(n)
        total += n
    return np.repeat(np.arange(len(lens)), lens).astype(np.int32)


ARG = dict(a.split("=") for a in sys.argv[1:] if "=" in a)
FLEX = "flex" in sys.argv
C = (-FAR, 1)


def cases(t):
    ids = docs_of(t)
    did = torch.from_numpy(ids).to(DEV)
    doc = [(ids, ids)]
    return {  # name: heads, kv heads, masks, docs, softcap, gain, flex mask
        "causal": (16, 16, [[band(diag=C)]], None, 0.0, 1, lambda b, h, q, k: q >= k),
        "softcap": (16, 16, [[band(diag=C)]], None, 30.0, 1, lambda b, h, q, k: q >= k),
        "softcap12": (16, 16, [[band(diag=C)]], None, 30.0, 12, lambda b, h, q, k: q >= k),
        "window": (16, 16, [[band(diag=(-1023, 1))]], None, 0.0, 1, lambda b, h, q, k: (q >= k) & (q - k < 1024)),
        "documents": (16, 16, [[band(diag=C, documents=True)]], doc, 0.0, 1, lambda b, h, q, k: (q >= k) & (did[q] == did[k])),
        "together": (16, 4, [[band(diag=(-1023, 1), documents=True)]], doc, 30.0, 1, lambda b, h, q, k: (q >= k) & (did[q] == did[k]) & (q - k < 1024)),
        "window4096": (8, 8, [[band(diag=(-4095, 1))]], None, 0.0, 1, lambda b, h, q, k: (q >= k) & (q - k < 4096)),
    }


def main():
    from torch.nn.attention import sdpa_kernel, SDPBackend
    from torch.nn.attention.flex_attention import flex_attention, create_block_mask
    dims = ARG.get("dims", "128:128").split(":")
    dqk, dv = int(dims[0]), int(dims[1])
    dtype = ARG.get("dtype", "bf16")
    folders = ARG.get("folders", CUBINS).split(",")
    ty = torch.bfloat16 if dtype == "bf16" else torch.float16
    for t in map(int, ARG.get("T", "8192,32768").split(",")):
        for name, (h, hk, masks, docs, cap, gain, fm) in cases(t).items():
            if "cases" in ARG and name not in ARG["cases"].split(","):
                continue
            torch.manual_seed(1)
            q, do = (torch.randn(1, h, t, dqk, device=DEV) * gain).to(ty), torch.randn(1, h, t, dv, device=DEV, dtype=ty)
            k, v = torch.randn(1, hk, t, dqk, device=DEV, dtype=ty), torch.randn(1, hk, t, dv, device=DEV, dtype=ty)
            pr = Problem(1, h, hk, t, t, masks, docs=docs)
            fw, bw, parts, outs = {}, {}, {}, None
            for fo in folders:
                att = Attention(pr, dtype, dqk, dv, softcap=cap, folder=fo)
                o, lse = torch.empty_like(do), torch.empty(1, h, t, device=DEV)
                f = att.bind_forward(q, k, v, o, lse)
                f()
                gr = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
                b = att.bind_backward(q, k, v, o, do, lse, *gr)
                b()
                fw[fo], bw[fo] = f, b
                parts[fo + ".dkv"], parts[fo + ".dq"], parts[fo + ".prep"] = (lambda b=b: b(2)), (lambda b=b: b(4)), (lambda b=b: b(1))
                outs = outs or (o, *gr)
            leaf = [x.clone().requires_grad_() for x in (q, k, v)]

            def back_of(call):
                out = call(*leaf)
                return lambda: torch.autograd.grad(out, leaf, do, retain_graph=True)
            diff = []
            close = lambda x, y: ((x.float() - y.float()).norm() / y.float().norm()).item()
            if name == "causal" and ARG.get("cudnn", "1") == "1":
                try:
                    def cudnn(*x):
                        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                            return torch.nn.functional.scaled_dot_product_attention(*x, is_causal=True)
                    fw["cudnn"] = lambda: cudnn(q, k, v)
                    bw["cudnn"] = back_of(cudnn)
                    diff += [close(outs[0], fw["cudnn"]()), *map(close, outs[1:], bw["cudnn"]())]
                except Exception as e:
                    print("cudnn:", str(e)[:100]); fw.pop("cudnn", None); bw.pop("cudnn", None)
            if FLEX:
                try:
                    torch._dynamo.reset()
                    comp = torch.compile(flex_attention, dynamic=False)
                    blocks = torch.compile(create_block_mask)(fm, 1, None, t, t, device=DEV)
                    mod = (lambda s, b, hh, qi, ki: cap * torch.tanh(s / cap)) if cap else None
                    flex = lambda *x: comp(*x, block_mask=blocks, score_mod=mod, enable_gqa=hk != h)
                    fw["flex"] = lambda: flex(q, k, v)
                    bw["flex"] = back_of(flex)
                    diff += [close(outs[0], fw["flex"]()), *map(close, outs[1:], bw["flex"]())]
                except Exception as e:
                    print("flex:", str(e)[:100]); fw.pop("flex", None); bw.pop("flex", None)
            pairs = att.pairs
            rate = lambda ms, fl: "  ".join(f"{n} {fl * pairs / m / 1e9:.0f}" for n, m in ms.items())
            mf, mb = timed(fw), timed(bw)
            mp = timed(parts, rounds=8) if ARG.get("parts", "1") == "1" else {}
            print(f"{dtype} {dqk}/{dv} {name:10s} {t:6d} fwd: {rate(mf, 2 * (dqk + dv))} | bwd: {rate(mb, 2 * (3 * dqk + 2 * dv))} | ms " + " ".join(f"{n} {m:.3f}" for n, m in mp.items()) +
                  f" | slots {[l['num_slots'] for l in att.lists]} | differs " + " ".join(f"{x:.0e}" for x in diff), flush=True)
            del leaf, fw, bw


if __name__ == "__main__":
    s = time.time()
    main()
    print(f"{time.time() - s:.0f} s; {torch.cuda.get_device_name()}")
    os.system("nvidia-smi --query-gpu=clocks.sm,power.draw,clocks_event_reasons.active --format=csv,noheader")
