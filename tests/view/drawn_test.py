#!/usr/bin/env python3
"""What stands around the tiles, in a real browser: bands of documents and validity, workers' colours and bars, the
class's capacities, and stored bits, each held against what `tessera plan --json` or the batch says.

    drawn_test.py [--shots FOLDER] TESSERA [TEST...]     Drawn.test_... alone; keeps the screenshots in FOLDER
Exit status 77 where there is no Chromium.
"""

import json
import math
import sys

import fixture
from fixture import SEED, contract, run

LEFT, TOP, BAND = 62, 44, 10  # margins of the map, as map.js has them


def documents_of(lengths, length):
    """The document of every token; -1 in padding."""
    ids = [doc for doc, count in enumerate(lengths) for _ in range(count)]
    return ids + [-1] * (length - len(ids))


def worker_colour(worker):
    """Hues a golden angle apart, 0.55 light and 0.71 saturated, as #rrggbb's numbers."""
    def channel(n):
        k = (n + (210 + worker * 137.508) % 360 / 30) % 12
        return math.floor(255 * (0.55 - 0.32 * max(-1, min(k - 3, 9 - k, 1))) + 0.5)
    return ",".join(str(channel(n)) for n in (0, 8, 4))


def schedule(parts, workers):
    """(worker of each part, slots of each worker): in the plan's order, each to whoever is free first."""
    load, owners = [0] * workers, []
    for _, begin, end, _ in parts:
        owners.append(load.index(min(load)))
        load[owners[-1]] += end - begin
    return owners, load


