"""The CUDA lane through its public call, beside compiled FlexAttention and cuDNN's fused attention: one process, one rotation,
random data, medians. A row says yes or NO of each goal it has.

  script/bench cuda [--cases causal,window] [--lengths 8192,32768] [--rounds 25] [--no-peers] [--json]

Device time is between two events with the queue kept full before them, so that no launch is waited for; `call` is the time from the
call to the end of its work, `host` the time until the call returns. TFLOP/s count allowed pairs: 2 (D + Dv) operations forward and
2 (3 D + 2 Dv) backward. A goal in TFLOP/s also holds where the ratio to FlexAttention of the same run is the one that the goal and
FlexAttention's figure of the day it was set imply: the card runs at its power limit, and all that shares the rotation moves a figure."""
import argparse, dataclasses, json, os, statistics, subprocess, sys, time
import numpy as np, torch
from library import Bound, Library

FLEX_FLOOR = (1.2, 1.15)    # at every length
CUDNN_FLOOR = (1.08, 0.92)  # causal, 32K
PASSES = ("forward", "backward")
PEERS = ("flex", "cudnn")
TEXT = sys.stdout


def say(text):
    print(text, file=TEXT, flush=True)


@dataclasses.dataclass
class Case:
    name: str
    mask: str                     # as the contract has it
    flex: object                  # the same as FlexAttention has it: (q, k, document ids) -> bool
    heads: int = 16
    kv_heads: int = 16
    dims: tuple = (128, 128)
    dtype: str = "bf16"
    softcap: float = 0.0
    deviation: float = 1.0        # of the scores
    window: int = 0               # keys of a row at most; 0: all
    documents: bool = False
    queries: int = 0              # the last so many of the tokens; 0: all
    lengths: tuple = (1024, 2048, 4096, 8192, 16384, 32768)
    must: dict = dataclasses.field(default_factory=dict)  # length: TFLOP/s forward, backward
    flex_then: dict = dataclasses.field(default_factory=dict)  # FlexAttention's figures the goals were set beside
    flex_ratio: tuple = FLEX_FLOOR
    cudnn: bool = False


def causal(q, k, ids):
    return q >= k


def near(window):
    return lambda q, k, ids: (q >= k) & (q - k < window)


CASES = [
    Case("causal", "causal", causal, cudnn=True, must={8192: (650, 470), 32768: (670, 480)}, flex_then={8192: (365, 383), 32768: (385, 357)}),
    Case("softcap", "causal", causal, softcap=30.0, must={8192: (560, 400), 32768: (580, 420)}, flex_then={32768: (191, 199)}),
    Case("softcap_far", "causal", causal, softcap=30.0, deviation=12.0, lengths=(8192, 32768), must={32768: (400, 330)}),
    Case("window", "window(1023, 0)", near(1024), window=1024, must={8192: (470, 330), 32768: (540, 370)}, flex_then={8192: (290, 293), 32768: (315, 301)}),
    Case("documents", "causal and documents", lambda q, k, ids: (q >= k) & (ids[q] == ids[k]), documents=True,
         must={8192: (620, 450), 32768: (580, 415)}, flex_then={8192: (317, 349), 32768: (329, 320)}),
    Case("together", "window(1023, 0) and documents", lambda q, k, ids: near(1024)(q, k, ids) & (ids[q] == ids[k]), kv_heads=4, softcap=30.0, window=1024,
         documents=True, must={8192: (400, 290), 32768: (430, 320)}, flex_then={32768: (142, 122)}),
    Case("window4096", "window(4095, 0)", near(4096), heads=8, kv_heads=8, window=4096, lengths=(131072,), must={131072: (600, 430)}, flex_then={131072: (396, 355)}),
    Case("dim64", "causal", causal, dims=(64, 64), lengths=(16384,), flex_ratio=(1.25, 1.25), cudnn=True),
    Case("dim192", "causal", causal, dims=(192, 128), lengths=(16384,), flex_ratio=(1.25, 1.25)),
    Case("dim256", "causal", causal, dims=(256, 256), lengths=(16384,), flex_ratio=(1.25, 1.25), cudnn=True),
    Case("few", "causal", causal, queries=128, lengths=(32768, 131072)),
    Case("one_kv_head", "causal", causal, kv_heads=1, lengths=(4096,)),
    Case("f16", "causal", causal, dtype="f16", lengths=(8192, 32768), cudnn=True),
]


