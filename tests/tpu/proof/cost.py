#!/usr/bin/env python3
"""What the TPU compiler's schedule says of our kernels beside JAX's and Tokamax's: for script/tpu-proof cost.

  emit FOLDER TESSERA       writes our modules, NAME.mlir, and what they visit, NAME.steps
  table FOLDER [MODULE...]  reads FOLDER/NAME.schedule/*, the compiler's dumps, and prints what each step takes

Bundles are counted on the path that a step takes. They are a schedule and no time: waits for memory are not in them. What
XLA does around a kernel is counted apart, by its own dumps, and what nobody counts is said below the table.
"""

import collections
import json
import math
import pathlib
import re
import struct
import subprocess
import sys

DOCUMENTS = [97, 1301, 256, 640, 389, 733, 512, 130, 905, 310, 577, 451, 64, 823, 489, 515]
# mask, softcap, tokens, query heads, key heads, tile, documents
OURS = {
    "full": ("full", 0, 2048, 2, 2, 1024, False),
    "softcap": ("full", 30, 2048, 2, 2, 1024, False),
    "documents": ("causal and documents", 0, 8192, 1, 1, 512, True),
    "all": ("causal and documents and window(1023, 0)", 30, 8192, 4, 1, 512, True),
}
KINDS = {1: "general", 2: "full", 3: "span", 4: "range"}
PAIRS = {frozenset({"full"}): "two full", frozenset({"full", "span"}): "full and span", frozenset({"span"}): "two span"}
DIM = 128
UNIT = 512 * 512  # scores that counts are given for
GUARDED = 8192  # tokens at which the guard's share of a tile is counted


# ---- our modules


def contract(mask, softcap, tokens, q_heads, kv_heads):
    return f"""version = 1
[shape]
batch = 1
q_len = {tokens}
kv_len = {tokens}
num_q_heads = {q_heads}
num_kv_heads = {kv_heads}
dim_qk = {DIM}
dim_v = {DIM}
dtype = "bf16"
[mask]
expr = "{mask}"
[score]
softcap = {softcap}
"""


