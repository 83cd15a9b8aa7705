// What two plans differ in, tile by tile: a tile differs when any of its pairs does, whatever terms decide it. Where the
// tiles of the two have other sizes, the rectangles that the edges of both cut are held against each other.

// Sorted disjoint [begin, end) pairs in one flat list.
function intersectRanges(a, b) {
  const out = [];
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    const begin = Math.max(a[i], b[j]);
    const end = Math.min(a[i + 1], b[j + 1]);
    if (begin < end) out.push(begin, end);
    if (a[i + 1] < b[j + 1]) i += 2;
    else j += 2;
  }
  return out;
}

function uniteRanges(a, b) {
  if (a.length === 0) return b;
  if (b.length === 0) return a;
  const out = [];
  for (let i = 0, j = 0; i < a.length || j < b.length;) {
    const isFirst = j >= b.length || (i < a.length && a[i] <= b[j]);
    const [begin, end] = isFirst ? [a[i], a[i + 1]] : [b[j], b[j + 1]];
    if (isFirst) i += 2;
    else j += 2;
    if (out.length > 0 && begin <= out[out.length - 1]) out[out.length - 1] = Math.max(out[out.length - 1], end);
    else out.push(begin, end);
  }
  return out;
}

const areEqualRanges = (a, b) => a.length === b.length && a.every((value, i) => value === b[i]);

// Calls look(begin, end, doc, rank of begin) for what a side's documents leave of [from, to), padding too.
function eachDocument(plan, side, batchRow, from, to, look) {
  const offsets = plan[side + "_segment_offsets"];
  const segments = plan[side + "_segments"];
  const first = offsets[batchRow];
  const count = offsets[batchRow + 1] - first;
  const start = Math.max(0, lastAtMost(count, (i) => segments[4 * (first + i)], from));
  for (let s = first + start; s < first + count && segments[4 * s] < to; ++s) {
    const begin = Math.max(from, segments[4 * s]);
    const end = Math.min(to, segments[4 * s + 1]);
    if (begin < end) look(begin, end, segments[4 * s + 2], segments[4 * s + 3] + begin - segments[4 * s]);
  }
}

// The keys of [from, to) that a condition lets a query see.
function keysThatHold(plan, condition, batchRow, q, from, to) {
  if (condition.kind === "valid") {
    const end = Math.min(to, plan.validOf("kv", batchRow));
    return q < plan.validOf("q", batchRow) && from < end ? [from, end] : [];
  }
  const query = condition.kind === "blocks" ? null : plan.documentOf("q", batchRow, q);
  const keys = [];
  if (query === null || query.doc < 0) return keys;
  eachDocument(plan, "kv", batchRow, from, to, (begin, end, doc, rank) => {
    if (doc !== query.doc) return;
    const last = condition.kind === "documents" ? end : Math.min(end, begin + condition.count - rank);
    if (begin >= last) return;
    if (keys[keys.length - 1] === begin) keys[keys.length - 1] = last;
    else keys.push(begin, last);
  });
  return keys;
}

// The keys of one tile that an item of its cleanup passes for query q; `tile` is where its keys begin.
function keysOfItem(plan, d, i, batchRow, q, tile) {
  const list = plan.directions[d];
  const item = plan.item(i);
  const row = q % list.tile_q;
  if (row < item.qBegin || row >= item.qEnd) return [];
  const from = Math.max(item.kvBegin, row + item.diagBegin, 0);
  const to = Math.min(item.kvEnd, row + item.diagEnd, plan.kv_len - tile);
  if (from >= to) return [];
  let keys = [tile + from, tile + to];
  if (item.kind === 2 && !plan.hasBit(d, item, row, 0)) return [];
  if (item.kind === 1) {
    keys = [];
    for (let column = from; column < to; ++column) {
      if (!plan.hasBit(d, item, row, column)) continue;
      if (keys[keys.length - 1] === tile + column) ++keys[keys.length - 1];
      else keys.push(tile + column, tile + column + 1);
    }
  }
  plan.conditions.forEach((condition, c) => {
    if ((item.conditions >> c & 1) === 0 || keys.length === 0) return;
    keys = intersectRanges(keys, keysThatHold(plan, condition, batchRow, q, keys[0], keys[keys.length - 1]));
  });
  return keys;
}

// The keys of [from, to), which lie in one tile, that q sees where the tile has this cleanup: 0 is full, -1 skipped.
function keysOfRow(plan, d, cleanup, batchRow, q, from, to) {
  if (cleanup < 0) return [];
  if (cleanup === 0) return [from, to];
  const tile = from - from % plan.directions[d].tile_kv;
  let keys = [];
  for (let i = plan.cleanup_offsets[cleanup]; i < plan.cleanup_offsets[cleanup + 1]; ++i) {
    keys = uniteRanges(keys, keysOfItem(plan, d, i, batchRow, q, tile));
  }
  return intersectRanges(keys, [from, to]);
}

