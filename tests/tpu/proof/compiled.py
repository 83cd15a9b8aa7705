#!/usr/bin/env python3
"""The table of what libtpu made of every program that the lanes' tests emit, compiled.txt: for script/tpu-proof.

  choose FOLDER UPDATE FEW [MODULE...]   prints the modules to compile
  check FOLDER LIBTPU MODULE...          compares FOLDER/table with the rows
  update FOLDER LIBTPU MODULE...         writes rows from FOLDER/table; those of modules that are gone go too

FOLDER holds NAME.mlir and NAME.digest of every module, as tests/tpu_lane wrote them.
"""

import pathlib
import random
import sys

TABLE = pathlib.Path(__file__).with_name("compiled.txt")
HEADER = """\
# What Google's TPU compiler made of every program that tests/tpu_lane emits, for v6e:1x1, and of those that four chips
# share for v6e:2x2: the digest of the text (without its class key), the compiled program's fingerprint, bytes of code,
# bytes of vector memory of the largest kernel, and instruction bundles of all its kernels, which is a schedule and no
# time. "not-compiled": nobody has compiled it yet.
# Written by `script/tpu-proof compiled --update`. Nothing here ran on a TPU.
# compiler {compiler}
# module digest fingerprint code_bytes vector_bytes bundles
"""


def read_table():
    rows, compiler = {}, "none"
    for line in TABLE.read_text().splitlines() if TABLE.exists() else []:
        words = line.split()
        if line.startswith("# compiler "):
            compiler = words[2]
        elif words and not line.startswith("#"):
            rows[words[0]] = words[1:]
    return compiler, rows


def digests(folder):
    return {path.stem: path.read_text().strip() for path in sorted(folder.glob("*.digest"))}


def is_done(row, digest):
    return row[:1] == [digest] and row[1:2] != ["not-compiled"]


def choose(folder, update, few, *modules):
    _, rows = read_table()
    texts = digests(folder)
    unknown = [name for name in modules if name not in texts]
    if unknown:
        sys.exit(f"no such module: {', '.join(unknown)}")
    if not modules and update:
        modules = [name for name, digest in texts.items() if not is_done(rows.get(name, []), digest)]
    elif not modules:
        done = [name for name, digest in texts.items() if is_done(rows.get(name, []), digest)]
        modules = random.sample(done, min(int(few), len(done)))
    print("\n".join(modules))


def compiled(folder):
    """What the compiler printed, without the time it took."""
    table = {}
    for line in (folder / "table").read_text().splitlines():
        name, *words = line.split()
        if words and words[0] != "error":
            table[name.removesuffix(".mlir")] = words[:4]
    return table


def check(folder, libtpu, *modules):
    compiler, rows = read_table()
    if compiler != libtpu:
        sys.exit(f"the table is of {compiler}, and here is {libtpu}: script/tpu-proof compiled --update writes another")
    made, texts, different = compiled(folder), digests(folder), 0
    for name in modules:
        row = rows.get(name, [])
        if not is_done(row, texts[name]):
            print(f"{name}: its text has no row; script/tpu-proof compiled --update {name}")
        elif made.get(name) != row[1:]:
            print(f"{name}: listed {' '.join(row[1:])}, compiled now {' '.join(made.get(name, ['nothing']))}")
        else:
            continue
        different += 1
    print(f"{len(modules) - different} of {len(modules)} modules compile to what is listed; the table has {len(rows)}")
    sys.exit(different != 0)


def update(folder, libtpu, *modules):
    compiler, rows = read_table()
    made, texts = compiled(folder), digests(folder)
    lost = compiler not in ("none", libtpu)
    new = {}
    for name, digest in texts.items():
        if name in made:
            new[name] = [digest, *made[name]]
        elif is_done(rows.get(name, []), digest) and not lost:
            new[name] = rows[name]
        else:
            new[name] = [digest, "not-compiled"]
    lines = [" ".join([name, *row]) for name, row in sorted(new.items())]
    TABLE.write_text(HEADER.format(compiler=libtpu) + "\n".join(lines) + "\n")
    failed = [name for name in modules if name not in made]
    print(f"{len(made)} rows written, {sum(row[1] == 'not-compiled' for row in new.values())} not compiled yet")
    if failed:
        sys.exit(f"did not compile: {', '.join(failed)}")


if __name__ == "__main__":
    command, place, *rest = sys.argv[1:]
    {"choose": choose, "check": check, "update": update}[command](pathlib.Path(place), *rest)