def documents_of(tokens, seed=0, mean=2048):
    """Lengths drawn as in packed training: exponential, mean 2048. With seed 0 those that the goals were set with."""
    random, lengths = torch.Generator().manual_seed(seed), []
    while sum(lengths) < tokens:
        lengths.append(min(int(torch.empty(1).exponential_(1 / mean, generator=random).item()) + 16, tokens - sum(lengths)))
    return np.repeat(np.arange(len(lengths)), lengths).astype(np.int32)[None]


def pairs_of(case, tokens, ids):
    row = np.arange(tokens, dtype=np.int64)
    first = np.zeros(tokens, np.int64)
    if ids is not None:
        first = np.searchsorted(ids[0], ids[0], side="left")
    if case.window:
        first = np.maximum(first, row - case.window + 1)
    return int((row - first + 1)[-case.queries:].sum()) * case.heads


def operations(case, is_backward):
    d, dv = case.dims
    return 2 * (3 * d + 2 * dv) if is_backward else 2 * (d + dv)


def contract_of(case, tokens, scale):
    score = {"scale": scale}
    if case.softcap:
        score["softcap"] = case.softcap
    return {"version": 1, "mask": {"expr": case.mask}, "score": score,
            "shape": {"batch": 1, "q_len": case.queries or tokens, "kv_len": tokens, "num_q_heads": case.heads, "num_kv_heads": case.kv_heads,
                      "dim_qk": case.dims[0], "dim_v": case.dims[1], "dtype": case.dtype}}


# ---- times ----------------------------------------------------------------------------------------------------------------------

class Gpu:
    """Of events, with the device kept busy while the host gets ahead of it."""
    name, target, lane = "cuda", "h200", "cuda"

    def describe(self):
        return f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"

    def device_ms(self, call):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(400_000)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end)

    def wait(self):
        torch.cuda.synchronize()

    def stream(self):
        return torch.cuda.current_stream().cuda_stream

    def used_bytes(self):
        free, total = torch.cuda.mem_get_info()
        return total - free

    def clocks(self):
        ask = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw,temperature.gpu,clocks_event_reasons.sw_power_cap", "--format=csv,noheader"]
        try:
            return subprocess.run(ask, capture_output=True, text=True, timeout=20).stdout.strip().replace(", ", " ")
        except (OSError, subprocess.TimeoutExpired):
            return "clocks not known"


class Host:
    """To try the program without a GPU: the cpu lane, FlexAttention not compiled. Its figures mean nothing."""
    name, target, lane = "cpu", "cpu", "cpu"

    def describe(self):
        return "no GPU: a trial of this program, whose figures mean nothing"

    def device_ms(self, call):
        begin = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - begin)

    def wait(self):
        pass

    def stream(self):
        return None

    def used_bytes(self):
        return 0

    def clocks(self):
        return ""


def rotate(machine, calls, rounds, warm=3):
    """Medians of device time, ms, of calls taken in turn."""
    samples = {name: [] for name in calls}
    for i in range(rounds + warm):
        for name, call in calls.items():
            ms = machine.device_ms(call)
            if i >= warm:
                samples[name].append(ms)
    return {name: statistics.median(taken) for name, taken in samples.items()}


def call_times(machine, call, rounds=15):
    """Median time until the work is done, ms, and until the call returns, us."""
    done, back = [], []
    for _ in range(rounds):
        machine.wait()
        begin = time.perf_counter()
        call()
        returned = time.perf_counter()
        machine.wait()
        done.append(1e3 * (time.perf_counter() - begin))
        back.append(1e6 * (returned - begin))
    return statistics.median(done), statistics.median(back)


# ---- peers ----------------------------------------------------------------------------------------------------------------------

