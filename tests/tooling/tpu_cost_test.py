#!/usr/bin/env python3
"""The arithmetic of `script/tpu-proof cost` (tests/tpu/proof/cost.py) on schedules that are written here: loops and branches
as libtpu's dumps have them, what is counted of ours and of the peers' kernels, what XLA runs around a kernel, and rounds of
a walk. And which rows `compiled` and `same-program` draw, and what they say of a row."""

import contextlib
import importlib.util
import io
import json
import math
import pathlib
import random
import struct
import tempfile
import unittest

PROOF = pathlib.Path(__file__).parents[1] / "tpu" / "proof"


def load(name):
    spec = importlib.util.spec_from_file_location(name, PROOF / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cost, rows = load("cost"), load("compiled")


class Dump:
    """A schedule, bundle by bundle, in the compiler's spelling."""

    def __init__(self):
        self.bundles, self.regions = [], 0

    def add(self, count=1, text="v1 = vadd.f32 v2, v3"):
        self.bundles += [[text, ""] for _ in range(count)]
        return self

    def branch(self, inside):
        """What `inside` adds is skipped by a branch, after its four bundles of delay."""
        self.regions += 1
        region = self.regions
        self.add(1, f"%47 = sbr.rel (%p1) target = $region{region}").add(cost.DELAY)
        inside(self)
        self.add(1)
        self.bundles[-1][1] = f" /* Start region {region} */"
        return self

    def loop(self, inside, rounds=None):
        self.regions += 1
        region, begin = self.regions, len(self.bundles)
        inside(self)
        if rounds is not None:
            self.add(1, f"%p4 = scmp.ge.s32.totalorder %s7_s8, {rounds} /* loop exit test */")
        self.add(1, f"%6 = sbr.rel (!%p4) target = $region{region}").add(cost.DELAY)
        self.bundles[begin][1] += f" /* Start region {region} */"
        return self

    def text(self):
        return "".join(f" {at:#x} : {{ {text} }}{note}\n" for at, (text, note) in enumerate(self.bundles))


MULTIPLY, RAISE = "v1 = vmatmul.bf16 v2", "v1 = vpow2.f32 v2"
STEP = 1 + cost.DELAY  # a branch or a loop's end, with its delay


class Schedules(unittest.TestCase):
    def test_parts_are_inside_of_each_other(self):
        dump = Dump().add(3).loop(lambda d: d.add(10).branch(lambda d: d.add(7)).add(2))
        root, bundles = cost.parts_of(dump.text())
        self.assertEqual(len(bundles), 3 + 10 + STEP + 7 + 1 + 2 + STEP)
        self.assertEqual(root.own(), 3)
        (loop,) = root.parts
        self.assertTrue(loop.is_loop)
        (branch,) = loop.parts
        self.assertFalse(branch.is_loop)
        self.assertEqual(branch.end - branch.begin, 7)
        self.assertEqual(loop.own(), 10 + STEP + 1 + 2 + STEP)

    def test_the_peers_step_is_what_is_around_its_tile(self):
        def step(d):
            d.add(20).branch(lambda d: d.add(5, " vst [vmem] "))  # a row begins
            d.branch(lambda d: d.add(90, MULTIPLY)).branch(lambda d: d.add(130, MULTIPLY)).add(1)

        root, bundles = cost.parts_of(Dump().loop(step).text())
        counted = cost.theirs(root, bundles)
        self.assertEqual(counted, {"step": 20 + 3 * (STEP + 1) + 1 + STEP, "full": 90, "partial": 130, "row": 5})

    def test_ours_is_a_round_of_the_walk_by_what_it_finds(self):
        def walk(d):
            d.add(4)
            for size in (100, 150, 220):  # full, span, general
                d.branch(lambda d, size=size: d.add(size, MULTIPLY))

        def grid(d):
            d.add(30).loop(walk).add(6, " vst [vmem] ")

        root, bundles = cost.parts_of(Dump().add(2).loop(grid).text())
        counted = cost.ours(root, bundles, [])
        around = 4 + 3 * (STEP + 1) + STEP
        self.assertEqual(counted, {"row": 30 + 6 + STEP, "full": around + 100, "span": around + 150, "general": around + 220})

    def test_ours_two_by_two(self):
        def each(d):
            d.add(3)
            for size in (100, 150, 220):
                d.branch(lambda d, size=size: d.add(size, MULTIPLY))

        def walk(d):
            d.add(4)
            for size in (180, 200, 230):  # both full, one of them masked, both masked
                d.branch(lambda d, size=size: d.add(size, MULTIPLY))
            d.branch(lambda d: d.add(2).loop(each))

        root, bundles = cost.parts_of(Dump().loop(lambda d: d.add(30).loop(walk)).text())
        counted = cost.ours(root, bundles, [])
        around = 4 + 4 * (STEP + 1) + STEP
        self.assertEqual({name: counted[name] - around for name in cost.PAIRS.values()},
                         {"two full": 180, "full and span": 200, "two span": 230})
        self.assertEqual(counted["full"], 3 + 3 * (STEP + 1) + STEP + 100)

    def test_a_whole_computation_counts_its_rounds(self):
        dump = Dump().add(5).loop(lambda d: d.add(10).loop(lambda d: d.add(3), 2), 4)
        inner = 3 + 1 + STEP
        self.assertEqual(cost.path_of(*cost.parts_of(dump.text())), 5 + 4 * (10 + 2 * inner + 1 + STEP))
        self.assertTrue(math.isnan(cost.path_of(*cost.parts_of(Dump().add(1).loop(lambda d: d.add(3)).text()))))

    def test_around_a_kernel_is_every_call_but_its_own(self):
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            self.assertIsNone(cost.around(folder))
            put = lambda name, text: (folder / f"17-{name}").write_text(text)
            call = lambda name: f"  0x1 : {{ %9 = inlined_call %s1, %s2 /* %{name} = op(%x) */ }}\n"
            put("TLP-03-final_bundles.txt", "".join(map(call, ["copy.5", "copy.6", "kernel.1", "fusion"])))
            kinds = {"copy.5": "bf16[2,4]{1,0} copy", "copy.6": "bf16[2,4]{1,0} copy", "fusion": "f32[2]{0} fusion",
                     "kernel.1": "(f32[2]{0}, f32[2]{0}) custom-call"}
            put("TLP-hlo.txt", "".join(f"  %{name} = {kind}(%x)\n" for name, kind in kinds.items()))
            put("copy.5-03-final_bundles.txt", Dump().add(11).text())
            put("fusion-03-final_bundles.txt", Dump().add(1).loop(lambda d: d.add(4), 3).text())
            put("kernel.1-03-final_bundles.txt", Dump().add(999, MULTIPLY).text())
            put("<late-finalization>-03-final_bundles.txt", Dump().add(4).text())
            # The second copy is the same computation as the first, and was dumped once.
            self.assertEqual(cost.around(folder), {"copy.5": 11, "copy.6": 11, "fusion": 1 + 3 * (4 + 1 + STEP)})

    def test_the_guard_is_what_the_bounds_need(self):
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            (folder / "1-TLP-hlo.txt").write_text("""
%fused (p: f32[2]) -> f32[2] {
  %inside = f32[2]{0} multiply(%p, %p)
}
ENTRY %main (k: bf16[2]) -> f32[2] {
  %k = bf16[2]{0} parameter(0)
  %copy = bf16[2]{0} copy(%k)
  %squares = f32[2]{0} fusion(%k), kind=kOutput, calls=%fused
  %both = (f32[2]{0}, bf16[2]{0}) fusion(%copy), kind=kLoop, calls=%fused
  %sizes = f32[2]{0} get-tuple-element(%both), index=0
  %keys = bf16[2]{0} get-tuple-element(%both), index=1
  %sum = f32[2]{0} add(%squares, %sizes)
  %bounds = f32[2,1,3]{2,1,0} bitcast(%sum)
  ROOT %kernel = f32[2]{0} custom-call(%bounds, %keys), custom_call_target="tpu_custom_call"
}
""")
            # The copy is the keys' own; what gives the keys and their sizes at once is counted in full.
            beside = {"copy": 1, "squares": 10, "both": 100, "sum": 1000, "inside": 10000, "kernel": 100000}
            self.assertEqual(cost.guard(folder, beside), 1110)

    def test_the_table_adds_up(self):
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)

            def step(d):
                d.add(8).branch(lambda d: d.add(40, MULTIPLY))

            for name, units in (("jax_full_forward", 4), ("tokamax_full_forward", 4)):
                place = folder / f"{name}.schedule"
                place.mkdir()
                (place / "1-kernel-03-final_bundles.txt").write_text(Dump().loop(step).text())
                # What XLA multiplies by itself is no kernel.
                (place / "2-fusion-03-final_bundles.txt").write_text(Dump().loop(lambda d: d.add(9, MULTIPLY), 2).text())
                (place / "1-TLP-hlo.txt").write_text("  %kernel = f32[2]{0} custom-call(%x)\n  %fusion = f32[2]{0} fusion(%x)\n")
                steps = {"kernel": "jax", "scores": 2 * cost.UNIT, "units": units, "steps": 10, "rows": 2, "full": 7, "partial": 3}
                (folder / f"{name}.steps").write_text(json.dumps(steps))
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                made = cost.costs(folder, "jax_full_forward")
                cost.table(folder)
            step_alone = 8 + 2 * STEP + 1
            self.assertEqual(made["tile"], (step_alone + 40) / 2)
            self.assertEqual(made["total"], 10 * step_alone + 10 * 40)
            self.assertTrue(math.isnan(made["around"]))
            for word in ("a schedule, not a measured time", "not all compiled", "q\ntimes the scale", "bounds of q, k and v"):
                self.assertIn(word, said.getvalue())

    def test_rounds_of_a_walk(self):
        # Two rows of four slots: full, span, full and general; then two in range, which count as full.
        tables = {"kinds_forward": ((2, 4), (2, 3, 2, 1, 4, 4, 0, 0)), "begins_forward": ((2, 2), (0, 4, 0, 2))}
        self.assertEqual(cost.rounds_of(tables, "forward", False), (2, 1, {"full": 4, "span": 1, "general": 1}))
        by_two = {"full and span": 1, "round": 1, "full": 1, "general": 1, "two full": 1}
        self.assertEqual(cost.rounds_of(tables, "forward", True), (2, 1, by_two))

    def test_tables_are_read(self):
        header = json.dumps({"kinds_dq": {"dtype": "I32", "shape": [1, 2], "data_offsets": [0, 8]}}).encode()
        with tempfile.TemporaryDirectory() as temporary:
            path = pathlib.Path(temporary) / "tables.safetensors"
            path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<2i", 2, -1))
            self.assertEqual(cost.read_tables(path), {"kinds_dq": ([1, 2], (2, -1))})