def read_tables(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    tables = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "I32":
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            tables[name] = (entry["shape"], struct.unpack(f"<{(end - begin) // 4}i", data[begin:end]))
    return tables


def emit(folder, tessera):
    for name, (mask, softcap, tokens, q_heads, kv_heads, tile, packed) in OURS.items():
        out = folder / f"{name}.emitted"
        if not out.exists():
            (folder / f"{name}.toml").write_text(contract(mask, softcap, tokens, q_heads, kv_heads))
            documents = ["--documents", ",".join(map(str, DOCUMENTS))] if packed else []
            subprocess.run([tessera, "emit", folder / f"{name}.toml", "--target", "v6e", "--tile", f"{tile}x{tile}", "--out", out,
                            *documents], check=True, stdout=subprocess.DEVNULL)
        tables = read_tables(out / "tables.safetensors")
        for part, direction in (("forward", "forward"), ("backward", "dq")):
            rows, chunks, rounds = rounds_of(tables, direction, part == "forward")
            steps = {"kernel": "ours", "rows": rows * chunks, "tiles": rounds, "scores": tile * tile,
                     "units": q_heads * tokens * tokens / UNIT, "heads": q_heads}
            if part == "backward":
                # What a step does only where a chunk of keys begins or ends is known by how much it stores: the
                # registers of a chunk's dK, its dV, or both. Heads of a group share it.
                registers = tables[f"kv_live_{direction}"][0][1] // chunks * DIM // 1024
                steps |= {"chunks": chunks * kv_heads / q_heads, "chunk_registers": [registers, 2 * registers]}
            (folder / f"{name}_{part}.mlir").write_text((out / f"{part}.mlir").read_text())
            (folder / f"{name}_{part}.steps").write_text(json.dumps(steps))


def rounds_of(tables, direction, by_two):
    """Rows, chunks of keys, and how often the walk over the rows' lists does what, two by two in the forward. Nobody
    knows how many tiles will be in range: none is."""
    (rows, width), kinds = tables[f"kinds_{direction}"]
    begins = tables[f"begins_{direction}"][1]
    chunks = len(begins) // rows - 1
    rounds = collections.Counter()
    for row in range(rows):
        for chunk in range(chunks):
            first = row * (chunks + 1) + chunk
            slots = [KINDS[kinds[row * width + slot]].replace("range", "full") for slot in range(begins[first], begins[first + 1])]
            if not by_two or width == 1:
                rounds.update(slots)
                continue
            for at in range(0, len(slots), 2):
                both = slots[at : at + 2]
                if len(both) == 2 and "general" not in both:
                    rounds[PAIRS[frozenset(both)]] += 1
                else:
                    rounds.update(["round", *both])
    return rows, chunks, rounds

# ---- schedules

BUNDLE = re.compile(r"(?m)^ *(?:0x[0-9a-f]+|0) +([A-Z]{2})? *: *(?:> ?)*\{")
BRANCH = re.compile(r"sbr\.rel\s*(?:\([^)]*\))?\s*target = \$region(\d+)")
DELAY = 4  # bundles after a branch, which run whether it is taken or not


class Part:
    """A loop or a branch's body: bundles [begin, end), and the parts inside of it."""

    def __init__(self, begin, end, is_loop):
        self.begin, self.end, self.is_loop, self.parts = begin, end, is_loop, []

    def own(self):
        return self.end - self.begin - sum(part.end - part.begin for part in self.parts)


def parts_of(text):
    """The tree of a kernel's schedule, and each bundle's text."""
    heads = list(BUNDLE.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    bundles = [text[head.end() : end] for head, end in zip(heads, ends)]
    starts = {}
    for at, bundle in enumerate(bundles):
        for region in re.findall(r"Start(?:/End empty)? region (\d+)", bundle):
            starts.setdefault(int(region), at)
    found = []
    for at, bundle in enumerate(bundles):
        for region in map(int, BRANCH.findall(bundle)):
            after = min(at + 1 + DELAY, len(bundles))
            start = starts.get(region, after)
            if start <= at:
                found.append(Part(start, after, True))
            elif start > after:  # what is skipped ends where the region begins that the branch goes to
                found.append(Part(after, start, False))
    # A loop that may have no round at all is skipped by a branch, which is the same bundles once more.
    loops = {(part.begin, part.end) for part in found if part.is_loop}
    found = [part for part in found if part.is_loop or (part.begin, part.end) not in loops]
    root = nested(found, len(bundles))
    if overlaps(root):
        sys.exit("a schedule's branches and loops are not inside of each other: this script misreads it")
    return root, bundles


def nested(found, size):
    root = Part(0, size, False)
    open_parts = [root]
    for part in sorted(found, key=lambda p: (p.begin, -p.end)):
        part.parts = []
        while open_parts[-1].end < part.end:
            open_parts.pop()
        open_parts[-1].parts.append(part)
        open_parts.append(part)
    return root


def overlaps(part):
    return part.own() < 0 or any(overlaps(inner) for inner in part.parts)


DEFINITION = re.compile(r"(?m)^ +(?:ROOT )?%([\w.-]+) = (.+?) ([a-z][\w-]*)\(")


def definitions(folder):
    """The type and operation of every value of the program: {name: (type, operation)}."""
    found = {}
    for path in sorted(folder.glob("*-TLP-hlo.txt")):
        found |= {name: (type_of, op) for name, type_of, op in DEFINITION.findall(path.read_text())}
    return found


def schedules(folder):
    """The schedule of every computation by its name, in the order that they were compiled in."""
    for path in sorted(folder.glob("*-03-final_bundles.txt")):
        name = path.name.split("-", 1)[1].removesuffix("-03-final_bundles.txt")
        if not name.startswith("<"):
            yield name, path.read_text()


def kernels_of(folder):
    """What the program calls as its own kernels: XLA multiplies, too."""
    operations = definitions(folder)
    for name, text in schedules(folder):
        if operations.get(name, ("", ""))[1] == "custom-call":
            yield parts_of(text)


# ---- around a kernel

CALL = re.compile(r"inlined_call[^/\n]*/\* %([\w.-]+) = ")
ROUNDS = re.compile(r"scmp\.ge\.s32\.totalorder %s\w+, (\d+) /\* loop exit test")


def path_of(part, bundles):
    """Bundles of a whole computation: a loop as often as its exit test says. Branches count as taken, so that a pipelined
    loop's first and last rounds count in full: no less than what runs."""
    rounds = 1
    if part.is_loop:
        found = ROUNDS.findall("\n".join(bundles[part.begin : part.end]))
        if not found:
            return math.nan
        rounds = int(found[-1])  # its own test is at its end, after those of loops inside
    return rounds * (part.own() + sum(path_of(inner, bundles) for inner in part.parts))


def around(folder):
    """Bundles of everything that the program runs beside its kernels: {computation: bundles}. One that is the same as
    another is dumped once. None where the dumps do not say what the program calls."""
    shapes = definitions(folder)
    sizes, calls = {}, []
    for name, text in schedules(folder):
        if name == "TLP":
            calls = CALL.findall(text)
        else:
            sizes[name] = 0 if shapes.get(name, ("", ""))[1] == "custom-call" else path_of(*parts_of(text))
    if not calls or not shapes:
        return None
    alike = {shapes[name]: size for name, size in sizes.items() if name in shapes and size}
    return {name: sizes.get(name, alike.get(shapes.get(name), math.nan)) for name in calls if sizes.get(name) != 0}


OPERANDS = re.compile(r"%([\w.-]+)")
BOUNDS = re.compile(r"f32\[\d+,1,\d+\]")


def guard(folder, beside):
    """Of what is around a kernel, the bundles that its bounds of scores need: what goes into nothing else, and in full what
    gives an operand too."""
    text = "".join(path.read_text() for path in sorted(folder.glob("*-TLP-hlo.txt")))
    shapes, needs = definitions(folder), {}
    for line in text[text.find("\nENTRY ") + 1 :].splitlines():
        found = DEFINITION.match(line)
        if found:
            operands = line[found.end() :].split("), ")[0]
            needs[found[1]] = [name for name in OPERANDS.findall(operands) if name in shapes]
    kernels = [name for name in needs if shapes[name][1] == "custom-call"]
    bounds = {name for kernel in kernels for name in needs[kernel] if BOUNDS.match(shapes[name][0])}

    def behind(names):
        seen, left = set(), list(names)
        while left:
            name = left.pop()
            if name not in seen and name not in kernels:
                seen.add(name)
                left += needs.get(name, [])
        return seen

    others = behind({name for kernel in kernels for name in needs[kernel]} - bounds)
    of_bounds = behind(bounds)
    both = {name for name in of_bounds & others if shapes[name][0].startswith("(") and shapes[name][1] == "fusion"}
    return sum(beside.get(name, 0) for name in of_bounds - others | both)


def multiplies(part, bundles):
    return any("vmatmul" in bundle for bundle in bundles[part.begin : part.end])


def raises(part, bundles):
    return any("vexp2" in bundle or "vpow2" in bundle for bundle in bundles[part.begin : part.end])


def stores(part, bundles):
    return any(" vst " in bundle for bundle in bundles[part.begin : part.end])


def grid_of(root):
    """The largest outermost loop. A grid whose size is only known when it runs is inside a branch: it may be empty."""
    loops, branches = [], [root]
    while branches:
        for part in branches.pop().parts:
            (loops if part.is_loop else branches).append(part)
    return max(loops, key=lambda part: part.end - part.begin) if loops else root


def loops_in(part, bundles):
    """The outermost loops in it that multiply."""
    found, inside = [], [part]
    while inside:
        for inner in inside.pop(0).parts:
            (found if inner.is_loop and multiplies(inner, bundles) else inside).append(inner)
    return found


def branches_outside(part, walk, bundles):
    """The branches of a step that are not around its walk."""
    found, inside = [], [part]
    while inside:
        for inner in inside.pop(0).parts:
            if inner is walk or inner.is_loop:
                continue
            (inside if inner.begin <= walk.begin and walk.end <= inner.end else found).append(inner)
    return found


def ours(root, bundles, chunk_registers):
    """What a row of tiles takes beside its tiles, and a round of the walk by what it finds."""
    grid = grid_of(root)
    walk = loops_in(grid, bundles)[0]
    size_of = lambda part: part.end - part.begin
    bodies_of = lambda part: [inner for inner in part.parts if multiplies(inner, bundles)]
    around = lambda loop: loop.own() + sum(size_of(part) for part in loop.parts if not multiplies(part, bundles))
    stored = lambda part: sum(bundle.count(" vst ") for bundle in bundles[part.begin : part.end])
    outside = branches_outside(grid, walk, bundles)
    # Only where a chunk of keys begins or ends.
    chunk = sum(size_of(part) for part in outside if stored(part) in chunk_registers)
    counted = {"row": size_of(grid) - size_of(walk) - chunk}
    if chunk_registers:
        counted["chunk"] = chunk
    each = [loop for loop in loops_in(walk, bundles) if len(bodies_of(loop)) >= 3]
    names = ["full", "span", "general"]
    joins = 0
    if each:
        # Two by two: a body for both, of which none, one or both are masked, or a loop over each.
        *pairs, alone = bodies_of(walk)
        counted |= {name: around(walk) + size_of(body) for name, body in zip(PAIRS.values(), pairs, strict=True)}
        counted["round"] = around(walk) + size_of(alone) - size_of(each[0])
        if len(bodies_of(each[0])) == 4:
            names = ["full", "range", "span", "general"]
            # Sums of scores in range are joined to the row's: nothing to do where no tile was in range.
            joins = sum(size_of(part) for part in outside if part.begin >= walk.end and raises(part, bundles))
            counted["row"] -= joins
        walk = each[0]

    def size(body):
        # Of a softcap, the first is the bounded one, and the other a loop.
        choices = [part for part in body.parts if multiplies(part, bundles)]
        if len(choices) > 1:
            return body.own() + size_of(choices[0])
        # What does not multiply is there once for each row: the sums of scores in range begin.
        once = sum(size_of(part) for part in body.parts if not part.is_loop and not multiplies(part, bundles))
        return size_of(body) - once

    bodies = dict(zip(names, bodies_of(walk)))
    counted |= {name: around(walk) + size(body) for name, body in bodies.items()}
    if "range" in bodies:
        counted["range's row"] = size_of(bodies["range"]) - size(bodies["range"]) + joins
    return counted


def is_gate(part, bundles):
    """Whether it is what a step of the pipeline does at all: it waits for its windows, and the kernel's own branches are inside."""
    waits = any("dma.done.wait" in bundle for bundle in bundles[part.begin : part.begin + 16])
    return waits or any(multiplies(inner, bundles) for inner in part.parts)


def theirs(root, bundles):
    """What a step takes beside its tile, a masked and an unmasked tile, and the first and last of a row."""
    grid = grid_of(root)
    largest = max(grid.parts, key=lambda part: part.end - part.begin, default=None)
    is_inside = largest is not None and largest.end - largest.begin > (grid.end - grid.begin) // 2 and is_gate(largest, bundles)
    bodies = largest.parts if is_inside else grid.parts
    tiles = [part for part in bodies if multiplies(part, bundles)]
    ends = [part for part in bodies if not multiplies(part, bundles) and stores(part, bundles)]
    taken = sum(part.end - part.begin for part in tiles + ends)
    # Of two, the longer one masks; a kernel without any branch for its tile has it in the step.
    sizes = sorted(part.end - part.begin for part in tiles) or [0]
    return {"step": grid.end - grid.begin - taken, "full": sizes[0], "partial": sizes[-1],
            "row": sum(part.end - part.begin for part in ends)}


def costs(folder, module):
    steps = json.loads((folder / f"{module}.steps").read_text())
    kernels = list(kernels_of(folder / f"{module}.schedule"))
    if not kernels:
        return None
    units = steps["scores"] / UNIT
    total, per_tile, in_range = 0, [], []
    for root, bundles in kernels:
        if steps["kernel"] == "ours":
            counted = ours(root, bundles, steps.get("chunk_registers", []))
            total += counted["row"] * steps["rows"] + counted.get("chunk", 0) * steps.get("chunks", 0)
            total += sum(counted.get(what, math.nan) * count for what, count in steps["tiles"].items())
            alone = counted.get("round", 0) / 2  # in a row's middle a round has two tiles
            per_tile.append(min(alone + counted["full"], counted.get("two full", math.inf) / 2) / units)
            in_range.append((alone + counted.get("range", counted["full"])) / units)
        else:
            counted = theirs(root, bundles)
            total += counted["step"] * steps["steps"] + counted["row"] * steps["rows"]
            total += counted["full"] * steps["full"] + counted["partial"] * steps["partial"]
            per_tile.append((counted["step"] + counted["full"]) / units)
            in_range.append(per_tile[-1])
        print(f"  {module:28} " + ", ".join(f"{name} {bundles}" for name, bundles in counted.items()))
    outside = around(folder / f"{module}.schedule")
    beside = math.nan if outside is None or "units" not in steps else sum(outside.values())
    heads = steps.get("heads", 1)
    tokens = math.sqrt(steps.get("units", math.nan) / heads * UNIT)
    of_guard = guard(folder / f"{module}.schedule", outside) if steps["kernel"] == "ours" and outside else 0
    # Once for each token, so less for each tile the longer a row is: at GUARDED tokens.
    at_length = of_guard / heads * (GUARDED / tokens) / (GUARDED * GUARDED / UNIT) if of_guard else 0
    return {"tile": sum(per_tile), "in range": sum(in_range), "total": total, "around": beside / heads,
            "around a tile": beside / steps.get("units", 1), "guard": of_guard / heads,
            "guarded": sum(in_range) + at_length}


# ---- the table

ROWS = [
    # what, our module, theirs, what is compared, must and goal over Tokamax and JAX
    ("forward, exact online softmax", ["full_forward"], ["full_forward"], "tile", (1.15, 1.25), (1.35, 1.5)),
    ("forward, scores in range, and guard", ["full_forward"], ["full_forward"], "guarded", (1.4, 1.55), (1.7, 1.9)),
    ("forward, softcap 30", ["softcap_forward"], ["softcap_forward"], "tile", (1.25, 1.4), (1.5, 1.65)),
    ("fused backward", ["full_backward"], ["full_backward"], "tile", (1.10, 1.15), (1.35, 1.4)),
    ("16 documents in 8K, both passes", ["documents_forward", "documents_backward"],
     ["documents_forward", "documents_backward"], "total", (3, 3), (5, 5)),
    ("16 documents, window, softcap, 4 heads", ["all_forward", "all_backward"], ["all_forward", "all_backward"], "total",
     (1.8, 1.8), (3, 3)),
]


AROUND = [
    ("forward, 2048 tokens", ["full_forward"]),
    ("forward with a softcap, 2048 tokens", ["softcap_forward"]),
    ("fused backward, 2048 tokens", ["full_backward"]),
    ("16 documents in 8K, both passes", ["documents_forward", "documents_backward"]),
    ("16 documents, window, softcap, 4 heads", ["all_forward", "all_backward"]),
]

NOT_COUNTED = """\
Of ours a tile is a round of the walk over a row's worklist; of theirs a step of the grid. In all: every step, empty ones
too, and what a row begins and ends with.

Not in the first table, but for the guard: what XLA does around a kernel, once for each token and not for each tile, so that
it weighs less the longer the rows are. Of ours these are the bounds of q, k and v that scores in range need (the guard, in
the row of scores in range with its share of a tile at 8192 tokens), v turned for the forward, q and dO for the backward, and
the backward's sums turned and scaled; of theirs the segment ids and what their forward keeps. The second table counts it, at
the lengths of these cases: no less than what runs, waits for memory not in it. In neither: q
times the scale, which Tokamax and JAX leave to their callers (a program of its own there; ours has it in the kernel), the
join of the sums of scores in range to a row's own ("range's row" above, once for each row of tiles that has such), and
delta, the sum of o * dO, which all three leave to others."""


def table(folder, *modules):
    print("Bundles of libtpu's schedule for v6e, bf16, head dim 128: a schedule, not a measured time.\n")
    known = {}
    for path in sorted(folder.glob("*.steps")):
        if (folder / f"{path.stem}.schedule").is_dir() and (not modules or path.stem in modules):
            known[path.stem] = costs(folder, path.stem)
    print("\nper 512x512 tile of a row's middle, or in all, of one query head\n")
    print(f"{'':40} {'ours':>8} {'Tokamax':>8} {'JAX':>8}   over Tokamax / JAX, must, goal")
    for what, mine, others, unit, must, goal in ROWS:
        sums = []
        for prefix, names in (("", mine), ("tokamax_", others), ("jax_", others)):
            # Theirs at the tile at which both passes take the fewest.
            choices = [names] if not prefix else [names, [name.replace("all_", "all_by_512_") for name in names]]
            found = [[known.get(prefix + name) for name in choice] for choice in choices]
            known_sums = [sum(cost[unit] for cost in costs_of) for costs_of in found if all(costs_of)]
            sums.append(min(known_sums) if known_sums and not math.isnan(min(known_sums)) else None)
        show = ["-" if value is None else f"{value:.0f}" for value in sums]
        if None in sums:
            print(f"{what:40} {show[0]:>8} {show[1]:>8} {show[2]:>8}   not all compiled")
            continue
        over = [other / sums[0] for other in sums[1:]]
        verdict = lambda limits: "yes" if all(a >= b for a, b in zip(over, limits)) else "NO"
        print(f"{what:40} {show[0]:>8} {show[1]:>8} {show[2]:>8}   {over[0]:.2f}x / {over[1]:.2f}x, "
              f"must {must[0]} / {must[1]}: {verdict(must)}, goal {goal[0]} / {goal[1]}: {verdict(goal)}")
    print("\naround the kernel, by XLA: per 512x512 scores of the whole square, and in all for one query head\n")
    for what, names in AROUND:
        line = f"{what:40}"
        for prefix in ("", "tokamax_", "jax_"):
            costs_of = [known.get(prefix + name) for name in names]
            sums = [sum(cost[unit] if cost else math.nan for cost in costs_of) for unit in ("around a tile", "around")]
            line += f" {'-' if math.isnan(sums[0]) else f'{sums[0]:.0f} ({sums[1]:.0f})':>16}"
        print(line)
    of_guard = [f"{name} {cost['guard']:.0f}" for name, cost in known.items() if cost and cost["guard"]]
    print("\nof which the bounds of scores in range need, for one head: " + (", ".join(of_guard) or "nothing"))
    print("\n" + NOT_COUNTED)


if __name__ == "__main__":
    command, place, *rest = sys.argv[1:]
    {"emit": emit, "table": table}[command](pathlib.Path(place), *rest)
