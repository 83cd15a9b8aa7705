"""The programs that README.md and docs/c_api.md show are those that are compiled and run: their text is the examples' text; the
smallest C++ program and the README stay small."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_LINES = 12


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
        self.assertEqual(blocks("cpp"), [program("smallest.cc")])
        self.assertLessEqual(len(program("smallest.cc").splitlines()), MOST_LINES)

    def test_smallest_in_c(self):
        self.assertEqual(blocks("c", "docs/c_api.md")[0], program("smallest.c"))

    def test_first_screen(self):
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        self.assertLessEqual(len(text.splitlines()), 120)


if __name__ == "__main__":
    unittest.main()