class Drawn(fixture.View):
    def plan_of(self, arguments, *more):
        return json.loads(run("plan", *arguments, *more, "--json"))

    def colours(self, names):
        return self.page.evaluate("""(() => { const style = getComputedStyle(document.documentElement);
            return Object.fromEntries(%s.map((name) => { const hex = style.getPropertyValue("--" + name).trim();
              return [name, [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join()]; })); })()""" %
                                  json.dumps(names))

    def canvas(self, places, selector="canvas.map"):
        """The colours at these pixels of a canvas."""
        return self.page.evaluate("""(() => { const canvas = document.querySelector("%s");
            const context = canvas.getContext("2d");
            return %s.map(([x, y]) => { const at = context.getImageData(x, y, 1, 1).data;
              return [at[0], at[1], at[2]].join(); }); })()""" % (selector, json.dumps(places)))

    def table(self, heading):
        """The rows of a panel's table as lists of texts."""
        return self.page.evaluate("""[...[...document.querySelectorAll("#panels section")]
            .find((s) => s.querySelector("h2").textContent.startsWith(%s)).querySelectorAll("tbody tr")]
            .map((row) => [...row.cells].map((cell) => cell.textContent))""" % json.dumps(heading))

    def test_bands_are_the_documents_and_valid_tokens_of_both_axes(self):
        # Other documents and another validity on each side, and padding at the end of the first row.
        q, kv = [[61, 7, 99], [30, 170]], [[40, 110, 30], [200]]
        valid = {"q": [150, 200], "kv": [200, 90]}
        _, html = self.show("bands", (contract("documents and valid", batch=2), {
            "q_doc_lengths": q, "kv_doc_lengths": kv, "q_valid_tokens": valid["q"], "kv_valid_tokens": valid["kv"]}))
        for theme in ("light", "dark"):
            self.page.open(html, "#t=" + theme)
            colour = self.colours(["band-a", "band-b", "padding"])
            for batch_row in (0, 1):
                for view in ({"scale": 2, "q0": 0, "k0": 0}, {"scale": 9, "q0": 130, "k0": 120},
                             {"scale": 1.5, "q0": 20, "k0": -10}):
                    self.state(batchRow=batch_row, q=0, k=0, **view)
                    places, expected = [], []
                    for side, lengths in (("q", q), ("kv", kv)):
                        ids = documents_of(lengths[batch_row], 200)
                        begin = view["q0" if side == "q" else "k0"]
                        last = begin + (300 if side == "q" else 500) / view["scale"]
                        for token in range(max(0, begin), int(min(200, last))):
                            at = int((token - begin + 0.5) * view["scale"])
                            places.append([LEFT + at, TOP - 2 - BAND // 2] if side == "kv" else
                                          [LEFT - 2 - BAND // 2, TOP + at])
                            is_padding = ids[token] < 0 or token >= valid[side][batch_row]
                            expected.append("padding" if is_padding else ("band-a", "band-b")[ids[token] % 2])
                    names = {value: name for name, value in colour.items()}
                    found = [names.get(value, value) for value in self.canvas(places)]
                    # At the edge of a band the browser may blend two colours.
                    edges = [i for i in range(1, len(found)) if expected[i] != expected[i - 1]]
                    sharp = [i for i in range(len(found)) if view["scale"] > 3 or not {i, i + 1} & set(edges)]
                    self.assertEqual([found[i] for i in sharp], [expected[i] for i in sharp], (theme, batch_row, view))
                    self.assertGreater(len(set(expected)), 1)
        # Without documents and validity there is none.
        self.show("plain", (contract("causal"), None))
        ground = self.colours(["ground"])["ground"]
        self.assertEqual(set(self.canvas([[LEFT + x, TOP - 2 - BAND // 2] for x in range(0, 300, 7)])), {ground})

    def test_workers_have_their_colours_and_bars(self):
        arguments, _ = self.show("workers", (contract("causal and documents", batch=2, heads=2),
                                             {"doc_lengths": [[61, 7, 132], [200]]}))
        plan = self.plan_of(arguments)["plan"]
        for direction, name in enumerate(("forward", "dq", "dkv")):
            listed = plan["directions"][name]
            for workers in (1, 3, 8):
                with self.subTest(direction=name, workers=workers):
                    owners, load = schedule(listed["parts"], workers)
                    self.page.evaluate(f"document.getElementById('direction').value = {direction};"
                                       "document.getElementById('colour').value = 'worker';"
                                       f"document.getElementById('workers').value = {workers};"
                                       "['direction', 'colour', 'workers'].forEach((id) => document.getElementById(id)"
                                       ".dispatchEvent(new Event('input')))")
                    self.page.frame()
                    self.check_tiles(plan, name, listed["parts"], owners)
                    self.check_bars(load)

    def check_tiles(self, plan, name, parts, owners):
        """Every tile of the map has the colour of the worker of the part that its slot is in."""
        listed = plan["directions"][name]
        tile_q, tile_kv = listed["tile"]
        for batch_row in range(2):
            self.state(batchRow=batch_row, head=1, q0=0, k0=0, q=199, k=199, scale=2)
            mask = plan["mask_of"][batch_row][1]
            slot = sum(len(row) for one in listed["rows"][:mask] for row in one)
            where, expected = [], []
            for row, slots in enumerate(listed["rows"][mask]):
                for index, _, _ in slots:
                    at = [row, index] if name != "dkv" else [index, row]
                    where.append([(i * tile + min(200, (i + 1) * tile) - 1) // 2
                                  for i, tile in zip(at, (tile_q, tile_kv))])
                    row_of_plan = mask * listed["rows_per_mask"] + row
                    part = next(p for p, (of, begin, end, _) in enumerate(parts)
                                if of == row_of_plan and begin <= slot < end)
                    expected.append(worker_colour(owners[part]))
                    slot += 1
            self.assertEqual(self.pixels(where), expected)

    def check_bars(self, load):
        width, height = self.page.evaluate("(({width, height}) => [width, height])("
                                           "document.querySelector('canvas.bars'))")
        each, most = width / len(load), max(load)
        for worker, slots in enumerate(load):
            x = int(worker * each + each / 2)
            column = self.canvas([[x, y] for y in range(height)], "canvas.bars")
            tall = sum(colour == worker_colour(worker) for colour in column)
            self.assertAlmostEqual(tall, slots / most * height, delta=1.01, msg=f"worker {worker} of {load}")
            self.assertEqual(set(column[:max(0, height - tall - 1)]) - {"0,0,0"}, set(), "nothing above a bar")
        text = self.page.evaluate("document.querySelector('canvas.bars').getAttribute('aria-label')")
        workers, tiles = (f"{n} {word}{'' if n == 1 else 's'}" for n, word in ((len(load), "worker"), (most, "tile")))
        self.assertTrue(text.startswith(f"{workers}; the busiest has {tiles}, the mean is "
                                        f"{sum(load) / len(load):.1f}."), text)

    def test_capacities_are_the_classs(self):
        capacities = "[capacity]\nwidth = 12\n"
        for name, text, batch, more in (
                ("exact", contract("causal and documents", batch=2), {"doc_lengths": [[61, 7, 132], [200]]}, []),
                ("pow2", contract("causal and window(60, 0)") + '[capacity]\nwidth = "pow2"\n', None, []),
                ("number", contract("causal and window(60, 0)") + capacities, None, []),
                ("tpu", contract("causal", q=1024, kv=1024, tile=128), None, ["--target", "v6e"])):
            with self.subTest(case=name):
                arguments, _ = self.show(name, (text, batch), *more)
                made = self.plan_of(arguments, *more)
                plan = made["plan"]
                grouped = "{:,}".format
                rows, parts = [], []
                for direction in ("forward", "dq", "dkv"):
                    listed = plan["directions"][direction]
                    widest = max(len(slots) for mask in listed["rows"] for slots in mask)
                    rows.append([f"slots in a row, {direction} (tile {listed['tile'][0]}x{listed['tile'][1]})",
                                 grouped(widest), grouped(listed["width_capacity"])])
                    parts.append(len(listed["parts"]))
                rows.append(["masks", grouped(plan["num_masks"]), grouped(plan["mask_capacity"])])
                rows.append(["cleanups", grouped(len(plan["cleanups"]) - 1), grouped(plan["cleanup_capacity"])])
                rows.append(["parts", grouped(max(parts)), grouped(plan["part_capacity"])])
                rows.append(["bytes of scalar memory", grouped(made["metadata_bytes"]),
                             grouped(made["scalar_limit"]) if made["scalar_limit"] else "no limit"])
                self.assertEqual(self.table("The class"), rows)
                tiles = [[d, *(grouped(plan["directions"][d]["tile_counts"][kind])
                               for kind in ("full", "partial", "empty"))] for d in ("forward", "dq", "dkv")]
                self.assertEqual(self.table("Tiles"), tiles)
                self.assertEqual(self.table("Keys"), [["contract", plan["contract_key"]], ["class", plan["class_key"]],
                                                      ["plan", plan["fingerprint"]]])

    def test_words_of_tables_stay_whole(self):
        # The browser breaks no word of a table but in a last column, where paths and keys are.
        _, first = self.show("words", (contract("causal and documents", heads=2), {"doc_lengths": [61, 139]}))
        _, second = self.show("plain", (contract("causal"), None))
        for width in (420, 800, 1300):
            self.page.resize(width, 900)
            for html in (first, second):
                self.page.open(html)
                broken = self.page.evaluate("""[...document.querySelectorAll("th, td:not(:last-child), td.number")].flatMap((cell) => {
                    const text = cell.firstChild;
                    return text === null ? [] : [...text.data.matchAll(/\\S+/g)].filter((word) => {
                      const range = document.createRange();
                      range.setStart(text, word.index);
                      range.setEnd(text, word.index + word[0].length);
                      return range.getClientRects().length > 1 && !word[0].includes("-");
                    }).map((word) => word[0]); })""")
                self.assertEqual(broken, [], width)
                self.assertLessEqual(*self.page.evaluate("[document.documentElement.scrollWidth, innerWidth]"), f"at {width}")
        self.page.resize(1200, 900)

    def test_a_legend_has_what_is_there(self):
        for name, mask, batch, expected in (
                ("plain", "causal", None, []), ("documents", "causal and documents", {"doc_lengths": [61, 139]}, ["documents"]),
                ("rest", "causal and documents", {"doc_lengths": [61, 100]}, ["documents", "padding"]),
                ("valid", "causal and valid", {"valid_tokens": [150]}, ["padding"])):
            self.show(name, (contract(mask), batch))
            text = self.page.evaluate("document.getElementById('legend').textContent")
            self.assertEqual([word for word in ("documents", "padding") if word in text], expected, name)
            self.assertIn("1 head, 1 distinct mask", self.page.evaluate("document.getElementById('subtitle').textContent") + "$")

    def test_stored_bits_are_the_bitmaps(self):
        # Tiles of more than 64 keys: a row of a tile is two words, and lengths leave a ragged end.
        q_len, kv_len = 150, 203
        bits = [[[self.random.random() < 0.4 for _ in range(kv_len)] for _ in range(q_len)] for _ in range(2)]
        for head in range(2):
            fixture.write_npy(self.folder / f"bits{head}.npy", bits[head])
        masks = [f"bitmap('bits{head}.npy') and window(120, 90)" for head in range(2)]
        self.show("bits", (contract(masks, q=q_len, kv=kv_len, heads=2, tile=96), None))
        offset = kv_len - q_len
        for head in range(2):
            allowed = [[bits[head][q][k] and q + offset - 120 <= k <= q + offset + 90 for k in range(kv_len)]
                       for q in range(q_len)]
            for direction in range(3):
                # Corners, the edge between tiles and words, and anywhere.
                for q0, k0 in ((0, 0), (80, 50), (80, 140), (self.random.randrange(100), self.random.randrange(150))):
                    self.state(head=head, direction=direction, scale=8, q0=q0, k0=k0, q=q_len - 1, k=kv_len - 1)
                    pairs = [[q, k] for q in range(q0, min(q_len - 1, q0 + 50)) for k in range(k0, min(kv_len - 1, k0 + 80))]
                    self.assertGreater(len(pairs), 1000)
                    found = self.pixels(pairs)
                    wrong = [(q, k, kind) for (q, k), kind in zip(pairs, found)
                             if kind not in (("full",) if allowed[q][k] else ("empty", "denied"))]
                    self.assertEqual(wrong[:5], [], (head, direction, q0, k0, SEED))
        self.assertIn("stored bits", self.page.evaluate("document.getElementById('pointer').textContent"))


if __name__ == "__main__":
    sys.exit(fixture.main(__doc__))