// Equal for two tiles whose conditions cannot tell their pairs apart: documents in order of appearance, and lengths.
function factsOf(plan, cleanup, batchRow, area) {
  const facts = [];
  const used = plan.conditionsOf(cleanup);
  if (used.some((condition) => condition.kind === "valid")) {
    facts.push(Math.min(area.qEnd, plan.validOf("q", batchRow)), Math.min(area.kEnd, plan.validOf("kv", batchRow)));
  }
  if (used.some((condition) => condition.kind !== "valid")) {
    const names = new Map([[-1, -1]]);
    const note = (begin, end, doc, rank) => {
      const known = Math.max(doc, -1);
      if (!names.has(known)) names.set(known, names.size);
      facts.push(begin, end, names.get(known), rank);
    };
    eachDocument(plan, "q", batchRow, area.q, area.qEnd, (begin, end, doc) => note(begin, end, doc, 0));
    eachDocument(plan, "kv", batchRow, area.k, area.kEnd, note);
  }
  return facts;
}

// Whether any pair of an area, which lies in one tile of each plan, is in one of them alone.
function areaDiffers(a, b, state, area, cleanups) {
  const [{direction: d, batchRow}, [ofA, ofB]] = [state, cleanups];
  if (ofA <= 0 && ofB <= 0) return ofA !== ofB;
  const [listA, listB] = [a.directions[d], b.directions[d]];
  if (ofA > 0 && ofB > 0 && listA.tile_q === listB.tile_q && listA.tile_kv === listB.tile_kv &&
      a.signature(ofA) === b.signature(ofB) &&
      areEqualRanges(factsOf(a, ofA, batchRow, area), factsOf(b, ofB, batchRow, area))) {
    return false;
  }
  for (let q = area.q; q < area.qEnd; ++q) {
    if (!areEqualRanges(keysOfRow(a, d, ofA, batchRow, q, area.k, area.kEnd),
                        keysOfRow(b, d, ofB, batchRow, q, area.k, area.kEnd))) {
      return true;
    }
  }
  return false;
}

// What a plan has in a strip of the rows of its worklist: [first token, end, cleanup] for every run of slots.
function stripOf(plan, state, token, length) {
  const list = plan.directions[state.direction];
  const [rowTile, slotTile] = plan.isTransposed(state.direction) ? [list.tile_kv, list.tile_q]
                                                                 : [list.tile_q, list.tile_kv];
  const at = plan.maskOf(state.batchRow, state.head) * list.rows + Math.floor(token / rowTile);
  const runs = [];
  for (let run = list.run_offsets[at]; run < list.run_offsets[at + 1]; ++run) {
    const [slot, count, cleanup] = list.runs.subarray(3 * run, 3 * run + 3);
    runs.push([slot * slotTile, Math.min(length, (slot + count) * slotTile), cleanup]);
  }
  return {runs, rowTile, slotTile};
}

// Where tiles of either of two sizes begin next after a token.
const nextEdge = (token, sizes) => Math.min(...sizes.map((size) => (Math.floor(token / size) + 1) * size));

// {areas: [q, qEnd, k, kEnd, ...], count}: the tiles of the view that differ, neighbours of one row joined, and how
// many they are. Only tokens that both plans have.
function differencesOf(a, b, state) {
  const transposed = a.isTransposed(state.direction);
  const [qLen, kLen] = [Math.min(a.q_len, b.q_len), Math.min(a.kv_len, b.kv_len)];
  const [rowLength, slotLength] = transposed ? [kLen, qLen] : [qLen, kLen];
  const areas = [];
  let count = 0;
  for (let row = 0, rowEnd; row < rowLength; row = rowEnd) {
    const strips = [a, b].map((plan) => stripOf(plan, state, row, slotLength));
    rowEnd = Math.min(rowLength, nextEdge(row, strips.map((strip) => strip.rowTile)));
    const sizes = strips.map((strip) => strip.slotTile);
    const next = [0, 0];
    let from = 0;
    const found = [];
    while (from < slotLength) {
      // What both have here, and until where.
      let to = slotLength;
      const cleanups = strips.map(({runs}, i) => {
        while (next[i] < runs.length && runs[next[i]][1] <= from) ++next[i];
        if (next[i] === runs.length) return -1;
        const [begin, end, cleanup] = runs[next[i]];
        to = Math.min(to, begin > from ? begin : end);
        return begin > from ? -1 : cleanup;
      });
      if (cleanups[0] > 0 || cleanups[1] > 0) to = Math.min(to, nextEdge(from, sizes));
      const area = transposed ? {q: from, qEnd: to, k: row, kEnd: rowEnd} : {q: row, qEnd: rowEnd, k: from, kEnd: to};
      if (areaDiffers(a, b, state, area, cleanups)) {
        for (let edge = from; edge < to; edge = nextEdge(edge, sizes)) ++count;
        if (found.length > 0 && found[found.length - 1] === from) found[found.length - 1] = to;
        else found.push(from, to);
      }
      from = to;
    }
    for (let i = 0; i < found.length; i += 2) {
      const slots = [found[i], found[i + 1]];
      areas.push(...(transposed ? [...slots, row, rowEnd] : [row, rowEnd, ...slots]));
    }
  }
  return {areas, count};
}
