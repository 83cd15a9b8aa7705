"""The CPU benchmark's manners: the JSON it writes, the work it counts, bad options, peers that are missing or wrong.

Usage: bench_cpu_test.py PROGRAM. Speed is nobody's business here: cases are tiny and run on any lane.
"""

import json
import os
import pathlib
import platform
import stat
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom

PROGRAM = sys.argv.pop(1)
TOKENS, HEADS = 128, 8
IS_X86 = platform.machine() in ("x86_64", "AMD64")
CAUSAL_PAIRS = TOKENS * (TOKENS + 1) // 2 * HEADS
# A peer that speaks the protocol and gets every element wrong. It is started as the Python interpreter.
WRONG_PEER = f"""#!{sys.executable}
import json, struct, sys
name = sys.argv[3]
for line in sys.stdin:
    request = json.loads(line)
    op = request["op"]
    reply = {{"ok": True}}
    if op == "hello" and name != "sdpa":
        reply = {{"ok": False, "reason": "not this one"}}
    elif op == "hello":
        reply |= {{"title": "Wrong", "version": "7"}}
    elif op == "prepare":
        reply |= {{"how": {{"forward": "badly"}}, "modes": {{"forward": "", "forward_backward": "cannot go back"}}}}
        case = request["case"]
        shape = [1, case["heads"], case["tokens"], case["dim"]]
    elif op == "run":
        reply |= {{"seconds": 0.5}}
    elif op == "outputs":
        count = shape[1] * shape[2] * shape[3]
        header = json.dumps({{"o": {{"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * count]}}}}).encode()
        with open(request["file"], "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header + struct.pack(f"<{{count}}f", *[9.0] * count))
    elif op == "matmul":
        reply |= {{"gflops": 3.0}}
    print(json.dumps(reply), flush=True)
"""


