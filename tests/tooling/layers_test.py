"""The layer check must fail on each kind of forbidden include, and pass what is allowed."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "cmake"))
import layers  # noqa: E402


def problems_of(files):
    """What the check says about a tree of these files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return layers.check_tree(folder)


class Includes(unittest.TestCase):
    FORBIDDEN = {
        "upward": ("src/base/a.cc", '#include "contract/keys.h"'),
        "upward through a public header": ("src/contract/a.h", '#include "tessera/plan.h"'),
        "planner from a lane": ("src/lanes/reference/a.cc", '#include "planner/stages.h"'),
        "public planner from a lane": ("src/lanes/cpu/a.cc", "#include <tessera/planner.h>"),
        "another lane": ("src/lanes/cpu/a.cc", '#include "lanes/reference/walk.h"'),
        "json in a header": ("src/plan/a.h", "#include <nlohmann/json.hpp>"),
        "json in quotes in a header": ("src/plan/a.h", '#include "nlohmann/json.hpp"'),
        "json beside its file": ("src/receipt/a.cc", "#include <nlohmann/json.hpp>"),
        "json in the planner": ("src/planner/a.cc", "#include <nlohmann/json.hpp>"),
        "toml outside contract": ("src/plan/a.cc", "#include <toml++/toml.h>"),
        "the lane table from a receipt": ("src/receipt/a.cc", '#include "dispatch/lane_table.h"'),
        "a ledger from a receipt": ("src/receipt/a.cc", '#include "ledger/ledger.h"'),
        "a run from the ledger": ("src/ledger/a.cc", "#include <tessera/run.h>"),
        "internals from the program": ("tools/tessera/a.cc", '#include "dispatch/select.h"'),
        "internals from a benchmark": ("bench/a.cc", '#include "planner/stages.h"'),
        "a plan in the oracle": ("tests/support/oracle/a.cc", '#include "tessera/plan.h"'),
        "the oracle in the program": ("tools/tessera/a.cc", '#include "oracle/oracle.h"'),
        "the run algebra in the check": ("src/check/a.cc", '#include "contract/row_set.h"'),
        "a lane in the check": ("src/check/a.cc", '#include "lanes/lane.h"'),
        "internals in the oracle": ("tests/support/oracle/a.cc", '#include "contract/row_set.h"'),
        "internals in a public header": ("include/tessera/plan.h", '#include "plan/layout.h"'),
        "upward in a public header": ("include/tessera/contract.h", '#include "tessera/run.h"'),
        "fmt in a public header": ("include/tessera/plan.h", "#include <fmt/format.h>"),
        "a public header nobody owns": ("src/dispatch/a.cc", '#include "tessera/surprise.h"'),
        "a bare file name": ("src/plan/a.cc", '#include "layout.h"'),
        "Highway outside the CPU lane": ("src/lanes/reference/a.cc", '#include "hwy/highway.h"'),
        "Highway outside lanes": ("src/plan/a.h", '#include "hwy/highway.h"'),
        "oneTBB in a header": ("src/lanes/workers.h", "#include <tbb/parallel_for.h>"),
        "oneTBB in a lane": ("src/lanes/cpu/a.cc", "#include <tbb/parallel_for.h>"),
        "xxHash in a header": ("src/base/hash.h", "#include <xxhash.h>"),
        "xxHash beside its file": ("src/io/a.cc", "#include <xxhash.h>"),
        "an unlisted library": ("src/dispatch/a.cc", "#include <boost/json.hpp>"),
    }
    ALLOWED = {
        "downward": ("src/planner/a.cc", '#include "plan/layout.h"\n#include "tessera/contract.h"\n#include <vector>'),
        "own folder": ("src/plan/a.cc", '#include "plan/layout.h"'),
        "own lane": ("src/lanes/cpu/a.cc", '#include "lanes/cpu/b.h"\n#include "lanes/lane.h"\n#include "tessera/lane.h"'),
        "the CPU lane's library": ("src/lanes/cpu/a.cc", '#include "hwy/highway.h"'),
        "oneTBB where threads are": ("src/lanes/workers.cc", "#include <tbb/parallel_for.h>"),
        "json in its file": ("src/io/json_events.cc", "#include <nlohmann/json.hpp>"),
        "xxHash in its file": ("src/base/hash.cc", "#include <xxhash.h>"),
        "system headers": ("src/base/a.cc", "#include <sys/stat.h>\n#include <unistd.h>"),
        "cases from the program": ("tools/tessera/a.cc", '#include "cases/cases.h"\n#include "tessera/run.h"'),
        "a plan in the check": ("src/check/a.cc", '#include "tessera/plan.h"'),
        "anything from a test": ("tests/planner/a.cc", '#include "planner/stages.h"\n#include "support/proves.h"'),
    }

    def test_forbidden_fails(self):
        for what, (path, text) in self.FORBIDDEN.items():
            with self.subTest(what):
                found = problems_of({path: f"// Why.\n{text}\n"})
                self.assertEqual(len(found), 1, found)
                self.assertTrue(found[0].startswith(f"{path}:2: "), found)

    def test_allowed_passes(self):
        for what, (path, text) in self.ALLOWED.items():
            with self.subTest(what):
                self.assertEqual(problems_of({path: text + "\n"}), [])


class Sizes(unittest.TestCase):
    def test_long_public_header_fails(self):
        self.assertEqual(problems_of({"include/tessera/run.h": "//\n" * 199}), [])
        self.assertEqual(len(problems_of({"include/tessera/run.h": "//\n" * 200})), 1)

    def test_long_source_fails(self):
        self.assertEqual(problems_of({"src/plan/a.cc": "//\n" * 600, "tests/plan/a.cc": "//\n" * 600}), [])
        self.assertEqual(len(problems_of({"src/plan/a.cc": "//\n" * 601, "tests/plan/a.cc": "//\n" * 601})), 2)


class Exports(unittest.TestCase):
    def test_public_header_must_export(self):
        body = "namespace tessera {\nvoid F();\n}\n"
        good = f"{layers.EXPORT_BEGIN}\n{body}{layers.EXPORT_END}\n"
        self.assertEqual(problems_of({"include/tessera/run.h": good, "src/dispatch/run.h": body}), [])
        for text in (body, f"{layers.EXPORT_BEGIN}\n{body}", f"{body}{layers.EXPORT_END}\n"):
            self.assertEqual(len(problems_of({"include/tessera/run.h": text})), 1, text)


class Macros(unittest.TestCase):
    def test_function_like_macro_needs_undef(self):
        self.assertEqual(len(problems_of({"src/plan/a.cc": "#define TESSERA_DISPATCH(x) x\n"})), 1)
        around_def = '#define TESSERA_LANE(x) x\n#include "dispatch/lanes.def"\n#undef TESSERA_LANE\n'
        self.assertEqual(problems_of({"src/dispatch/a.cc": around_def}), [])


if __name__ == "__main__":
    unittest.main()
