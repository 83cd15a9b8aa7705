"""Somebody else's project can take this one in with add_subdirectory, and leave lanes out: it gets the libraries under
the names that find_package gives them, and neither our tests, our program, our install rules nor our rules on warnings.

Usage: subdirectory_test.py SOURCE_FOLDER CUBINS C_COMPILER CXX_COMPILER [unittest options]
CUBINS is a build tree's folder of them, or nothing: whatever is built waits for GPU kernels, and they are compiled there already.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = CUBINS = CC = CXX = None

PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES C CXX)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
add_subdirectory({source} tessera)
add_executable(use use.cc)
target_link_libraries(use PRIVATE tessera::tessera)
target_compile_features(use PRIVATE cxx_std_20)
add_executable(use_static use.cc)
target_link_libraries(use_static PRIVATE tessera::tessera_static)
target_compile_features(use_static PRIVATE cxx_std_20)
"""

USE = """
#include "tessera/tessera.h"
int main() { return tessera::ParseContract("").has_value() ? 1 : 0; }
"""


def run(*command):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        words = " ".join(str(word) for word in command)
        raise AssertionError(f"{words}: exit {result.returncode}\n{result.stdout[-4000:]}{result.stderr[-4000:]}")
    return result.stdout


class Subdirectory(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.project = pathlib.Path(holder.name)
        self.build = self.project / "build"
        (self.project / "CMakeLists.txt").write_text(PROJECT.format(source=SOURCE), encoding="utf-8")
        (self.project / "use.cc").write_text(USE, encoding="utf-8")

    def configure(self, *options):
        run("cmake", "-G", "Ninja", "-S", self.project, "-B", self.build, f"-DCMAKE_C_COMPILER={CC}",
            f"-DCMAKE_CXX_COMPILER={CXX}", f"-DTESSERA_CUBINS={CUBINS}", *options)
        commands = json.loads((self.build / "compile_commands.json").read_text(encoding="utf-8"))
        return {command["file"].removeprefix(f"{SOURCE}/"): command["command"] for command in commands}

    def make(self, *targets):
        run("cmake", "--build", self.build, "--target", *targets)

    def test_libraries_only(self):
        commands = self.configure()
        self.assertIn("src/base/error.cc", commands)
        self.assertIn("src/lanes/cpu/kernels.cc", commands)
        self.assertIn("src/lanes/xla/xla.cc", commands)
        for file, command in commands.items():
            self.assertNotIn("-Werror ", command, file)
            self.assertFalse(file.startswith(("tests/", "tools/", "bench/", "examples/")), file)
        installed = self.project / "installed"
        run("cmake", "--install", self.build, "--prefix", installed)
        self.assertFalse(installed.exists())
        # One file of theirs; linking would compile the whole library, which other tests do.
        self.make("CMakeFiles/use.dir/use.cc.o", "CMakeFiles/use_static.dir/use.cc.o")

    def test_lanes_left_out(self):
        commands = self.configure("-DTESSERA_LANE_CPU=OFF", "-DTESSERA_LANE_XLA=OFF", "-DTESSERA_LANE_CALL_JAX=OFF",
                                  "-DTESSERA_LANE_CUDA=OFF", "-DTESSERA_PRECOMPILE=OFF")
        for file in commands:
            self.assertFalse(file.startswith(("src/lanes/cpu/", "src/lanes/xla/", "src/lanes/bridge/")), file)
        dispatch = "tessera/src/dispatch/CMakeFiles/tessera_dispatch.dir"
        engine = "tessera/src/engine/CMakeFiles/tessera_engine.dir"
        self.make(f"{dispatch}/lane_table.cc.o", f"{engine}/bridge.cc.o", "tessera/src/lanes/no_xla/CMakeFiles/tessera_xla.dir/no_xla.cc.o")


if __name__ == "__main__":
    SOURCE, CUBINS, CC, CXX = sys.argv[1:5]
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
