"""The document check must see a dead link, a dead path, and a README command that fails or that nothing can run."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "cmake"))
import docs  # noqa: E402


class Tree(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = pathlib.Path(holder.name)
        self.write("docs/flow.md", "# The flow\n## Two rules\n")
        self.write("src/plan/view.cc", "")
        self.write("script/hello", "#!/bin/sh\ncase \"$1\" in --fail) exit 1 ;; esac\n", mode=0o755)

    def write(self, name, text, mode=0o644):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)

    def readme(self, text):
        self.write("README.md", text)
        return docs.check_documents(self.root)


class Links(Tree):
    def test_live_passes(self):
        self.assertEqual(self.readme("[a](docs/flow.md#two-rules) [b](https://example.org) `src/plan/{view}.cc`\n"
                                     "`src/plan/` `src/*/view.cc` `src/<folder>/x.cc`\n```\nsrc/gone.cc\n```\n"), [])

    def test_dead_fails(self):
        for text in ("[a](docs/gone.md)", "[a](docs/flow.md#gone)", "`src/plan/gone.cc`", "`src/plan/{view,gone}.cc`",
                     "run `script/gone --now`", "![p](docs/gone.svg)", "`GONE.md`"):
            with self.subTest(text):
                self.assertEqual(len(self.readme(f"# T\n[flow](docs/flow.md)\n{text}\n")), 1)

    def test_page_that_nothing_links_to_fails(self):
        self.assertEqual(len(self.readme("# T\n")), 1)
        self.write("docs/far.md", "# Far\n")
        self.assertEqual(self.readme("# T\n[flow](docs/flow.md)\n"), ["docs/far.md: no link leads here from README.md"])
        self.write("docs/flow.md", "# The flow\n[far](far.md#far)\n")
        self.assertEqual(self.readme("# T\n[flow](docs/flow.md)\n"), [])


class Commands(Tree):
    def check(self, command):
        self.write("README.md", f"# T\n\n```sh\n{command}\n```\n")
        return docs.check_commands(self.root)

    def test_working_passes(self):
        self.assertEqual(self.check("git clone somewhere\ncd somewhere\nscript/hello   # a comment\n# all comment"), [])

    def test_program_made_before_passes(self):
        self.assertEqual(self.check("script/hello && mkdir here && cp script/hello here/made\nhere/made\ncmake --version"), [])

    def test_failing_or_unknown_fails(self):
        for command in ("script/hello --fail", "script/gone", "make everything", "script/hello && \\\n  false"):
            with self.subTest(command):
                self.assertEqual(len(self.check(command)), 1)

    def test_no_commands_fails(self):
        self.write("README.md", "# T\n")
        self.assertEqual(len(docs.check_commands(self.root)), 1)

    def test_command_leaves_the_tree_alone(self):
        self.check("script/hello > out.txt")
        self.assertFalse((self.root / "out.txt").exists())


if __name__ == "__main__":
    unittest.main()