def flex_calls(machine, case, tokens, ids, leaves, dout, scale):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    document = None if ids is None else torch.from_numpy(ids[0]).to(machine.name)
    torch._dynamo.reset()
    compiled = torch.compile if machine.name == "cuda" else lambda f, **_: f
    attend = compiled(flex_attention, dynamic=False)
    queries = case.queries or tokens
    blocks = compiled(create_block_mask)(lambda b, h, q, k: case.flex(q + (tokens - queries), k, document), 1, None, queries, tokens, device=machine.name)
    cap = case.softcap
    mod = (lambda s, b, h, q, k: cap * torch.tanh(s / cap)) if cap else None
    return peer_calls(lambda q, k, v: attend(q, k, v, block_mask=blocks, score_mod=mod, scale=scale, enable_gqa=case.heads != case.kv_heads), leaves, dout)


def cudnn_calls(leaves, dout, scale):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def attend(q, k, v):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    return peer_calls(attend, leaves, dout)


def peer_calls(attend, leaves, dout):
    plain = [x.detach() for x in leaves]
    out = attend(*leaves)
    return (lambda: attend(*plain)), (lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True))


# ---- a row ----------------------------------------------------------------------------------------------------------------------

def judge(case, tokens, is_backward, rate, peers):
    """Each goal of this row and pass as (text, holds)."""
    goals, flex, cudnn = [], peers.get("flex"), peers.get("cudnn")
    must = case.must.get(tokens)
    if must:
        want, then = must[is_backward], case.flex_then.get(tokens)
        holds, by = rate >= want, ""
        if not holds and flex and then and rate / flex >= want / then[is_backward]:
            holds, by = True, f" by its ratio, {want / then[is_backward]:.2f}x Flex"
        goals.append((f"{want}{by}", holds))
    if flex:
        goals.append((f"{case.flex_ratio[is_backward]}x Flex", rate >= case.flex_ratio[is_backward] * flex))
    if cudnn and case.name == "causal" and tokens == 32768:
        goals.append((f"{CUDNN_FLOOR[is_backward]}x cuDNN", rate >= CUDNN_FLOOR[is_backward] * cudnn))
    return goals


def difference(got, want):
    return max(((a.float() - b.float()).norm() / b.float().norm().clamp(min=1e-6)).item() for a, b in zip(got, want))


def run_row(machine, library, case, tokens, arguments):
    torch.manual_seed(1)
    dtype = torch.bfloat16 if case.dtype == "bf16" else torch.float16
    (d, dv), h, hk = case.dims, case.heads, case.kv_heads
    scale = d ** -0.5
    make = lambda heads, dim, gain=1.0, many=tokens: (torch.randn(1, heads, many, dim, device=machine.name) * gain).to(dtype)
    queries = case.queries or tokens
    q, k, v, dout = make(h, d, case.deviation, queries), make(hk, d), make(hk, dv), make(h, dv, many=queries)
    ids = documents_of(tokens) if case.documents else None
    o, lse = torch.empty_like(dout), torch.empty(1, h, queries, device=machine.name)
    grads = [torch.empty_like(x) for x in (q, k, v)]
    machine.wait()
    before = machine.used_bytes()
    bound = Bound(library, contract_of(case, tokens, scale), machine.target, machine.lane, machine.name, doc_ids=ids)
    ours = bound.calls(machine.stream(), q, k, v, o, lse, dout, *grads)
    for call in ours:
        call()
    machine.wait()
    row = {"case": case.name, "tokens": tokens, "kernel": bound.kernel, "workspace_bytes": bound.workspace_bytes(), "plan_bytes": bound.plan_bytes(),
           "driver_bytes": machine.used_bytes() - before, "row_bytes": bound.workspace_bytes() / (queries * h)}
    calls = [{"ours": ours[0]}, {"ours": ours[1]}]
    for peer in PEERS:
        if arguments.no_peers or (peer == "cudnn" and not (case.cudnn and machine.name == "cuda")):
            continue
        try:
            leaves = [x.clone().requires_grad_() for x in (q, k, v)]
            made = flex_calls(machine, case, tokens, ids, leaves, dout, scale) if peer == "flex" else cudnn_calls(leaves, dout, scale)
            row[peer + "_differs"] = difference((o, *grads), (made[0](), *made[1]()))
            for i in range(2):
                calls[i][peer] = made[i]
        except Exception as e:  # a peer that refuses a shape leaves its column empty
            say(f"  {case.name} {tokens}: {peer} did not run: {(str(e).splitlines() or [repr(e)])[0][:140]}")
    pairs = pairs_of(case, tokens, ids)
    for is_backward, name in enumerate(PASSES):
        ms = rotate(machine, calls[is_backward], arguments.rounds)
        rates = {who: operations(case, is_backward) * pairs / taken / 1e9 for who, taken in ms.items()}
        goals = judge(case, tokens, is_backward, rates["ours"], rates)
        done, back = call_times(machine, ours[is_backward])
        row[name] = {"ms": ms, "tflops": rates, "call_ms": done, "host_us": back, "goals": goals,
                     "tile_us": 1e3 * ms["ours"] / max(1, bound.tiles(2 if is_backward else 0))}
        if "flex" in calls[is_backward]:
            row[name]["flex_call_ms"] = call_times(machine, calls[is_backward]["flex"])[0]
    row["clocks"] = machine.clocks()
    bound.close()
    return row


