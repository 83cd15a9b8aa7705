"""The naming check fails where it should, whether files are read together or one by one. Needs the pinned clang-tidy:
where it is not installed this is skipped (exit status 77).

Usage: names_test.py CXX_COMPILER [unittest options]
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOOL = re.search(r"^clang_tidy=(\S+)", (ROOT / "script" / "lib.sh").read_text(encoding="utf-8"), re.MULTILINE)[1]
CXX = None

GOOD = "namespace tessera {\nnamespace {\n\nint Local(int value) { return value + NUMBER; }\n\n}  // namespace\n" \
       "int PublicNUMBER(int value) { return Local(value); }\n}  // namespace tessera\n"


class Names(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = pathlib.Path(holder.name).resolve()
        shutil.copy(ROOT / ".clang-tidy", self.root)
        self.files = []

    def write(self, name, text):
        path = self.root / "src" / "base" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        self.files.append(path)

    def run_names(self, *options):
        database = [{"directory": str(self.root), "file": str(path),
                     "command": f"{CXX} -std=c++20 -o {path.name}.o -c {path}"} for path in self.files]
        (self.root / "compile_commands.json").write_text(json.dumps(database), encoding="utf-8")
        command = [sys.executable, "-B", ROOT / "cmake" / "names.py", "--tool", TOOL, "--build", self.root, "--root",
                   self.root, *options]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def text(self, number, local="Local"):
        return GOOD.replace("NUMBER", str(number)).replace("Local", local)

    def test_good_files_pass_in_one_group(self):
        for number in (1, 2, 3):
            self.write(f"file_{number}.cc", self.text(number, f"Local{number}"))
        result = self.run_names()
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("3 files in 1 groups", result.stdout)

    def test_bad_name_is_found_in_a_group(self):
        for number in (1, 2, 3):
            self.write(f"file_{number}.cc", self.text(number, "bad_local" if number == 2 else f"Local{number}"))
        self.assertEqual(self.run_names("--groups").stdout.split()[0], "3")
        result = self.run_names()
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertRegex(result.stdout, r"file_2\.cc:4:5: error: invalid case style for function 'bad_local'")
        self.assertNotIn("file_1.cc", result.stdout)

    def test_files_with_the_same_names_stand_together_and_hide_nothing(self):
        for number in (1, 2):
            self.write(f"file_{number}.cc", self.text(number))
        self.write("file_3.cc", self.text(3).replace("value)", "BadValue)", 1).replace("value +", "BadValue +"))
        self.assertEqual(self.run_names("--groups").stdout.split()[0], "3")
        result = self.run_names()
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertRegex(result.stdout, r"file_3\.cc:4:15: error: invalid case style for parameter 'BadValue'")
        self.assertNotIn("file_2.cc", result.stdout)

    def test_the_same_bad_name_twice_is_found_twice(self):
        for number in (1, 2):
            self.write(f"file_{number}.cc", self.text(number, "bad_local"))
        self.assertEqual(len(self.run_names("--groups").stdout.splitlines()), 2)
        result = self.run_names()
        for number in (1, 2):
            self.assertRegex(result.stdout, rf"file_{number}\.cc:4:5: error: invalid case style for function 'bad_local'")

    def test_group_that_does_not_compile_is_halved(self):
        # The same names in a way that the grouping does not see.
        self.write("one.cc", "static int Same() { return 1; }\nint One() { return Same(); }\n")
        self.write("two.cc", "static int Same() { return 2; }\nint bad_two() { return Same(); }\n")
        self.assertEqual(len(self.run_names("--groups").stdout.splitlines()), 1)
        result = self.run_names()
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertRegex(result.stdout, r"two\.cc:2:5: error: invalid case style for function 'bad_two'")
        self.assertNotIn("redefinition", result.stdout)

    def test_file_that_does_not_compile_fails(self):
        self.write("broken.cc", "int Broken( { return 1; }\n")
        self.assertEqual(self.run_names().returncode, 1)


if __name__ == "__main__":
    if shutil.which(TOOL) is None:
        print(f"skipped: needs {TOOL}, which script/setup --dev installs")
        sys.exit(77)
    CXX = sys.argv.pop(1)
    unittest.main()