class Rows(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = rows.HERE = pathlib.Path(temporary.name)
        for name, digest in (("big", "d1"), ("edited", "d2"), ("new", "d3"), ("small", "d4"), ("waiting", "d5")):
            (self.folder / f"{name}.digest").write_text(digest + "\n")
        self.write({"big": "d1 f1 900000 5 6", "edited": "old f2 1 2 3", "small": "d4 f4 100 5 6", "waiting": "d5 not-compiled"})

    def write(self, table):
        for name in rows.TABLES:
            lines = "".join(f"{name} {row}\n" for name, row in table.items())
            (self.folder / f"{name}.txt").write_text(f"# a comment\n# compiler libtpu-1\n{lines}")

    def choose(self, *arguments):
        return rows.choose(rows.Table("compiled"), self.folder, arguments)

    def said(self, function, *arguments):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            result = function(*arguments)
        return result, out.getvalue()

    def test_draws(self):
        self.assertEqual(self.choose(), ["big", "edited", "new", "small", "waiting"])
        self.assertEqual(self.choose("--update"), ["edited", "new", "waiting"])
        self.assertEqual(self.choose("new"), ["new"])
        self.assertEqual(self.choose("--few", "2", "--most-code", "600000"), ["small"])
        random.seed(1)
        self.assertEqual({self.choose("--few", "1")[0] for _ in range(64)}, {"big", "small"})
        with self.assertRaises(SystemExit):
            self.choose("gone")

    def test_check(self):
        table = rows.Table("compiled")
        lines = ["big.mlir f1 900000 5 6 1.0", "  on each device: nothing", "small.mlir f4 101 5 6 1.0", "waiting.mlir f5 1 2 3 1.0"]
        (self.folder / "table").write_text("\n".join(lines) + "\n")
        self.assertEqual(self.said(rows.check, table, self.folder, "libtpu-1", "big")[0], False)
        for name in ("small", "edited", "waiting"):
            failed, text = self.said(rows.check, table, self.folder, "libtpu-1", name)
            self.assertTrue(failed and f"{name}: " in text, text)
        with self.assertRaises(SystemExit):
            rows.check(table, self.folder, "libtpu-2", "big")

    def test_update(self):
        (self.folder / "table").write_text("edited.mlir f2 7 8 9 1.0\nnew.mlir error it does not compile\n")
        failed, text = self.said(rows.update, rows.Table("compiled"), self.folder, "libtpu-1", "edited", "new")
        self.assertTrue(failed and "no row: new" in text, text)
        written = rows.Table("compiled").rows
        self.assertEqual(written["edited"], ["d2", "f2", "7", "8", "9"])
        self.assertEqual(written["big"], ["d1", "f1", "900000", "5", "6"])
        self.assertEqual(written["new"], ["d3", "not-compiled"])

    def test_splash_is_held_against_jax(self):
        lines = ["big.jax.mlir f1 1 1 1 1.0", "big.ours.mlir f1 900000 5 6 1.0", "small.jax.mlir other 1 1 1 1.0", "small.ours.mlir f4 100 5 6 1.0"]
        (self.folder / "table").write_text("\n".join(lines) + "\n")
        self.assertEqual(self.said(rows.check, rows.Table("splash"), self.folder, "libtpu-1", "big")[0], False)
        failed, text = self.said(rows.check, rows.Table("splash"), self.folder, "libtpu-1", "big", "small")
        self.assertTrue(failed and "small: JAX's program is other, ours f4" in text, text)


if __name__ == "__main__":
    unittest.main()
