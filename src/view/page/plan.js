// The embedded plan: arrays came as base64 of little-endian 32-bit integers. What a pair's answer is, is decided here
// just as a lane decides it: find the tile in its row, then try the items of its cleanup.
const KINDS = ["documents", "valid", "blocks", "sink_document"];
const NO_DIAG = 1 << 30;

function decode(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; ++i) bytes[i] = raw.charCodeAt(i);
  return new Int32Array(bytes.buffer);
}

// The last place in sorted `at(0) .. at(count - 1)` whose value is at most `value`; -1 when there is none.
function lastAtMost(count, at, value) {
  let low = 0;
  let high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (at(middle) <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

class Plan {
  constructor(data) {
    Object.assign(this, data);
    for (const name of ["mask_of", "cleanup_offsets", "items", "bit_offsets", "bit_words", "q_valid", "kv_valid",
                        "q_segment_offsets", "q_segments", "kv_segment_offsets", "kv_segments"]) {
      this[name] = decode(data[name]);
    }
    this.directions = data.directions.map((d) => {
      const from = d.same_as === null ? d : data.directions[d.same_as];
      return {...d, run_offsets: decode(from.run_offsets), runs: decode(from.runs), parts: decode(from.parts)};
    });
    if (data.picks !== null) {
      const raw = decode(data.picks.scores);
      this.picks = {...data.picks, blocks: decode(data.picks.blocks), scores: new Float32Array(raw.buffer)};
    }
    this.signatures = new Map();
  }

  // What routing picked for a query: {block, begin, end, score}; a score is null where a block is kept without one.
  picksOf(batchRow, head, q) {
    if (this.picks === null) return [];
    const {blocks, scores, top_n: count, heads, block_tokens: size} = this.picks;
    const first = ((batchRow * this.q_len + q) * heads + Math.floor(head * heads / this.heads)) * count;
    const made = [];
    for (let at = first; at < first + count; ++at) {
      if (blocks[at] < 0) continue;
      const score = scores.length > 0 && Number.isFinite(scores[at]) ? scores[at] : null;
      made.push({block: blocks[at], begin: blocks[at] * size, end: Math.min(this.kv_len, (blocks[at] + 1) * size), score});
    }
    return made;
  }

  maskOf(batchRow, head) { return this.mask_of[batchRow * this.heads + head]; }

  // Rows of dkv are key tiles and their slots query tiles; of the others the other way round.
  isTransposed(d) { return this.directions[d].name === "dkv"; }

  // The cleanup of the tile, 0 when it is full, -1 when no lane looks at it.
  cleanupAt(d, mask, tileQ, tileKv) {
    const list = this.directions[d];
    const [row, index] = this.isTransposed(d) ? [tileKv, tileQ] : [tileQ, tileKv];
    const at = mask * list.rows + row;
    const begin = list.run_offsets[at];
    const run = begin + lastAtMost(list.run_offsets[at + 1] - begin, (i) => list.runs[3 * (begin + i)], index);
    if (run < begin || index >= list.runs[3 * run] + list.runs[3 * run + 1]) return -1;
    return list.runs[3 * run + 2];
  }

  // {doc, rank} of a token; null where the mask knows no documents.
  documentOf(side, batchRow, token) {
    const offsets = this[side + "_segment_offsets"];
    const segments = this[side + "_segments"];
    const begin = offsets[batchRow];
    const count = offsets[batchRow + 1] - begin;
    if (count === 0) return null;
    const at = begin + lastAtMost(count, (i) => segments[4 * (begin + i)], token);
    if (at < begin || token >= segments[4 * at + 1] || segments[4 * at + 2] < 0) return {doc: -1, rank: 0};
    return {doc: segments[4 * at + 2], rank: segments[4 * at + 3] + token - segments[4 * at]};
  }

  // Which bands there are along the axes.
  bands() {
    const documents = [...this.q_segments.filter((_, i) => i % 4 === 2), ...this.kv_segments.filter((_, i) => i % 4 === 2)];
    let isPadded = documents.some((doc) => doc < 0);
    for (let row = 0; row < this.batch && !isPadded; ++row) {
      isPadded = this.validOf("q", row) < this.q_len || this.validOf("kv", row) < this.kv_len;
    }
    return {documents: documents.some((doc) => doc >= 0), padding: isPadded};
  }

  validOf(side, batchRow) {
    const valid = this[side + "_valid"][batchRow];
    return valid < 0 ? this[side + "_len"] : valid;
  }

  holds(condition, batchRow, q, k) {
    if (condition.kind === "valid") return q < this.validOf("q", batchRow) && k < this.validOf("kv", batchRow);
    const query = this.documentOf("q", batchRow, q);
    const key = this.documentOf("kv", batchRow, k);
    const same = query !== null && key !== null && query.doc >= 0 && query.doc === key.doc;
    if (condition.kind === "documents") return same;
    if (condition.kind === "sink_document") return same && key.rank < condition.count;
    return false;
  }

  item(i) {
    const [kindAndConditions, qBegin, qEnd, kvBegin, kvEnd, diagBegin, diagEnd, bits] =
        this.items.subarray(8 * i, 8 * i + 8);
    return {kind: kindAndConditions & 0xffff, conditions: kindAndConditions >>> 16, qBegin, qEnd, kvBegin, kvEnd,
            diagBegin, diagEnd, bits: bits >>> 0};
  }

  // What is stored for a pair of the tile; an item that stores rows has one bit for each of its queries.
  hasBit(d, item, row, column) {
    // 64-bit words came as two halves, the low one first.
    const words = item.kind === 1 ? Math.ceil(this.directions[d].tile_kv / 64) : 0;
    const bit = item.kind === 1 ? column : row;
    const word = 2 * (this.bit_offsets[item.bits] + (item.kind === 1 ? row * words : 0)) + (bit >> 5);
    return (this.bit_words[word] >>> (bit & 31) & 1) !== 0;
  }

  itemPasses(d, i, batchRow, q, k) {
    const list = this.directions[d];
    const item = this.item(i);
    const row = q % list.tile_q;
    const column = k % list.tile_kv;
    if (row < item.qBegin || row >= item.qEnd) return false;
    if (column < Math.max(item.kvBegin, row + item.diagBegin)) return false;
    if (column >= Math.min(item.kvEnd, row + item.diagEnd)) return false;
    if (item.kind !== 0 && !this.hasBit(d, item, row, column)) return false;
    for (let c = 0; c < this.conditions.length; ++c) {
      if ((item.conditions >> c & 1) !== 0 && !this.holds(this.conditions[c], batchRow, q, k)) return false;
    }
    return true;
  }

  // The first item of the cleanup that lets the pair pass; -1 when none does.
  passingItem(d, cleanup, batchRow, q, k) {
    for (let i = this.cleanup_offsets[cleanup]; i < this.cleanup_offsets[cleanup + 1]; ++i) {
      if (this.itemPasses(d, i, batchRow, q, k)) return i;
    }
    return -1;
  }

  allows(d, batchRow, head, q, k) {
    const list = this.directions[d];
    const cleanup = this.cleanupAt(d, this.maskOf(batchRow, head), Math.floor(q / list.tile_q),
                                   Math.floor(k / list.tile_kv));
    return cleanup === 0 || (cleanup > 0 && this.passingItem(d, cleanup, batchRow, q, k) >= 0);
  }

  // The conditions that items of a cleanup have; none for a full tile.
  conditionsOf(cleanup) {
    let bits = 0;
    for (let i = this.cleanup_offsets[cleanup]; i < this.cleanup_offsets[cleanup + 1]; ++i) {
      bits |= this.item(i).conditions;
    }
    return this.conditions.filter((_, c) => (bits >> c & 1) !== 0);
  }

  // Equal for two cleanups, also of two plans, that pass the same pairs where their conditions hold for the same ones.
  signature(cleanup) {
    let found = this.signatures.get(cleanup);
    if (found === undefined) {
      const parts = [];
      for (let i = this.cleanup_offsets[cleanup]; i < this.cleanup_offsets[cleanup + 1]; ++i) {
        const item = this.item(i);
        const named = this.conditions.filter((_, c) => (item.conditions >> c & 1) !== 0);
        const words = item.kind === 0 ? [] : this.bit_words.subarray(2 * this.bit_offsets[item.bits],
                                                                     2 * this.bit_offsets[item.bits + 1]);
        parts.push([{...item, bits: 0, conditions: 0}, named, Array.from(words)]);
      }
      found = JSON.stringify(parts);
      this.signatures.set(cleanup, found);
    }
    return found;
  }

  itemInWords(i) {
    const item = this.item(i);
    const parts = [`rows ${item.qBegin}..${item.qEnd - 1}`, `keys ${item.kvBegin}..${item.kvEnd - 1}`];
    const edge = (d) => d === 0 ? "row" : d > 0 ? `row + ${d}` : `row - ${-d}`;
    if (item.diagBegin > -NO_DIAG) parts.push(`key >= ${edge(item.diagBegin)}`);
    if (item.diagEnd < NO_DIAG) parts.push(`key < ${edge(item.diagEnd)}`);
    if (item.kind === 1) parts.push(`stored bits ${item.bits}`);
    if (item.kind === 2) parts.push(`picked rows ${item.bits}`);
    this.conditions.forEach((condition, c) => {
      if ((item.conditions >> c & 1) === 0) return;
      parts.push({documents: "same document", valid: "both tokens valid",
                  sink_document: `one of the first ${condition.count} tokens of its document`}[condition.kind]);
    });
    return parts.join(", ");
  }

  // Whether a term of the contract's mask lets q see k; null where the file has no data to tell.
  termHolds(term, batchRow, q, k) {
    const p = q + this.offset;
    const {first, second} = term;
    switch (term.kind) {
      case "full": return true;
      case "causal": return k <= p;
      case "window": return (first < 0 || k >= p - first) && (second < 0 || k <= p + second);
      case "chunk": return Math.floor(p / first) === Math.floor(k / first);
      case "prefix": return p < first && k < first;
      case "sink": return k < first;
      case "valid": return this.holds({kind: "valid"}, batchRow, q, k);
      // Documents that cannot matter at these lengths are not in the plan.
      case "documents":
      case "sink_document":
        if (this.documentOf("q", batchRow, q) === null || this.documentOf("kv", batchRow, k) === null) return null;
        return this.holds({kind: term.kind, count: first}, batchRow, q, k);
      default: return null;
    }
  }

  // Every term of the head's mask with its answer for one pair.
  terms(batchRow, head, q, k) {
    const answers = [];
    const walk = (expr) => {
      if (expr.op === "term") answers.push({text: expr.text, holds: this.termHolds(expr, batchRow, q, k)});
      else expr.children.forEach(walk);
    };
    if (this.masks.length > 0) walk(this.masks[this.masks.length === 1 ? 0 : head]);
    return answers;
  }
}
