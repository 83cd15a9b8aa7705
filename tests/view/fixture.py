"""What the tests of the page share: contracts to show, the program, and a page in a headless Chromium."""

import argparse
import ast
import contextlib
import json
import os
import pathlib
import random
import subprocess
import tempfile
import unittest

import chromium

SKIP = 77
TESSERA, SHOTS = None, None
SEED = int(os.environ.get("TESSERA_SEED") or random.SystemRandom().randrange(1 << 32))

SHAPE = "version = 1\n[shape]\nbatch = {batch}\nq_len = {q}\nkv_len = {kv}\nnum_q_heads = {heads}\ndim_qk = 8\n" \
        "[tiles]\nq = {tile}\nkv = {tile}\nreason = \"a test\"\n[mask]\n"


def contract(mask, q=200, kv=200, heads=1, batch=1, tile=16):
    heads_of = mask if isinstance(mask, list) else [mask]
    named = f'expr = "{mask}"' if isinstance(mask, str) else "heads = " + json.dumps(heads_of)
    return SHAPE.format(q=q, kv=kv, heads=heads, batch=batch, tile=tile) + named + "\n"


def write_npy(path, rows):
    """A .npy of one byte for each truth value; a contract's bitmap."""
    header = f"{{'descr': '|b1', 'fortran_order': False, 'shape': ({len(rows)}, {len(rows[0])}), }}"
    header = header.ljust((10 + len(header)) // 64 * 64 + 64 - 11) + "\n"
    cells = b"".join(bytes(map(bool, row)) for row in rows)
    pathlib.Path(path).write_bytes(b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header.encode() + cells)


def read_npy(path):
    """(shape, bytes) of a .npy of one-byte cells."""
    data = pathlib.Path(path).read_bytes()
    end = 10 + int.from_bytes(data[8:10], "little")
    header = ast.literal_eval(data[10:end].decode())
    return header["shape"], data[end:]


def run(*arguments, cwd=None):
    done = subprocess.run([TESSERA, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


class View(unittest.TestCase):
    """Each test has a folder, a page and random numbers; it fails when the page's console has an error."""

    @classmethod
    def setUpClass(cls):
        cls.page = chromium.Page(chromium.find())

    @classmethod
    def tearDownClass(cls):
        cls.page.close()

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.random = random.Random(SEED)
        self.page.errors.clear()

    def tearDown(self):
        self.assertEqual(self.page.errors, [], f"the console has errors (TESSERA_SEED={SEED})")
        if SHOTS:
            self.page.screenshot(os.path.join(SHOTS, self.id().rsplit(".", 1)[-1] + ".png"))

    if not hasattr(unittest.TestCase, "enterContext"):  # before Python 3.11
        def enterContext(self, context):
            stack = contextlib.ExitStack()
            self.addCleanup(stack.close)
            return stack.enter_context(context)

    def write(self, name, case):
        """(arguments of the contract and batch, .html)."""
        text, batch = case
        path = self.folder / (name + ".toml")
        path.write_text(text)
        arguments = [path]
        if batch is not None:
            (self.folder / (name + ".json")).write_text(json.dumps(batch))
            arguments += ["--batch", self.folder / (name + ".json")]
        return arguments

    def show(self, name, case, *more):
        arguments = self.write(name, case)
        html = self.folder / (name + ".html")
        run("view", *arguments, "--no-open", "--out", html, *more)
        self.page.open(html)
        return arguments, html

    def show_two(self, first, second, *more):
        """The arguments of both; the page shows their plans side by side."""
        both, plans = [self.write("first", first), self.write("second", second)], []
        for name, arguments in zip(("first", "second"), both):
            plans += ["--plan", self.folder / (name + ".plan")]
            run("plan", *arguments, *more, "--out", plans[-1])
        html = self.folder / "two.html"
        run("view", *plans, "--no-open", "--out", html)
        self.page.open(html)
        return both

    def state(self, **values):
        self.page.evaluate(f"Object.assign(tessera.state, {json.dumps(values)}); tessera.draw()")

    def pixels(self, pairs, which=0):
        """The kinds that the canvas shows at the middles of these pairs, by colour."""
        return self.page.evaluate("""(() => {
          const map = tessera.maps[%d], state = tessera.state;
          const context = map.canvas.getContext("2d");
          const style = getComputedStyle(document.documentElement);
          const names = {};
          for (const kind of ["empty", "full", "partial", "denied", "outside", "differs"]) {
            const hex = style.getPropertyValue("--" + kind).trim();
            names[[1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join()] = kind;
          }
          return %s.map(([q, k]) => {
            const half = state.scale / 2;
            const at = context.getImageData(Math.floor(map.screenX(state, k) + half),
                                            Math.floor(map.screenY(state, q) + half), 1, 1).data;
            const colour = [at[0], at[1], at[2]].join();
            return names[colour] || colour;
          });
        })()""" % (which, json.dumps(pairs)))

    def dense(self, arguments, batch_row, head):
        out = self.folder / "dense.npy"
        run("explain", *arguments, "--batch-row", batch_row, "--head", head, "--dense", out)
        shape, cells = read_npy(out)
        return [cells[q * shape[1]:(q + 1) * shape[1]] for q in range(shape[0])]


def main(about):
    """Runs the tests of the program that calls it; `about` is its help."""
    global TESSERA, SHOTS
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shots")
    parser.add_argument("tessera")
    parser.add_argument("test", nargs="*")  # never a folder: a test's name once made one in the tree
    given = parser.parse_args()
    TESSERA, SHOTS = os.path.abspath(given.tessera), given.shots
    if SHOTS:
        os.makedirs(SHOTS, exist_ok=True)
    if chromium.find() is None:
        print("skipped: there is no Chromium here (script/setup --dev installs it)")
        return SKIP
    result = unittest.main(argv=["view_test", *given.test], exit=False).result
    return 0 if result.wasSuccessful() else 1