def print_row(row):
    for name in PASSES:
        p = row[name]
        rates, peers = p["tflops"], ""
        for peer in PEERS:
            peers += f"{rates[peer]:7.0f} {rates['ours'] / rates[peer]:5.2f}x" if peer in rates else f"{'–':>7s} {'':6s}"
        goals = "; ".join(f"{text} {'yes' if holds else 'NO'}" for text, holds in p["goals"])
        flex_call = f"{p['flex_call_ms']:.3f}" if "flex_call_ms" in p else "–"
        say(f"{row['case']:12s} {row['tokens']:6d} {name:8s} {rates['ours']:5.0f} {peers} {p['ms']['ours']:9.3f} {p['call_ms']:9.3f} {flex_call:>9s} {p['host_us']:7.1f}  "
            f"{goals:60s} {row['clocks'] if name == 'backward' else ''}")
    differs = " ".join(f"{p} {row[p + '_differs']:.1e}" for p in PEERS if p + "_differs" in row)
    parts = " with the sums of parts" if "join" in row["kernel"] else f" ({'yes' if row['row_bytes'] <= 16 else 'NO'}, at most 16)"
    say(f"  beyond inputs and outputs: {row['row_bytes']:.2f} bytes a query row and head{parts}, plan {row['plan_bytes']}, "
        f"by the driver's counter {row['driver_bytes']}; differs {differs or '–'}")


# ---- sections -------------------------------------------------------------------------------------------------------------------

def routed(machine, library, arguments, causal_row):
    """Time per executed tile of a routed plan against causal's; the picks are bench_routing's."""
    blocks = np.ascontiguousarray(np.load(arguments.picks).astype(np.int32))
    tokens, kv_heads = blocks.shape[1:3]
    case = Case("routed", "causal and blocks", causal, kv_heads=kv_heads)
    make = lambda heads: torch.randn(1, heads, tokens, 128, device=machine.name).to(torch.bfloat16)
    q, k, v, dout = make(case.heads), make(kv_heads), make(kv_heads), make(case.heads)
    o, lse, grads = torch.empty_like(q), torch.empty(1, case.heads, tokens, device=machine.name), [torch.empty_like(x) for x in (q, k, v)]
    begin = time.perf_counter()
    bound = Bound(library, contract_of(case, tokens, 128 ** -0.5), machine.target, machine.lane, machine.name, picks=(blocks, arguments.block_tokens))
    machine.wait()
    made = 1e3 * (time.perf_counter() - begin)
    ours = bound.calls(machine.stream(), q, k, v, o, lse, dout, *grads)
    for is_backward, name in enumerate(PASSES):
        ours[is_backward]()
        ms = rotate(machine, {"ours": ours[is_backward]}, arguments.rounds)["ours"]
        tile_us = 1e3 * ms / max(1, bound.tiles(2 if is_backward else 0))
        goal = (1.25, 1.3)[is_backward]
        ratio = f"{tile_us / causal_row[name]['tile_us']:.2f}x causal's, at most {goal} {'yes' if tile_us <= goal * causal_row[name]['tile_us'] else 'NO'}" if causal_row else "no causal row beside it"
        say(f"routed {tokens} {name}: {ms:.3f} ms, {tile_us:.4f} us a tile, {ratio}")
    say(f"  plan, bind and upload {made:.1f} ms, plan {bound.plan_bytes()} bytes")
    bound.close()


