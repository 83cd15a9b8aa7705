#!/usr/bin/env python3
"""Two plans side by side in a real browser: a tile is marked when any of its pairs differs, and no other.

    two_plans_test.py [--shots FOLDER] TESSERA [TEST...]     Two.test_... alone; keeps the screenshots in FOLDER
Exit status 77 where there is no Chromium.
"""

import sys

import fixture
from fixture import SEED, contract

MIXED = "causal and documents and (window(40, 0) or sink(3, document))"
HEADS = ["causal and documents", "valid and (causal or documents)"]


def edges(length, *tiles):
    """Where tiles of these sizes begin, and the end."""
    return sorted({at for tile in tiles for at in range(0, length, tile)} | {length})


class Two(fixture.View):
    def test_terms_that_differ(self):
        self.show_two((contract("causal"), None), (contract("causal and window(99, 0)"), None))
        # (150, 10) is in the first only; (150, 140) in both; (10, 150) in neither.
        for which in (0, 1):
            self.assertEqual(self.pixels([[150, 10], [152, 100], [10, 150]], which), ["differs", "full", "empty"])

    def test_documents_that_differ_mark_every_tile_they_change(self):
        text = contract("causal and documents", q=256, kv=256)
        first, second = ({"doc_lengths": [lengths]} for lengths in ([100, 156], [104, 152]))
        self.assertEqual(self.check((text, first), (text, second)), [16, 16, 16])
        self.assertIn("16 tiles differ", self.page.evaluate("document.getElementById('difference').textContent"))

    def test_valid_lengths_that_differ_mark_every_tile_they_change(self):
        text = contract("valid and causal", q=128, kv=128, batch=2)
        # 70 against 75 queries change row 4 of tiles; the other batch row is the same.
        self.assertEqual(self.check((text, {"valid_tokens": [70, 90]}), (text, {"valid_tokens": [75, 90]})),
                         [5, 5, 5, 0, 0, 0])

    def test_the_same_mask_in_other_words_has_no_difference(self):
        text = contract("causal and documents", q=160, kv=160)
        ids = [[0] * 50 + [1] * 30 + [2] * 80]
        renamed = [[7 if doc == 0 else doc for doc in ids[0]]]
        self.assertEqual(self.check((text, {"doc_ids": ids}), (text, {"doc_ids": renamed})), [0, 0, 0])
        self.assertIn("No tile differs", self.page.evaluate("document.getElementById('difference').textContent"))
        # Stored bits beside bands and documents.
        fixture.write_npy(self.folder / "bits.npy", [[k <= q and ids[0][k] == ids[0][q] for k in range(160)]
                                                     for q in range(160)])
        stored = contract("bitmap('bits.npy')", q=160, kv=160)
        self.assertEqual(self.check((text, {"doc_ids": ids}), (stored, None)), [0, 0, 0])

    def test_random_documents_and_lengths(self):
        for mask in (MIXED, HEADS, "documents(equal) and window(60, 30) and valid"):
            heads = len(mask) if isinstance(mask, list) else 1
            text = contract(mask, batch=2, heads=heads)
            with self.subTest(mask=mask, seed=SEED):
                self.check((text, self.batch(mask)), (text, self.batch(mask)))

    def test_tiles_of_other_sizes_and_other_lengths(self):
        lengths = {"doc_lengths": [[61, 7, 132]]}
        self.check((contract(MIXED), lengths), (contract(MIXED, tile=24), {"doc_lengths": [[61, 9, 130]]}))
        self.check((contract(MIXED), lengths), (contract(MIXED, tile=32), lengths))
        self.show_two((contract("causal", q=200, kv=200), None), (contract("causal", q=232, kv=232), None))
        self.assertEqual(self.pixels([[120, 30], [30, 215], [215, 30]]), ["full", "differs", "differs"])
        self.page.evaluate("tessera.maps[0].canvas.focus()")
        self.page.key("0")
        self.assertEqual(self.page.evaluate("tessera.state.scale"), self.page.evaluate("tessera.maps[1].fitScale()"))

    def batch(self, mask):
        """Documents of random lengths, one of which comes twice where the mask lets it, and valid lengths."""
        made = {}
        for _ in range(2):
            cuts = sorted(self.random.sample(range(1, 200), 4))
            ids = [sum(at >= cut for cut in cuts) for at in range(200)]
            if "equal" in mask:
                ids = [0 if doc == 3 else doc for doc in ids]
            made.setdefault("doc_ids", []).append(ids)
            if "valid" in str(mask):
                made.setdefault("valid_tokens", []).append(self.random.randrange(201))
        return made

    def check(self, first, second):
        """How many tiles differ, by batch row, head and direction: those that the dense masks differ in, all marked."""
        both = self.show_two(first, second)
        facts = self.page.evaluate("tessera.plans.map(({batch, heads, directions}) => ({batch, heads, "
                                   "tiles: directions.map((d) => [d.tile_q, d.tile_kv])}))")
        counts = []
        for batch_row in range(facts[0]["batch"]):
            for head in range(facts[0]["heads"]):
                masks = [self.dense(arguments, batch_row, head) for arguments in both]
                for direction in range(3):
                    tiles = [plan["tiles"][direction] for plan in facts]
                    counts.append(self.check_view(masks, tiles, batch_row, head, direction))
        return counts

    def check_view(self, masks, tiles, batch_row, head, direction):
        last = [len(masks[0]) - 1, len(masks[0][0]) - 1]
        self.state(batchRow=batch_row, head=head, direction=direction, q0=0, k0=0, q=last[0], k=last[1], colour="kind",
                   scale=min(2.5, self.page.evaluate("tessera.maps[0].fitScale()")))
        q_edges, kv_edges = (edges(last[axis] + 1, *(tile[axis] for tile in tiles)) for axis in (0, 1))
        where, expected = [], []
        for q, q_end in zip(q_edges, q_edges[1:]):
            for k, k_end in zip(kv_edges, kv_edges[1:]):
                expected.append(any(masks[0][row][k:k_end] != masks[1][row][k:k_end] for row in range(q, q_end)))
                where.append([(q + q_end - 1) // 2, (k + k_end - 1) // 2])
        for which in (0, 1):
            found = [kind == "differs" for kind in self.pixels(where, which)]
            wrong = [place for place, got, want in zip(where, found, expected) if got != want]
            self.assertEqual(wrong, [], f"batch row {batch_row}, head {head}, direction {direction}, of {sum(expected)}")
        said = self.page.evaluate("document.getElementById('difference').textContent")
        count = sum(expected)
        words = "No tile differs" if count == 0 else "1 tile differs" if count == 1 else f"{count} tiles differ"
        self.assertTrue(said.startswith(words + ":"), said)
        return count


if __name__ == "__main__":
    sys.exit(fixture.main(__doc__))
