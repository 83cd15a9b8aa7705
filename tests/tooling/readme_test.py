"""The programs that README.md and docs/c_api.md show are those that are compiled and run: their text is the examples' text; the
smallest C++ program and the README stay small; docs/python_reference.md is what the docstrings give."""

import pathlib
import re
import subprocess
import sys
import textwrap
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_LINES = 12
SHOWN_LINES = 6  # of each language, on the first screen


def blocks(language, document="README.md"):
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def program(name):
    """An example without its first line, which says what it is."""
    comment, _, text = (ROOT / "examples" / name).read_text(encoding="utf-8").partition("\n")
    assert comment.startswith(("//", "/*")), name
    return text


class ReadmePrograms(unittest.TestCase):
    def test_smallest(self):
        whole = program("smallest.cc").splitlines()
        self.assertLessEqual(len(whole), MOST_LINES)
        body = textwrap.dedent("\n".join(whole[whole.index("int main() {") + 1 : -1])).splitlines()
        self.assertEqual(blocks("cpp"), ["\n".join(body[:SHOWN_LINES]) + "\n"])
        self.assertEqual([len(block.splitlines()) for block in blocks("python")], [SHOWN_LINES])

    def test_smallest_in_c(self):
        self.assertEqual(blocks("c", "docs/c_api.md")[0], program("smallest.c"))

    def test_first_screen(self):
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        self.assertLessEqual(len(text.splitlines()), 120)
        self.assertLess(text.index("```cpp"), text.index("\n## "), "code comes before the first heading")

    def test_reference_is_the_docstrings(self):
        made = subprocess.run([sys.executable, "-B", ROOT / "python" / "reference.py", "--check"], capture_output=True, text=True)
        self.assertEqual(made.returncode, 0, made.stderr)


if __name__ == "__main__":
    unittest.main()
