#!/usr/bin/env python3
"""Builds random masks with the real libraries and compares every array of `tessera export` with theirs.

Each library needs its package: splash needs jax, tokamax needs tokamax, flex needs torch. Without the package the exit
status is 77, which ctest shows as skipped. `stored` needs none: it compares with stored.json, which --write makes from
the real libraries.
"""

import argparse
import importlib.util
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import tempfile

SKIPPED = 77
PACKAGES = {"splash": "jax", "tokamax": "tokamax", "flex": "torch"}
HOW = {"jax": "script/setup --peers", "tokamax": "script/setup --peers", "torch": "script/setup --torch"}
STORED = pathlib.Path(__file__).with_name("stored.json")


# ---- random contracts, and the same masks said in the libraries' own words

def random_lengths(rng, tile, divisible):
    lengths = []
    for size in tile:
        tiles = rng.choice([4, 8, rng.randint(1, 8)])
        lengths.append(tiles * size if divisible else max(1, tiles * size - rng.randint(0, size - 1)))
    if rng.random() < 0.6:
        lengths[1] = lengths[0] if not divisible or lengths[0] % tile[1] == 0 else lengths[1]
    return tuple(lengths)


def random_term(rng, length, with_bitmap):
    reach = lambda: rng.choice([-1, 0, rng.randint(0, length), rng.randint(0, max(1, length // 4))])
    kinds = ["full", "causal", "causal", "window", "window", "window", "chunked", "chunk", "prefix", "sink"]
    kind = rng.choice(kinds + (["bitmap"] if with_bitmap else []))
    if kind == "window":
        return ("window", reach(), reach())
    if kind in ("chunked", "chunk"):
        return (kind, rng.randint(1, length + 2))
    if kind in ("prefix", "sink"):
        return (kind, rng.randint(0, length))
    return (kind, rng.randrange(4)) if kind == "bitmap" else (kind,)


def random_expr(rng, length, depth, with_bitmap):
    if depth == 0 or rng.random() < 0.55:
        return random_term(rng, length, with_bitmap)
    parts = [random_expr(rng, length, depth - 1, with_bitmap) for _ in range(rng.choice([2, 2, 3]))]
    return (rng.choice(["and", "or"]), *parts)


def text_of(expr):
    kind, *values = expr
    if kind in ("and", "or"):
        return f" {kind} ".join(f"({text_of(part)})" for part in values)
    if kind == "chunked":
        return f"causal and chunk({values[0]})"
    if kind == "bitmap":
        return f'bitmap("bitmap{values[0]}.npy")'
    return f"{kind}({', '.join(map(str, values))})" if values else kind


class Problem:
    """A contract, its batch, and its masks as dense arrays."""

    def __init__(self, rng, np, divisible, max_heads=4):
        self.rng, self.np = rng, np
        self.tile = (rng.choice([4, 8, 16, 32]), rng.choice([4, 8, 16, 32]))
        self.q_len, self.kv_len = random_lengths(rng, self.tile, divisible)
        if rng.random() < 0.02:  # so many tiles that indices need 16 bits
            self.tile, self.q_len, self.kv_len = (2, 2), 2 * rng.randint(100, 160), 2 * rng.randint(129, 160)
        self.heads = rng.randint(1, max_heads)
        self.offset = rng.choice([None, 0, 0, rng.randint(-self.q_len, self.kv_len)])
        if self.offset is None:
            self.p_offset = self.kv_len - self.q_len
        else:
            self.p_offset = self.offset
        shape = (self.q_len, self.kv_len)
        self.bitmaps = [np.random.default_rng(rng.getrandbits(32)).random(shape) < density
                        for density in (0.02, 0.5, 0.98)]
        blocks = tuple(-(-length // size) for length, size in zip(shape, self.tile))
        coarse = np.random.default_rng(rng.getrandbits(32)).random(blocks) < 0.5
        self.bitmaps.append(coarse.repeat(self.tile[0], 0).repeat(self.tile[1], 1)[:shape[0], :shape[1]])
        choices = [random_expr(rng, max(shape), 2, True) for _ in range(rng.choice([1, 1, 2]))]
        self.exprs = [rng.choice(choices) for _ in range(self.heads)]
        if rng.random() < 0.4:
            self.exprs = [choices[0]] * self.heads
        self.batch = 1
        self.documents = None

    def add_documents(self, batch):
        """Splits every row into documents: only for square problems."""
        self.batch = batch
        rows = []
        for _ in range(batch):
            ids, row = 0, []
            while len(row) < self.q_len:
                row += [ids] * self.rng.randint(1, max(1, self.q_len // 2))
                ids += 1
            rows.append(row[:self.q_len])
        self.documents = rows

    def dense(self, expr):
        np = self.np
        kind, *values = expr
        p = np.arange(self.q_len)[:, None] + self.p_offset
        j = np.arange(self.kv_len)[None, :]
        ones = np.ones((self.q_len, self.kv_len), bool)
        if kind in ("and", "or"):
            combine = np.logical_and if kind == "and" else np.logical_or
            return combine.reduce([self.dense(part) for part in values])
        if kind == "window":
            left, right = values
            return ones & ((left < 0) | (p - left <= j)) & ((right < 0) | (j <= p + right))
        if kind == "chunk":
            return ones & (p // values[0] == j // values[0])
        if kind == "chunked":
            return ones & (p // values[0] == j // values[0]) & (j <= p)
        if kind == "bitmap":
            return self.bitmaps[values[0]]
        return ones & {"full": lambda: ones, "causal": lambda: j <= p,
                       "prefix": lambda: (p < values[0]) & (j < values[0]), "sink": lambda: j < values[0]}[kind]()

    def same_document(self, row):
        ids = self.np.array(self.documents[row])
        return ids[:, None] == ids[None, :]

    def write(self, folder):
        for i, bitmap in enumerate(self.bitmaps):
            self.np.save(folder / f"bitmap{i}.npy", bitmap)
        suffix = " and documents" if self.documents else ""
        texts = [f"({text_of(expr)}){suffix}" if suffix else text_of(expr) for expr in self.exprs]
        mask = {"expr": texts[0]} if len(set(texts)) == 1 else {"heads": texts}
        if self.offset is not None:
            mask["offset"] = self.offset
        contract = {"version": 1, "shape": {"batch": self.batch, "q_len": self.q_len, "kv_len": self.kv_len,
                                            "num_q_heads": self.heads, "num_kv_heads": 1, "dim_qk": 8, "dim_v": 8},
                    "mask": mask}
        (folder / "contract.json").write_text(json.dumps(contract))
        if self.documents:
            (folder / "batch.json").write_text(json.dumps({"doc_ids": self.documents}))


# ---- running the program

def run_export(program, folder, library, problem, flags):
    command = [program, "export", "--to", library, str(folder / "contract.json"), "--json",
               "--tile", f"{problem.tile[0]}x{problem.tile[1]}", *flags]
    if problem.documents:
        command += ["--batch", str(folder / "batch.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    document = json.loads(done.stdout) if done.stdout else None
    return done.returncode, document, done.stderr, command


def as_document(np, array):
    if array is None:
        return None
    array = np.asarray(array)
    return {"dtype": str(array.dtype), "shape": list(array.shape), "data": array.ravel().tolist()}


def compare(arrays, expected):
    if list(arrays) != list(expected):
        return [f"array names {list(arrays)}, expected {list(expected)}"]
    problems = []
    for name, want in expected.items():
        have = arrays[name]
        if have == want:
            continue
        if have is None or want is None:
            problems.append(f"{name} is {'absent' if have is None else 'present'}, expected the opposite")
        elif have["dtype"] != want["dtype"] or have["shape"] != want["shape"]:
            problems.append(f"{name} is {have['dtype']}{have['shape']}, expected {want['dtype']}{want['shape']}")
        else:
            problems.append(f"{name} differs: {have['data'][:40]}, expected {want['data'][:40]}")
    return problems


# ---- the libraries

def splash_mask(lib, problem, expr, stored):
    """The mask as a user of the library would say it; what it has no class for is an array."""
    shape = (problem.q_len, problem.kv_len)

    def native(part):
        kind, *values = part
        if kind == "and" and sorted(child[0] for child in values) == ["causal", "chunk"]:
            kind, values = "chunked", [child[1] for child in values if child[0] == "chunk"]
        if kind in ("and", "or"):
            parts = [native(child) for child in values]
            if any(child is None for child in parts):
                return None
            result = parts[0]
            for child in parts[1:]:
                result = result & child if kind == "and" else result | child
            return result
        if kind == "full":
            return lib.FullMask(shape)
        if kind == "causal":
            return lib.CausalMask(shape, problem.p_offset)
        if kind == "window":
            return lib.LocalMask(shape, tuple(None if reach < 0 else reach for reach in values), problem.p_offset)
        if kind == "chunked" and problem.p_offset == 0:
            return lib.ChunkedCausalMask(shape, values[0])
        return None

    mask = None if stored else native(expr)
    return mask if mask is not None else lib.NumpyMask(problem.dense(expr))


class Case:
    """One problem for one library: how the program is asked, and what the library itself answers."""

    def __init__(self, np, library, problem, flags, call, names):
        self.library, self.problem, self.flags = library, problem, flags
        try:
            answer = call()
            self.expected = {name: as_document(np, getattr(answer, name)) for name in names}
            self.raises = None
        except (ValueError, AssertionError) as error:
            self.expected, self.raises = None, repr(error)

    def check(self, program, folder):
        """What is wrong (nothing, when all is well), and the command. Where the library raises, the program refuses."""
        self.problem.write(folder)
        code, document, errors, command = run_export(program, folder, self.library, self.problem, self.flags)
        if self.raises:
            refused = code == 2 and "TSR-X" in errors
            return [] if refused else [f"the library raises {self.raises}, the program: {code} {errors}"], command
        if code != 0:
            return [f"the program returned {code}: {errors}"], command
        return compare(document["arrays"], self.expected), command


def splash_case(rng, np):
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as lib
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask_info as info
    problem = Problem(rng, np, divisible=rng.random() < 0.95)
    stored, dkv, baked = rng.random() < 0.4, rng.random() < 0.5, False
    if problem.q_len == problem.kv_len and rng.random() < 0.4:
        problem.add_documents(1)
        baked = rng.random() < 0.7
    shards = {"head_shards": rng.choice([1, 1, problem.heads, problem.heads, 2]), "q_seq_shards": rng.choice([1, 1, 2, 4])}
    shrink = rng.random() < 0.75
    flags = ["--mask", "stored" if stored else "function", "--direction", "dkv" if dkv else "forward",
             "--segments", "baked" if baked else "runtime", "--head-shards", str(shards["head_shards"]),
             "--q-shards", str(shards["q_seq_shards"]), *([] if shrink else ["--no-shrink"])]
    if baked:
        masks = [lib.NumpyMask(problem.dense(expr) & problem.same_document(0)) for expr in problem.exprs]
    else:
        masks = [splash_mask(lib, problem, expr, stored) for expr in problem.exprs]

    def call():
        make = info.process_mask_dkv if dkv else info.process_mask
        return make(lib.MultiHeadMask(masks), problem.tile, shrink_grid=shrink, **shards)[0]

    names = ["data_next", "mask_next", "block_mask", "partial_mask_blocks", "q_sequence"]
    return Case(np, "splash", problem, flags, call, names)


def tokamax_case(rng, np):
    from tokamax._src.ops.experimental.tpu.splash_attention import splash_attention_mask as lib
    from tokamax._src.ops.experimental.tpu.splash_attention import splash_attention_mask_info as info
    problem = Problem(rng, np, divisible=rng.random() < 0.95, max_heads=1)
    stored, dkv, baked, dynamic = rng.random() < 0.4, rng.random() < 0.5, False, rng.random() < 0.6
    if problem.q_len == problem.kv_len and rng.random() < 0.4:
        problem.add_documents(1)
        baked = rng.random() < 0.7
    shards = {"q_seq_shards": rng.choice([1, 1, 2, 4]), "kv_seq_shards": rng.choice([1, 1, 2])}
    flags = ["--mask", "stored" if stored else "function", "--direction", "dkv" if dkv else "forward",
             "--segments", "baked" if baked else "runtime", "--q-shards", str(shards["q_seq_shards"]),
             "--kv-shards", str(shards["kv_seq_shards"]), *(["--dynamic-grid"] if dynamic else [])]
    if baked:
        mask = lib.NumpyMask(problem.dense(problem.exprs[0]) & problem.same_document(0))
    else:
        mask = splash_mask(lib, problem, problem.exprs[0], stored)

    def call():
        make = info.process_mask_dkv if dkv else info.process_mask
        return make(mask, problem.tile, return_dynamic_grid=dynamic, **shards)[0]

    names = ["mask_next", "active_rows", "active_cols", "block_mask", "num_active_blocks", "partial_mask_blocks",
             "q_sequence"]
    return Case(np, "tokamax", problem, flags, call, names)


def flex_case(rng, np):
    import torch
    from torch.nn.attention import flex_attention as flex
    problem = Problem(rng, np, divisible=rng.random() < 0.5)
    baked = False
    if problem.q_len == problem.kv_len and rng.random() < 0.5:
        problem.add_documents(rng.choice([1, 2, 3]))
        baked = rng.random() < 0.7
    planes = [[problem.dense(expr) & (problem.same_document(row) if baked else True) for expr in problem.exprs]
              for row in range(problem.batch if baked else 1)]
    if len({text_of(expr) for expr in problem.exprs}) == 1:
        planes = [row[:1] for row in planes]
    dense = torch.tensor(np.array(planes))

    def call():
        return flex.create_block_mask(lambda b, h, q, kv: dense[b, h, q, kv], dense.shape[0], dense.shape[1],
                                      problem.q_len, problem.kv_len, device="cpu", BLOCK_SIZE=problem.tile)

    names = [f"{full}{side}_{what}" for side in ("kv", "q") for full in ("", "full_")
             for what in ("num_blocks", "indices")]
    flags = ["--segments", "baked" if baked else "runtime"]
    return Case(np, "flex", problem, flags, call, names)


MAKERS = {"splash": splash_case, "tokamax": tokamax_case, "flex": flex_case}


# ---- stored vectors

class StoredProblem:
    def __init__(self, record):
        self.record, self.tile, self.documents = record, record["tile"], record["batch"]

    def write(self, folder):
        (folder / "contract.json").write_text(json.dumps(self.record["contract"]))
        if self.documents:
            (folder / "batch.json").write_text(json.dumps(self.record["batch"]))


def stored_cases():
    for record in json.loads(STORED.read_text()):
        case = Case.__new__(Case)
        case.library, case.problem, case.flags = record["library"], StoredProblem(record), record["flags"]
        case.expected, case.raises = record["arrays"], record["raises"]
        yield case


def is_small(case, contract):
    if "bitmap" in json.dumps(contract):
        return False  # a stored case is one contract, without files beside it
    arrays = (case.expected or {}).values()
    return sum(math.prod(array["shape"]) for array in arrays if array) <= 900


def write_stored(seed, cases):
    import numpy as np
    records = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for library, maker in MAKERS.items():
            kept = raising = 0
            while kept < cases:
                seed += 1
                case = maker(random.Random(seed), np)
                case.problem.write(folder)
                contract = json.loads((folder / "contract.json").read_text())
                if not is_small(case, contract) or (case.raises and raising >= cases // 5):
                    continue
                batch = json.loads((folder / "batch.json").read_text()) if case.problem.documents else None
                records.append({"library": library, "contract": contract, "batch": batch, "tile": case.problem.tile,
                                "flags": case.flags, "arrays": case.expected, "raises": case.raises})
                kept += 1
                raising += case.raises is not None
    STORED.write_text("[\n" + ",\n".join(json.dumps(record, separators=(",", ":")) for record in records) + "\n]\n")
    print(f"wrote {len(records)} cases to {STORED}")


def random_cases(library, seed, count):
    import numpy as np
    for number in range(seed, seed + count):
        yield MAKERS[library](random.Random(number), np)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", choices=[*PACKAGES, "stored"])
    parser.add_argument("--program", help="the tessera program")
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, help="else TESSERA_SEED, else a new one",
                        default=int(os.environ.get("TESSERA_SEED") or int.from_bytes(os.urandom(4), "little")))
    parser.add_argument("--write", action="store_true", help="with stored: make the vectors anew, --cases per library")
    options = parser.parse_args()
    is_stored = options.library == "stored"
    if is_stored and options.write:
        return write_stored(options.seed, options.cases)
    package = PACKAGES.get(options.library)
    if package and importlib.util.find_spec(package) is None:
        print(f"skipped: {package} is not installed here; {HOW[package]} installs it")
        return SKIPPED
    cases = stored_cases() if is_stored else random_cases(options.library, options.seed, options.cases)
    equal = refused = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for number, case in enumerate(cases):
            problems, command = case.check(options.program, folder)
            if problems:
                which = f"case {number}" if is_stored else f"--cases 1 with TESSERA_SEED={options.seed + number} repeats"
                print(f"{which}:", " ".join(command))
                print((folder / "contract.json").read_text())
                print("\n".join(problems))
                return 1
            refused += case.raises is not None
            equal += case.raises is None
    print(f"{options.library}: {equal} masks with every array equal, {refused} refused by both"
          + ("" if is_stored else f" (TESSERA_SEED={options.seed})"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
