"""A number is proved when a test of it ran and passed and none failed, in either of GoogleTest's ways to write a
property; and a test that ended before it could say its numbers is found by its source."""

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
<testcase name="Skipped" status="run" result="skipped" classname="A"><skipped message="a.cc:7&#x0A;no plugin here"/>
<properties><property name="proves" value="R4"/></properties></testcase>
<testcase name="Filtered" status="notrun" result="suppressed" classname="A"/>
</testsuite>
<testsuite name="Lanes/B">
<testcase name="Same/cpu" status="run" result="completed" classname="Lanes/B" proves="R5 R6"/>
<testcase name="Same/xla" status="run" result="completed" classname="Lanes/B" proves="R5"><failure message="x"/></testcase>
<testcase name="Same/other" status="run" result="skipped" classname="Lanes/B" proves="R6"><skipped message="x"/></testcase>
<testcase name="SetUp/cpu" status="run" result="skipped" classname="Lanes/B"><skipped message="b.cc:9&#x0A;no device"/>
</testcase>
<testcase name="SetUpFails/cpu" status="run" result="completed" classname="Lanes/B"><failure message="x"/></testcase>
</testsuite></testsuites>"""
SOURCE = """
TEST_P(B, SetUp) {
  Proves("R7 B8");
}
TEST_P(B,
       SetUpFails) {
  Proves("R8");
}
TEST(C, Crashes) { Proves("R1"); }
TEST(C, NamesNothing) {}
"""


class Results(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        (self.folder / "deep").mkdir()
        (self.folder / "deep" / "a.xml").write_text(RESULTS, encoding="utf-8")
        (self.folder / "sources").mkdir()
        (self.folder / "sources" / "b_test.cc").write_text(SOURCE, encoding="utf-8")

    def read(self):
        return requirements.read_results(self.folder, requirements.read_sources(self.folder / "sources"))

    def proved(self):
        return [number for number, instances in self.read()[0].items() if instances.is_proved()]

    def run_tool(self, expected):
        (self.folder / "expected.txt").write_text(expected, encoding="utf-8")
        return subprocess.run([sys.executable, ROOT / "cmake" / "requirements.py", self.folder, "--expect",
                               self.folder / "expected.txt", "--sources", self.folder / "sources"],
                              capture_output=True, text=True, check=False)

    def test_only_passing_counts(self):
        tests, wrong = self.read()
        self.assertEqual(self.proved(), ["R1", "R2", "R6", "B2"])
        self.assertEqual(tests["R3"].failed, ["A.Bad"])
        self.assertEqual(tests["R4"].skipped, [("A.Skipped", "no plugin here")])
        self.assertEqual(wrong, [])

    def test_one_failing_instance_undoes_the_others(self):
        tests, _ = self.read()
        self.assertEqual(tests["R5"].passed, ["Lanes/B.Same/cpu"])
        self.assertEqual(tests["R5"].failed, ["Lanes/B.Same/xla"])
        result = self.run_tool("R5")
        self.assertEqual(result.returncode, 1)
        self.assertIn("R5: failing: Lanes/B.Same/xla, with 1 passing", result.stderr)
        self.assertIn("R: with a failing test: R3 R5 R8\n", result.stdout)

    def test_skipped_beside_passing_is_proved(self):
        self.assertEqual(self.run_tool("R6").returncode, 0)

    def test_only_skipped_is_listed_with_its_reason(self):
        result = self.run_tool("R4")
        self.assertEqual(result.returncode, 1)
        self.assertIn("R4   - (skipped: A.Skipped: no plugin here)\n", result.stdout)
        self.assertIn("R: only skipped: R4 R7\n", result.stdout)
        self.assertIn("B: only skipped: B8\n", result.stdout)
        self.assertIn("expected but not proved: R4: skipped: A.Skipped: no plugin here\n", result.stderr)

    def test_set_up_that_skips_or_fails_is_found_by_its_source(self):
        tests, _ = self.read()
        self.assertEqual(tests["R7"].skipped, [("Lanes/B.SetUp/cpu", "no device")])
        self.assertEqual(tests["R8"].failed, ["Lanes/B.SetUpFails/cpu"])

    def test_crash_is_a_failure(self):
        (self.folder / "failed").write_text("3:C.Crashes\n4:C.NamesNothing\n5:tooling.docs\n", encoding="utf-8")
        tests, wrong = self.read()
        self.assertEqual(tests["R1"].failed, ["C.Crashes"])
        self.assertNotIn("R1", self.proved())
        self.assertEqual(wrong, [])

    def test_failure_that_the_results_have_counts_once(self):
        (self.folder / "failed").write_text("3:A.Bad\n9:a\n", encoding="utf-8")
        tests, wrong = self.read()
        self.assertEqual(tests["R3"].failed, ["A.Bad"])
        self.assertEqual(wrong, [])

    def test_program_without_a_result_fails(self):
        (self.folder / "failed").write_text("7:b_test_half_0\n", encoding="utf-8")
        result = self.run_tool("R1")
        self.assertEqual(result.returncode, 1)
        self.assertIn("b_test_half_0 ended without a result", result.stderr)

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

    def test_every_expected_number_is_named_in_a_test(self):
        named = {number for numbers in requirements.read_sources(ROOT / "tests").values() for number in numbers}
        expected = requirements.read_expected(ROOT / "tests" / "requirements_expected.txt")
        self.assertEqual([number for number in expected if number not in named], [])


if __name__ == "__main__":
    unittest.main()
