#!/usr/bin/env python3
"""The tables of what libtpu made of programs, for script/tpu-proof: compiled.txt, of every program that the lanes' tests
emit, and splash.txt, of every Splash kernel in JAX's module.

  TABLE choose FOLDER [--update] [--few N] [--most-code BYTES] [NAME...]   prints what to compile
  TABLE check FOLDER COMPILER NAME...    compares FOLDER/table with the rows; of splash also ours with JAX's
  TABLE update FOLDER COMPILER NAME...   writes rows from FOLDER/table; those of what is gone go too

FOLDER holds NAME.digest of every text there is, and `table`, the compiler's lines. Without names it is all of them, or N
drawn from those that are done; with --most-code only from those of which the compiled program has no more bytes of code, since an
emulated compiler takes as long as there is code. COMPILER is libtpu's name, and of splash JAX's too: "libtpu-0.0.51+jax-0.10.2".
"""

import argparse
import pathlib
import random
import sys

HERE = pathlib.Path(__file__).parent
COLUMNS = ["digest", "fingerprint", "code_bytes", "vector_bytes", "bundles"]
TABLES = {
    "compiled": ("script/tpu-proof compiled --update", """\
# What Google's TPU compiler made of every program that tests/tpu_lane emits, for v6e:1x1, and of those that four chips
# share for v6e:2x2: the digest of the text (without its class key), the compiled program's fingerprint, bytes of code,
# bytes of vector memory of the largest kernel, and instruction bundles of all its kernels, which is a schedule and no
# time. "not-compiled": nobody has compiled it yet, and the test fails until somebody does.
"""),
    "splash": ("script/tpu-proof same-program --update", """\
# What Google's TPU compiler made of every Splash kernel of ours in the place of JAX's in JAX's own module, for v6e:1x1: the
# digest of the kernel's text, the compiled program's fingerprint, which JAX's module gave too, bytes of code, bytes of
# vector memory and instruction bundles of the kernel, which is a schedule and no time.
"""),
}


class Table:
    def __init__(self, name):
        self.name, self.path = name, HERE / f"{name}.txt"
        self.rebuild, self.header = TABLES[name]
        self.compiler, self.rows = "none", {}
        for line in self.path.read_text().splitlines() if self.path.exists() else []:
            words = line.split()
            if line.startswith("# compiler "):
                self.compiler = words[2]
            elif words and not line.startswith("#"):
                self.rows[words[0]] = words[1:]

    def is_done(self, name, digest):
        row = self.rows.get(name, [])
        return row[:1] == [digest] and len(row) == len(COLUMNS)

    def write(self, compiler, rows):
        lines = [" ".join([name, *row]) for name, row in sorted(rows.items())]
        head = f"# Written by `{self.rebuild}`. Nothing here ran on a TPU.\n# compiler {compiler}\n# name {' '.join(COLUMNS)}\n"
        self.path.write_text(self.header + head + "\n".join(lines) + "\n")


def digests(folder):
    return {path.stem: path.read_text().strip() for path in sorted(folder.glob("*.digest"))}


def compiled(folder, ending=".mlir"):
    """What the compiler printed of the files with this ending, without the time it took."""
    made = {}
    for line in (folder / "table").read_text().splitlines():
        if line.startswith(" ") or not line.strip():
            continue
        name, *words = line.split()
        if name.endswith(ending) and words and words[0] != "error":
            made[name.removesuffix(ending)] = words[:4]
    return made


def choose(table, folder, arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--few", type=int)
    parser.add_argument("--most-code", type=int)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args(arguments)
    texts = digests(folder)
    unknown = [name for name in args.names if name not in texts]
    if unknown:
        sys.exit(f"no such row: {', '.join(unknown)}")
    if args.names:
        return args.names
    if args.update:
        return [name for name, digest in texts.items() if not table.is_done(name, digest)]
    if args.few is None and args.most_code is None:
        return list(texts)
    done = [name for name, digest in texts.items() if table.is_done(name, digest)]
    if args.most_code is not None:
        done = [name for name in done if int(table.rows[name][COLUMNS.index("code_bytes")]) <= args.most_code]
    return done if args.few is None else random.sample(done, min(args.few, len(done)))


def unlike_jax(folder, names):
    """Those of which JAX's module is another program than the one with our kernel in it."""
    jax, ours = (compiled(folder, f".{who}.mlir") for who in ("jax", "ours"))
    different = [name for name in names if name not in jax or jax[name][:1] != ours.get(name, [])[:1]]
    for name in different:
        print(f"{name}: JAX's program is {jax.get(name, ['missing'])[0]}, ours {ours.get(name, ['missing'])[0]}")
    print(f"{len(names) - len(different)} of {len(names)} kernels are the same TPU program as JAX's")
    return different


def check(table, folder, compiler, *names):
    if table.compiler != compiler:
        sys.exit(f"the table is of {table.compiler}, and here is {compiler}: {table.rebuild} writes another")
    is_splash = table.name == "splash"
    wrong = set(unlike_jax(folder, names)) if is_splash else set()
    made, texts = compiled(folder, ".ours.mlir" if is_splash else ".mlir"), digests(folder)
    for name in names:
        row = table.rows.get(name, [])
        if not table.is_done(name, texts[name]):
            print(f"{name}: its text has no row; {table.rebuild} {name}")
        elif made.get(name) != row[1:]:
            print(f"{name}: listed {' '.join(row[1:])}, compiled now {' '.join(made.get(name, ['nothing']))}")
        else:
            continue
        wrong.add(name)
    print(f"{len(names) - len(wrong)} of {len(names)} compile to what is listed; the table has {len(table.rows)}")
    return len(wrong) > 0


def update(table, folder, compiler, *names):
    is_splash = table.name == "splash"
    unlike = unlike_jax(folder, names) if is_splash else []
    made, texts = compiled(folder, ".ours.mlir" if is_splash else ".mlir"), digests(folder)
    is_other = table.compiler not in ("none", compiler)  # and its rows say nothing
    rows = {}
    for name, digest in texts.items():
        if name in made and name not in unlike:
            rows[name] = [digest, *made[name]]
        elif table.is_done(name, digest) and not is_other:
            rows[name] = table.rows[name]
        else:
            rows[name] = [digest, "not-compiled"]
    table.write(compiler, rows)
    failed = [name for name in names if name not in made or name in unlike]
    print(f"{len(made)} rows written, {sum(row[1] == 'not-compiled' for row in rows.values())} not compiled yet")
    if failed:
        print(f"no row: {', '.join(failed)}")
    return len(failed) > 0


def main(name, command, folder, *rest):
    table, folder = Table(name), pathlib.Path(folder)
    if command == "choose":
        print("\n".join(choose(table, folder, rest)))
    else:
        sys.exit({"check": check, "update": update}[command](table, folder, *rest))


if __name__ == "__main__":
    main(*sys.argv[1:])