def many_batches(machine, library, count):
    """New documents every time: what a step costs the host, and whether anything is allocated after the first."""
    case, tokens = next(c for c in CASES if c.name == "documents"), 8192
    contract = contract_of(case, tokens, 128 ** -0.5)
    make = lambda: torch.randn(1, 16, tokens, 128, device=machine.name).to(torch.bfloat16)
    tensors = [make() for _ in range(8)]
    lse = torch.empty(1, 16, tokens, device=machine.name)
    q, k, v, o, dout, dq, dk, dv = tensors
    taken, used, last = [], [], None
    for i in range(count):
        begin = time.perf_counter()
        bound = Bound(library, contract, machine.target, machine.lane, machine.name, doc_ids=documents_of(tokens, seed=i))
        taken.append(1e6 * (time.perf_counter() - begin))
        for call in bound.calls(machine.stream(), q, k, v, o, lse, dout, dq, dk, dv):
            call()
        if last:
            last.close()
        last = bound
        if i % 50 == 20 or i + 1 == count:
            machine.wait()
            used.append(machine.used_bytes())
    last.close()
    grown = used[-1] - used[0]
    say(f"{count} batches of new documents at {tokens}: contract, plan, bind and upload {statistics.median(taken):.0f} us at the median; the driver gave out "
        f"{grown} bytes after the twentieth: {'yes' if grown <= 0 else 'NO'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=os.environ.get("TESSERA_LIBRARY", os.path.join(os.path.dirname(__file__), "../../build/release/libtessera.so")))
    parser.add_argument("--cases", help="of " + ", ".join(c.name for c in CASES))
    parser.add_argument("--lengths", help="instead of each case's own")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--picks", help="bench_routing --picks FILE.npy: times a routed plan too")
    parser.add_argument("--block-tokens", type=int, default=256, help="of a pick")
    parser.add_argument("--batches", type=int, default=0, help="so many batches of new documents too")
    parser.add_argument("--json", action="store_true", help="one document on standard output, text on standard error")
    arguments = parser.parse_args()
    global TEXT
    TEXT = sys.stderr if arguments.json else sys.stdout
    machine = Gpu() if torch.cuda.is_available() else Host()
    chosen = CASES if not arguments.cases else [c for name in arguments.cases.split(",") for c in CASES if c.name == name]
    if arguments.cases and len(chosen) != len(arguments.cases.split(",")):
        parser.error(f"--cases {arguments.cases}: there are {', '.join(c.name for c in CASES)}")
    if machine.name == "cpu" and not arguments.lengths:
        parser.error("there is no GPU; to try this program, give it a small length, as --lengths 256")
    library = Library(arguments.library)
    say(f"{machine.describe()}; Tessera {library.version().decode()}; {machine.clocks()}")
    say(f"{'case':12s} {'tokens':>6s} {'pass':8s} {'ours':>5s} {'Flex':>7s} {'':6s}{'cuDNN':>7s} {'':6s} {'ms':>9s} {'call ms':>9s} {'Flex call':>9s} {'host us':>7s}  goals")
    rows = []
    for case in chosen:
        for tokens in map(int, arguments.lengths.split(",")) if arguments.lengths else case.lengths:
            rows.append(run_row(machine, library, case, tokens, arguments))
            print_row(rows[-1])
    if arguments.picks:
        routed(machine, library, arguments, max((r for r in rows if r["case"] == "causal"), key=lambda r: r["tokens"], default=None))
    if arguments.batches:
        many_batches(machine, library, arguments.batches)
    missed = [f"{r['case']} {r['tokens']} {name}: {text}" for r in rows for name in PASSES for text, holds in r[name]["goals"] if not holds]
    say("every goal holds" if not missed else f"{len(missed)} missed: " + "; ".join(missed))
    if arguments.json:
        json.dump({"machine": machine.describe(), "rows": rows}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