def bench(*arguments, expect=0, tokens=TOKENS):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TESSERA_")}
    command = [PROGRAM, "--tokens", str(tokens), "--repeats", "1", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert result.returncode == expect, f"{command}: exit {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result


class BenchCpu(unittest.TestCase):
    def test_json_has_every_field(self):
        result = bench("--json", "--cases", "causal-1k-d64-f32,window,documents,gqa")
        document = json.loads(result.stdout)
        self.assertIn("roof of one core", result.stderr)
        self.assertEqual(document["benchmark"], "cpu")
        for dtype in ("f32", "bf16"):
            self.assertIn("instructions", document["roof"][dtype])
        rows = {(row["case"], row["mode"]): row for row in document["table"]}
        for row in rows.values():
            self.assertEqual(row["tokens"], TOKENS)
            self.assertGreater(row["seconds"], 0)
            factor = {"forward": 1, "forward_backward": 3.5}[row["mode"]]
            flops = 4 * row["dim"] * row["pairs"] * factor
            self.assertAlmostEqual(row["gflops"] / (flops / row["seconds"] * 1e-9), 1, places=6)
            for field in ("peers", "must_reach", "goal", "own_causal_ratio", "roof_share", "lane", "kernel", "isa"):
                self.assertIn(field, row)
            for field in ("must_reach", "goal"):
                self.check_verdict(row[field])
        window, documents = TOKENS // 8, TOKENS // 8
        pairs = {
            "causal-1k-d64-f32": CAUSAL_PAIRS,
            "gqa-4k-d128-f32": CAUSAL_PAIRS,
            "window-4k-d128-f32": sum(min(i + 1, window) for i in range(TOKENS)) * HEADS,
            "documents-4k-d128-f32": 8 * documents * (documents + 1) // 2 * HEADS,
        }
        for name, count in pairs.items():
            self.assertEqual(rows[name, "forward"]["pairs"], count, name)

    def check_verdict(self, verdict):
        """A rule or none, and always either an answer or why there is none."""
        self.assertEqual(verdict["held"] is None, "not_judged" in verdict)
        if verdict["rule"] is None:
            self.assertIsNone(verdict["held"])
            self.assertEqual(verdict["not_judged"], "nothing asked on " + ("x86-64" if IS_X86 else "aarch64"))
        elif verdict["held"] is None:
            self.assertIn(" was not measured", verdict["not_judged"])

    def test_own_causal_rate_is_the_reference(self):
        rows = json.loads(bench("--json", "--cases", "causal-4k-d128-f32,softcap-4k-d128-f32").stdout)["table"]
        by_name = {row["case"]: row for row in rows if row["mode"] == "forward"}
        causal, softcap = by_name["causal-4k-d128-f32"], by_name["softcap-4k-d128-f32"]
        self.assertEqual(causal["own_causal_ratio"], 1)
        self.assertAlmostEqual(softcap["own_causal_ratio"], softcap["gflops"] / causal["gflops"], places=9)

    def test_other_sections(self):
        document = json.loads(bench("--json", "--section", "scaling", "--threads", "2").stdout)
        self.assertEqual(document["table"], [])
        self.assertEqual({row["threads"] for row in document["scaling"]}, {1, 2})
        document = json.loads(bench("--json", "--section", "sparsity", tokens=512).stdout)
        tiles = {row["percent"]: row["tiles"] for row in document["sparsity"]}
        self.assertEqual(tiles, {100: 4, 75: 3, 50: 2, 25: 1, 10: 1, 5: 1})

    def test_overhead_of_public_calls(self):
        result = bench("--json", "--section", "overhead", "--seconds", "0")
        rows = json.loads(result.stdout)["overhead"]
        calls = ["bound forward", "bound backward", "bound forward, receipt", "run_strided f+b", "run f+b"]
        names = list(dict.fromkeys(row["case"] for row in rows))
        self.assertEqual([(row["case"], row["call"]) for row in rows], [(name, call) for name in names for call in calls])
        for row in rows:
            self.assertGreater(row["lane_s"], 0)
            self.assertAlmostEqual(row["more_s"], row["call_s"] - row["lane_s"], places=12)
            has_goal = row["call"] in ("bound forward", "bound backward")
            self.assertEqual(bool(row["goals"]), has_goal)
            if has_goal:
                limit = 15e-6 + 0.005 * row["lane_s"]
                self.assertEqual(row["goals"][0], {"rule": "15 us + 0.5%", "held": row["more_s"] <= limit})
        # The shortest forward is also held to a ratio, where one is asked for.
        (ratio,) = rows[0]["goals"][1:]
        self.check_ratio(rows[0], ratio)
        self.assertTrue(all(len(row["goals"]) <= 1 for row in rows[1:]))

    def check_ratio(self, row, verdict):
        factors = {"neon": 1.06, "neon_bf16": 1.06, "avx512": 1.25}
        if row["isa"] not in factors:
            self.assertEqual(verdict, {"rule": None, "held": None, "not_judged": f"no ratio asked of {row['isa']}"})
            return
        factor = factors[row["isa"]]
        held = row["call_s"] <= factor * row["lane_s"]
        self.assertEqual(verdict, {"rule": f"{factor:.2f}x the lane", "held": held})

    def test_bad_options(self):
        self.assertIn("no case begins with \"nonsense\"", bench("--cases", "nonsense", expect=2).stderr)
        for options in (["--section", "nonsense"], ["--threads", "many"], ["--repeats", "0"], ["--nonsense"]):
            command = subprocess.run([PROGRAM, *options], capture_output=True, text=True)
            self.assertEqual(command.returncode, 2, options)
            self.assertIn(options[0], command.stderr)

    def test_missing_peer_is_a_stated_skip(self):
        result = bench("--json", "--cases", "causal-1k-d64-f32", "--peers", "--python", "/nowhere/python")
        document = json.loads(result.stdout)
        self.assertEqual([peer["name"] for peer in document["peers"]], ["sdpa", "unfused", "flex", "onnx"])
        for peer in document["peers"]:
            self.assertIn("cannot run /nowhere/python", peer["missing"])
        # Asked of this case on Arm only, so that on x86-64 there is no rule which a missing peer could leave open.
        (row,) = document["table"]
        missing = {"rule": "1.7x sdpa", "held": None, "not_judged": "sdpa was not measured"}
        nothing = {"rule": None, "held": None, "not_judged": "nothing asked on x86-64"}
        self.assertEqual(row["must_reach"], nothing if IS_X86 else missing)

    def test_missing_peer_leaves_a_rule_of_both_architectures_open(self):
        result = bench("--json", "--cases", "causal-4k-d128-f32", "--peers", "--python", "/nowhere/python")
        forward, both = json.loads(result.stdout)["table"]
        for row, factor in ((forward, "1.05" if IS_X86 else "1.25"), (both, "1.05" if IS_X86 else "1.15")):
            expected = {"rule": f"{factor}x sdpa", "held": None, "not_judged": "sdpa was not measured"}
            self.assertEqual(row["must_reach"], expected)
        self.assertIn("x sdpa: ?", result.stderr)

    def test_wrong_peer_is_found_out(self):
        with tempfile.TemporaryDirectory() as folder:
            python = pathlib.Path(folder, "python")
            python.write_text(WRONG_PEER)
            python.chmod(python.stat().st_mode | stat.S_IEXEC)
            plot = pathlib.Path(folder, "plot.svg")
            options = ("--json", "--cases", "causal-4k-d64-f32", "--peers", "--python", str(python), "--plot", str(plot))
            result = bench(*options, expect=1)
            xml.dom.minidom.parse(str(plot))
        self.assertIn("RESULTS DIFFER from sdpa in o", result.stderr)
        forward, both = json.loads(result.stdout)["table"]
        figure = forward["peers"][0]
        self.assertFalse(figure["difference"]["agrees"])
        self.assertEqual(figure["seconds"], 0.5)
        self.assertEqual(figure["how"], "badly")
        if IS_X86:
            self.assertIsNone(forward["must_reach"]["rule"])
        else:
            self.assertEqual(forward["must_reach"]["rule"], "1.3x sdpa")
            self.assertEqual(forward["must_reach"]["held"], figure["ours_over_theirs"] >= 1.3)
        self.assertEqual(both["peers"][0]["skipped"], "cannot go back")
        self.assertEqual(forward["peers"][1]["skipped"], "not this one")


if __name__ == "__main__":
    unittest.main()
