#!/usr/bin/env python3
"""How long the page of a plan of a million tokens takes to write and to open in a headless Chromium, from the request to
a drawn map.

    view.py [--rounds N] TESSERA        exits 77 where there is no Chromium
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "view"))
import chromium  # noqa: E402

TOKENS, DOCUMENTS = 1 << 20, 1000
MASKS = ("causal", "causal,documents,window=4095")


def write(program, folder, mask):
    contract = f"{mask}:{TOKENS}:d128:t512x512"
    lengths = [TOKENS // DOCUMENTS] * DOCUMENTS
    lengths[-1] += TOKENS - sum(lengths)
    more = ["--documents", ",".join(map(str, lengths))] if "documents" in mask else []
    page = folder / "page.html"
    begin = time.perf_counter()
    subprocess.run([program, "view", contract, *more, "--no-open", "--out", page], check=True, capture_output=True)
    return page, time.perf_counter() - begin


def open_once(browser, path):
    page = chromium.Page(browser)
    try:
        page.frame()  # the browser itself has begun
        begin = time.perf_counter()
        page.open(path)
        page.frame()
        took = time.perf_counter() - begin
        if page.errors or not page.evaluate("tessera.maps.length"):
            raise SystemExit(f"the page did not come up: {page.errors}")
        return took
    finally:
        page.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("tessera")
    given = parser.parse_args()
    browser = chromium.find()
    if browser is None:
        print("skipped: there is no Chromium here (script/setup --browser installs it)")
        return 77
    print(f"{f'{TOKENS:,} tokens':<30} {'kB':>6} {'written, s':>11} {'opened, s: median':>18} {'worst':>6}")
    for mask in MASKS:
        with tempfile.TemporaryDirectory() as place:
            page, wrote = write(given.tessera, pathlib.Path(place), mask)
            took = [open_once(browser, page) for _ in range(given.rounds)]
            print(f"{mask:<30} {page.stat().st_size / 1000:>6.0f} {wrote:>11.2f} {statistics.median(took):>18.2f} "
                  f"{max(took):>6.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
