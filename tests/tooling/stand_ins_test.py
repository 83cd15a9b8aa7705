"""Stand-ins for CUDA's libraries: what names them as needed loads, and what it calls in them traps."""

import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent.parent / "script" / "cuda_stand_ins.py"
LOAD = "import ctypes, os, sys; print(ctypes.CDLL(sys.argv[1], os.RTLD_NOW).torch_fake())"


class StandIns(unittest.TestCase):
    def compile(self, name, text, *options):
        source = self.site / "source.c"
        source.write_text(text)
        subprocess.run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", self.lib / name, source, *options], check=True)

    def setUp(self):
        kept = tempfile.TemporaryDirectory()
        self.addCleanup(kept.cleanup)
        self.site = pathlib.Path(kept.name)
        self.lib = self.site / "torch" / "lib"
        self.lib.mkdir(parents=True)
        (self.site / "nvidia/cu13/lib").mkdir(parents=True)
        (self.site / "map").write_text("libcublas.so.13 { global: *; };\n")
        self.compile("libcublas.so.13", "int cublasFake(void) { return 1; }", f"-Wl,--version-script={self.site / 'map'}")
        self.compile("libnccl.so.2", "int ncclFake(void) { return 2; }")
        self.compile("libtorch_fake.so",
                     "int cublasFake(void), ncclFake(void); int torch_fake(void) { return 7; } "
                     "int torch_calls(void) { return cublasFake() + ncclFake(); }",
                     self.lib / "libcublas.so.13", self.lib / "libnccl.so.2", "-Wl,-rpath,$ORIGIN/../../nvidia/cu13/lib")  # fmt: skip
        for name in ("libcublas.so.13", "libnccl.so.2"):
            (self.lib / name).unlink()

    def load(self, code=LOAD):
        return subprocess.run([sys.executable, "-c", code, self.lib / "libtorch_fake.so"], capture_output=True, text=True)

    def test_what_needs_them_loads_and_calls_trap(self):
        self.assertIn("libcublas.so.13", self.load().stderr)
        done = subprocess.run([sys.executable, "-B", SCRIPT, self.site], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("libcublas.so.13: 2 functions", done.stdout)  # with the one that has no version
        self.assertEqual(self.load().stdout, "7\n")
        self.assertIn(-self.load(LOAD.replace("torch_fake", "torch_calls")).returncode, (signal.SIGTRAP, signal.SIGILL))

    def test_nothing_to_stand_in_for_is_said(self):
        (self.lib / "libtorch_fake.so").unlink()
        done = subprocess.run([sys.executable, "-B", SCRIPT, self.site], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no PyTorch that needs CUDA", done.stderr)


if __name__ == "__main__":
    unittest.main()
