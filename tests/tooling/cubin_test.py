"""What the build refuses of a kernel, by what ptxas says of it."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "cmake"))
import cubin  # noqa: E402

GOOD = """ptxas info    : Compiling entry function 'tessera_forward' for 'sm_90a'
ptxas info    : Function properties for tessera_forward
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 16 barriers
"""


class Problems(unittest.TestCase):
    def expect(self, text, *words, **of):
        found = " ".join(cubin.problems(text, "tessera_forward", 384, **of))
        for word in words:
            self.assertIn(word, found)

    def test_good_kernel_has_none(self):
        self.assertEqual(cubin.problems(GOOD, "tessera_forward", 384), [])

    def test_spills_and_stack(self):
        self.expect(GOOD.replace("0 bytes spill stores", "16 bytes spill stores"), "16 bytes of spill stores")
        self.expect(GOOD.replace("0 bytes stack", "8 bytes stack"), "8 bytes of stack")

    def test_too_many_registers(self):
        self.expect(GOOD.replace("168", "176"), "more than 65536")
        self.expect(GOOD.replace("ptxas info    : Used 168 registers, used 16 barriers", ""), "no registers")

    def test_notes_on_matrix_products(self):
        for note in ("(C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized",
                     "(C7508) setmaxnreg ignored to maintain minimum register requirement", "(C7520) something"):
            self.expect(GOOD + f"ptxas info    : {note}\n", "a note of ptxas")

    def test_kernel_through_tiles_has_its_launch_to_itself(self):
        self.assertEqual(cubin.problems(GOOD, "tessera_forward", 384, tiled=True), [])
        self.expect(GOOD.replace("168", "128"), "168 expected", tiled=True)
        self.expect(GOOD.replace("16 barriers", "16 barriers, 512 bytes smem"), "512", "SharedBytes", tiled=True)
        self.assertEqual(cubin.problems(GOOD.replace("168", "32"), "tessera_forward", 384), [])

    def test_build_with_limits_of_waits_may_be_slow(self):
        slow = GOOD.replace("0 bytes spill stores", "16 bytes spill stores") + "(C7512) wgmma.mma_async is serialized\n"
        self.assertEqual(cubin.problems(slow, "tessera_forward", 384, debug=True), [])
        self.expect(slow + "(C7508) setmaxnreg ignored\n", "a note of ptxas", debug=True)

    def test_another_kernel(self):
        self.assertTrue(cubin.problems(GOOD, "tessera_dq", 384))


# A compiler whose cubin is what it read and how often it has run; it writes dependencies as nvcc does.
NVCC = f"""#!{sys.executable}
import pathlib, sys
given = dict(zip(sys.argv, sys.argv[1:]))
here, source = pathlib.Path(__file__).parent, pathlib.Path(sys.argv[-1])
header = source.with_name("common.cuh")
runs = here / "runs"
runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
pathlib.Path(given["-o"]).write_text(source.read_text() + header.read_text() + runs.read_text())
pathlib.Path(given["-MF"]).write_text(given["-MT"] + " : " + str(source) + " \\\\\\n    " + str(header) + "\\n")
print({GOOD!r} if "bad" not in source.read_text() else "")
"""


class OtherTrees(unittest.TestCase):
    def setUp(self):
        kept = tempfile.TemporaryDirectory()
        self.addCleanup(kept.cleanup)
        self.folder = pathlib.Path(kept.name)
        for name, text in (("nvcc", NVCC), ("forward.cu", "kernel\n"), ("common.cuh", "helpers\n")):
            (self.folder / name).write_text(text)
        (self.folder / "nvcc").chmod(0o755)

    def make(self, tree, *more, like=None, status=0):
        (self.folder / tree).mkdir(exist_ok=True)
        out = self.folder / tree / "tessera_forward.cubin"
        done = subprocess.run(
            [sys.executable, "-B", cubin.__file__, "--nvcc", self.folder / "nvcc", "--name", "tessera_forward", "--threads", "384",
             "--include", self.folder, "--depend", f"{out}.d", *(["--like", self.folder / like] if like else []), *more,
             self.folder / "forward.cu", out], capture_output=True, text=True)  # fmt: skip
        self.assertEqual(done.returncode, status, done.stderr)
        return out

    def runs(self):
        return len((self.folder / "runs").read_text())

    def test_what_would_be_the_same_is_copied(self):
        first = self.make("release")
        second = self.make("asan", like="release")
        self.assertEqual(self.runs(), 1)
        self.assertEqual(second.read_bytes(), first.read_bytes())
        self.assertIn("168 registers", second.with_suffix(".log").read_text())
        self.assertTrue(pathlib.Path(f"{second}.d").read_text().startswith(f"{second} : {self.folder / 'forward.cu'}"))
        self.make("third", like="asan")
        self.assertEqual(self.runs(), 1)

    def test_anything_else_is_compiled(self):
        self.make("release")
        self.make("asan", "--define", "X=1", like="release")
        self.assertEqual(self.runs(), 2, "another command")
        (self.folder / "common.cuh").write_text("other helpers\n")
        self.assertIn(b"other helpers", self.make("asan", like="release").read_bytes())
        self.assertEqual(self.runs(), 3, "another header")
        self.make("asan", like="nowhere")
        self.assertEqual(self.runs(), 4)
        (self.folder / "asan" / "tessera_forward.key").unlink()  # as when its compilation was broken off
        self.make("third", like="asan")
        self.assertEqual(self.runs(), 5)

    def test_what_was_refused_is_never_taken(self):
        (self.folder / "forward.cu").write_text("bad\n")
        self.make("release", status=1)
        self.make("asan", like="release", status=1)
        self.assertEqual(self.runs(), 2)


if __name__ == "__main__":
    unittest.main()
