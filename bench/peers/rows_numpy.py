"""Packing as it is mostly done: a plain NumPy packer, document by document, and the way of Hugging Face's datasets, which
joins all tokens and cuts them (so documents are cropped, and no row knows its documents unless it is told).

Prints one line for each: name, columns, million tokens a second, best of several runs. One thread, as Python is.
Usage: rows_numpy.py TOKENS LENGTH SECONDS
"""

import sys
import time

import numpy as np


def documents(tokens, length):
    rng = np.random.default_rng(7)
    sizes = []
    while sum(sizes) < tokens:
        sizes += [int(s) for s in np.clip(rng.lognormal(6.8, 1.0, 1024), 8, length)]
    return [rng.integers(1, 65536, size, dtype=np.int32) for size in sizes]


def pack(docs, columns, length):
    """Greedy in order. columns: per document, a list of further columns."""
    rows, used = [[]], 0
    for index, doc in enumerate(docs):
        if used + len(doc) > length:
            rows.append([])
            used = 0
        rows[-1].append(index)
        used += len(doc)
    count = len(rows)
    input_ids = np.zeros((count, length), np.int32)
    target_ids = np.zeros((count, length), np.int32)
    loss_mask = np.zeros((count, length), np.int8)
    doc_ids = np.full((count, length), -1, np.int32)
    more = [np.zeros((count, length), np.int32) for _ in columns]
    for row, indices in enumerate(rows):
        at = 0
        for number, index in enumerate(indices, 1):
            doc = docs[index]
            end = at + len(doc)
            input_ids[row, at:end] = doc
            target_ids[row, at:end - 1] = doc[1:]
            loss_mask[row, at:end - 1] = 1
            doc_ids[row, at:end] = number
            for out, column in zip(more, columns):
                out[row, at:end] = column[index]
            at = end
    return input_ids, target_ids, loss_mask, doc_ids, more


def group_texts(docs, columns, length, batch=1000):
    """What `datasets.map(group_texts, batched=True)` does, with NumPy for its lists: join, cut, copy as labels."""
    out = []
    for begin in range(0, len(docs), batch):
        block = [np.concatenate(docs[begin:begin + batch])]
        block += [np.concatenate(column[begin:begin + batch]) for column in columns]
        total = len(block[0]) // length * length
        cut = [joined[:total].reshape(-1, length) for joined in block]
        out.append((cut, cut[0].copy()))
    return out


def best(call, tokens, seconds):
    fastest, start = float("inf"), time.perf_counter()
    while time.perf_counter() - start < seconds or fastest == float("inf"):
        begin = time.thread_time()  # of this thread on a core, whoever else is on the machine
        call()
        fastest = min(fastest, time.thread_time() - begin)
    return tokens / fastest / 1e6


def main():
    tokens, length, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    docs = documents(tokens, length)
    total = sum(len(doc) for doc in docs)
    for count in (4, 17):
        columns = [[doc % 97 for doc in docs]] * (count - 4)
        for name, function in (("numpy", pack), ("datasets_style", group_texts)):
            speed = best(lambda: function(docs, columns, length), total, seconds)
            print(name, count, f"{speed:.1f}", flush=True)


if __name__ == "__main__":
    main()
