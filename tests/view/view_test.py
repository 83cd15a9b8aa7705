#!/usr/bin/env python3
"""`tessera view` in a real browser: what is drawn is what the plan says, every control works, and no name is markup.

    view_test.py [--shots FOLDER] TESSERA [TEST...]     Shown.test_... alone; keeps the screenshots in FOLDER
Exit status 77 where there is no Chromium.
"""

import sys

import fixture
from fixture import SEED, contract, run

# Every kind of item and condition: bands, diagonals, documents, validity, sinks, stored bits, picked rows, heads.
CASES = {
    "causal": (contract("causal"), None),
    "window_cross": (contract("window(20, 7)", q=130, kv=203), None),
    "documents": (contract("causal and documents and (window(40, 0) or sink(3, document))", batch=2),
                  {"doc_lengths": [[61, 7, 99], [200]]}),
    "valid": (contract("valid and chunk(48)", batch=2), {"valid_tokens": [150, 0]}),
    "heads": (contract(["causal", "prefix(30) or window(5, 5)"], heads=2), None),
    "picks": (contract("causal and blocks", q=96, kv=96),
              {"picks": {"block_tokens": 16, "blocks": [[[[q // 16, (q // 16 + 1 + q % 5) % 6]] for q in range(96)]]}}),
}


class Shown(fixture.View):
    def test_pairs_and_pixels_are_the_plans(self):
        for name in CASES:
            arguments, _ = self.show(name, CASES[name])
            facts = self.page.evaluate("(({batch, heads, q_len, kv_len, directions}) => ({batch, heads, q_len, kv_len, "
                                       "tiles: directions.map((d) => [d.tile_q, d.tile_kv])}))(tessera.plans[0])")
            for batch_row in range(facts["batch"]):
                for head in range(facts["heads"]):
                    with self.subTest(case=name, batch_row=batch_row, head=head, seed=SEED):
                        self.check_map(self.dense(arguments, batch_row, head), facts, batch_row, head)

    def check_map(self, mask, facts, batch_row, head):
        q_len, kv_len = facts["q_len"], facts["kv_len"]
        for direction in range(3):
            found = self.page.evaluate(
                f"""(() => {{ const plan = tessera.plans[0]; const rows = [];
                for (let q = 0; q < {q_len}; ++q) {{ let row = "";
                  for (let k = 0; k < {kv_len}; ++k)
                    row += plan.allows({direction}, {batch_row}, {head}, q, k) ? 1 : 0;
                  rows.push(row); }}
                return rows; }})()""")
            self.assertEqual(found, ["".join(map(str, row)) for row in mask])
            # Tiles, from far.
            tile_q, tile_kv = facts["tiles"][direction]
            self.state(batchRow=batch_row, head=head, direction=direction, q0=0, k0=0, q=0, k=0, colour="kind",
                       scale=min(2.5, self.page.evaluate("tessera.maps[0].fitScale()")))
            tiles = [(i, j) for i in range(1, -(-q_len // tile_q)) for j in range(1, -(-kv_len // tile_kv))]
            tiles = self.random.sample(tiles, min(60, len(tiles)))
            expected, where = [], []
            for i, j in tiles:
                cells = [mask[q][k] for q in range(i * tile_q, min(q_len, (i + 1) * tile_q))
                         for k in range(j * tile_kv, min(kv_len, (j + 1) * tile_kv))]
                expected.append("empty" if not any(cells) else "full" if all(cells) else "partial")
                where.append([min(q_len - 1, i * tile_q + tile_q // 2), min(kv_len - 1, j * tile_kv + tile_kv // 2)])
            self.assertEqual(self.pixels(where), expected)
        # Pairs, from near.
        q0, k0 = self.random.randrange(q_len - 30), self.random.randrange(kv_len - 30)
        self.state(direction=0, scale=8, q0=q0, k0=k0)
        pairs = [[self.random.randrange(q0 + 1, q0 + 30), self.random.randrange(k0 + 1, k0 + 30)] for _ in range(200)]
        for (q, k), kind in zip(pairs, self.pixels(pairs)):
            self.assertIn(kind, ("full",) if mask[q][k] else ("empty", "denied"), (q, k))

    def test_every_control_works(self):
        self.show("documents", CASES["documents"])
        page = self.page
        where = page.evaluate("(({left, top}) => [left + 300, top + 300])("
                              "tessera.maps[0].canvas.getBoundingClientRect())")
        before = page.evaluate("tessera.state.scale")
        page.mouse("mouseWheel", *where, deltaX=0, deltaY=-100)
        self.assertGreater(page.evaluate("tessera.state.scale"), before)
        page.mouse("mouseMoved", *where)
        pair = page.evaluate("[tessera.state.q, tessera.state.k]")
        self.assertIn(f"query {pair[0]} ", page.evaluate("document.getElementById('pointer').textContent"))
        k0 = page.evaluate("tessera.state.k0")
        page.mouse("mousePressed", *where, button="left", buttons=1, clickCount=1)
        page.mouse("mouseMoved", where[0] - 40, where[1], button="left", buttons=1)
        page.mouse("mouseReleased", where[0] - 40, where[1], button="left", clickCount=1)
        self.assertGreater(page.evaluate("tessera.state.k0"), k0)
        for button, check in (("zoom-in", "tessera.state.scale"), ("pairs", "tessera.state.scale"),
                              ("theme", "document.documentElement.dataset.theme"), ("fit", "tessera.state.scale"),
                              ("zoom-out", "tessera.state.scale")):
            was = page.evaluate(check)
            page.evaluate(f"document.getElementById('{button}').click()")
            page.frame()
            self.assertNotEqual(page.evaluate(check), was, button)
        for control, value, name in (("batch-row", 1, "batchRow"), ("direction", 2, "direction"), ("query", 33, "q"),
                                     ("key", 44, "k"), ("colour", "worker", "colour"), ("workers", 3, "workers")):
            page.evaluate(f"""(() => {{ const c = document.getElementById('{control}'); c.value = '{value}';
                          c.dispatchEvent(new Event('input')); }})()""")
            page.frame()
            self.assertEqual(page.evaluate(f"tessera.state.{name}"), value, control)
        self.assertIn("3 workers", page.evaluate("document.getElementById('panels').textContent"))
        self.show("heads", CASES["heads"])
        self.page.evaluate("""(() => { const c = document.getElementById('head'); c.value = 1;
                           c.dispatchEvent(new Event('input')); })()""")
        self.page.frame()
        self.assertEqual(self.page.evaluate("tessera.state.head"), 1)

    def test_keyboard_alone_is_enough(self):
        self.show("documents", CASES["documents"])
        page = self.page
        page.evaluate("tessera.maps[0].canvas.focus()")
        page.key("ArrowDown")
        page.key("ArrowRight")
        self.assertEqual(page.evaluate("[tessera.state.q, tessera.state.k]"), [16, 16])
        page.key("p")
        page.key("ArrowUp")
        self.assertEqual(page.evaluate("[tessera.state.q, tessera.state.k]"), [15, 16])
        self.assertIn("query 15 does not see key 16", page.evaluate("document.getElementById('pointer').textContent"))
        self.assertIn("✗ causal", page.evaluate("document.getElementById('pointer').textContent"))
        scale = page.evaluate("tessera.state.scale")
        page.key("+")
        self.assertGreater(page.evaluate("tessera.state.scale"), scale)
        page.key("0")
        self.assertEqual(page.evaluate("tessera.state.scale"), page.evaluate("tessera.maps[0].fitScale()"))

    def test_a_link_reopens_the_view(self):
        _, html = self.show("heads", CASES["heads"])
        self.state(head=1, direction=2, q=70, k=60, scale=9, q0=50, k0=40)
        fragment = self.page.evaluate("location.hash")
        shown = self.page.evaluate("document.getElementById('pointer').textContent")
        self.page.open(html, fragment)
        self.assertEqual(self.page.evaluate("[tessera.state.head, tessera.state.direction, tessera.state.q, "
                                            "tessera.state.k, tessera.state.scale]"), [1, 2, 70, 60, 9])
        self.assertEqual(self.page.evaluate("document.getElementById('pointer').textContent"), shown)

    def test_no_name_becomes_markup(self):
        hostile = "<img src=x onerror=document.title=1>&lt;'\"@DATA@@SCRIPT@"
        arguments, html = self.show(hostile, CASES["causal"])
        self.assertIn(hostile, self.page.evaluate("document.title"))
        self.assertEqual(self.page.evaluate("document.images.length + document.scripts.length"), 2)
        plan = self.folder / "<!--<script>.plan"
        run("plan", *arguments, "--out", plan)
        run("view", "--plan", plan, "--no-open", "--out", html)
        self.page.open(html)
        self.assertIn("<!--<script>", self.page.evaluate("document.querySelector('figcaption').textContent"))

    def test_a_receipt_is_shown_with_its_plan_or_alone(self):
        arguments = self.write("causal", CASES["causal"])
        receipt = self.folder / "receipt.json"
        run("run", *arguments, "--seed", "3", "--receipt", receipt)
        html = self.folder / "receipt.html"
        for more in ([], arguments):
            run("view", *more, "--receipt", receipt, "--no-open", "--out", html)
            self.page.open(html)
            self.assertIn("lane", self.page.evaluate("document.getElementById('receipts').textContent"))
        self.assertIn("selected", self.page.evaluate("document.getElementById('panels').textContent"))

    def test_routed_picks_are_shown_with_their_scores(self):
        routed = contract("causal and blocks", q=96, kv=96) + (
            "[routing]\nquery_tile = 16\nkv_tile = 32\nselected_block = 16\nblock_stride = 8\ncompression_block = 16\n"
            "top_n = 3\n")
        self.show("routed", (routed, None), "--seed", "5")
        page = self.page
        for query in (90, 40):
            self.state(q=query, k=query)
            picks = page.evaluate(f"tessera.plans[0].picksOf(0, 0, {query})")
            self.assertEqual(len(picks), 3)
            self.assertEqual([p["block"] for p in picks if p["score"] is None], [query // 16], "its own block is kept")
            said = page.evaluate("document.getElementById('pointer').textContent")
            self.assertIn(f"routing picked block {query // 16} of keys, without a score", said)
            scored = next(p for p in picks if p["score"] is not None)
            self.state(k=scored["begin"])
            self.assertIn(f"routing picked block {scored['block']} of keys, score ",
                          page.evaluate("document.getElementById('pointer').textContent"))
            panel = page.evaluate("document.getElementById('picks').textContent")
            self.assertIn(f"Picks of query {query}", panel)
            for pick in picks:
                self.assertIn(f"{pick['begin']} to {pick['end'] - 1}", panel)
        # What is picked and causal is what the map allows.
        allowed = page.evaluate("Array.from({length: 96}, (_, k) => tessera.plans[0].allows(0, 0, 0, 40, k))")
        blocks = {p["block"] for p in page.evaluate("tessera.plans[0].picksOf(0, 0, 40)")}
        self.assertEqual(allowed, [k <= 40 and k // 16 in blocks for k in range(96)])

    def test_dark_print_and_screen_readers(self):
        _, html = self.show("documents", CASES["documents"])
        page = self.page
        light = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        page.open(html)
        self.assertEqual(page.evaluate("document.documentElement.dataset.theme"), "dark")
        self.assertNotEqual(page.evaluate("getComputedStyle(document.body).backgroundColor"), light)
        page.call("Emulation.setEmulatedMedia", features=[])
        nodes = page.call("Accessibility.getFullAXTree")["nodes"]
        named = {(n.get("role", {}).get("value"), n.get("name", {}).get("value")) for n in nodes if not n["ignored"]}
        for role, name in (("spinbutton", "Head"), ("combobox", "Direction"), ("button", "Zoom in"),
                           ("status", "The pair at the pointer")):
            self.assertIn((role, name), named)
        self.assertTrue(any(name and name.startswith("Tile map of ") for _, name in named), named)
        printed = page.call("Page.printToPDF", printBackground=True)["data"]
        self.assertGreater(len(printed), 10_000)

    def test_a_million_tokens_are_a_small_file(self):
        case = (contract("causal and documents and window(4095, 0)", q=1 << 20, kv=1 << 20, tile=512),
                {"doc_lengths": [[1048] * 1000]})
        _, html = self.show("million", case)
        self.assertLess(html.stat().st_size, 2 << 20)
        self.assertEqual(self.pixels([[1 << 19, 1 << 18]]), ["empty"])
        self.state(scale=8, q0=500_000, k0=500_000)
        self.assertEqual(self.pixels([[500_010, 500_003], [500_003, 500_010]]), ["full", "denied"])

    def test_the_page_itself_is_small_and_needs_no_network(self):
        _, html = self.show("causal", CASES["causal"])
        text = html.read_text()
        self.assertLess(len(text), 400 * 1024)
        for word in ("http://", "https://", "src=", "import("):
            self.assertNotIn(word, text.split("</style>")[1], word)


if __name__ == "__main__":
    sys.exit(fixture.main(__doc__))
