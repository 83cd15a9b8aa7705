"""Only a test that ran and passed counts as proof, in either of GoogleTest's ways to write a property."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "cmake"))
import requirements  # noqa: E402

RESULTS = """<testsuites><testsuite name="A">
<testcase name="Good" status="run" result="completed" classname="A"><properties>
<property name="proves" value="R1 B2"/></properties></testcase>
<testcase name="Old" status="run" result="completed" classname="A" proves="R2"/>
<testcase name="Bad" status="run" result="completed" classname="A"><failure message="x"/><properties>
<property name="proves" value="R3"/></properties></testcase>
<testcase name="Skipped" status="run" result="skipped" classname="A"><skipped message="x"/><properties>
<property name="proves" value="R4"/></properties></testcase>
<testcase name="Filtered" status="notrun" result="suppressed" classname="A"/>
</testsuite></testsuites>"""


class Results(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        (self.folder / "deep").mkdir()
        (self.folder / "deep" / "a.xml").write_text(RESULTS, encoding="utf-8")

    def run_tool(self, expected):
        (self.folder / "expected.txt").write_text(expected, encoding="utf-8")
        return subprocess.run([sys.executable, ROOT / "cmake" / "requirements.py", self.folder, "--expect",
                               self.folder / "expected.txt"], capture_output=True, text=True, check=False)

    def test_only_passing_counts(self):
        tests, unknown = requirements.read_results(self.folder)
        self.assertEqual([number for number, (good, _) in tests.items() if good], ["R1", "R2", "B2"])
        self.assertEqual(tests["R3"][1], ["A.Bad"])
        self.assertEqual(tests["R4"][1], ["A.Skipped"])
        self.assertEqual(unknown, [])

    def test_expected_and_present_succeeds(self):
        self.assertEqual(self.run_tool("R1-R2 # fine\nB2\n").returncode, 0)

    def test_expected_and_missing_fails(self):
        for number in ("R3", "R4", "R91"):
            result = self.run_tool(f"R1 {number}")
            self.assertEqual(result.returncode, 1)
            self.assertIn(number, result.stderr)

    def test_bad_list_is_bad_input(self):
        for text in ("R", "R92", "R1..R6", "Q1", "R1-B2"):
            self.assertEqual(self.run_tool(text).returncode, 2, text)

    def test_unknown_number_fails(self):
        (self.folder / "b.xml").write_text(RESULTS.replace("R1 B2", "R100"), encoding="utf-8")
        self.assertEqual(self.run_tool("R1").returncode, 1)

    def test_the_projects_list_reads(self):
        expected = requirements.read_expected(ROOT / "tests" / "requirements_expected.txt")
        self.assertEqual(len(expected), len(set(expected)))
        self.assertIn("R39", expected)
        self.assertIn("B30", expected)


if __name__ == "__main__":
    unittest.main()
