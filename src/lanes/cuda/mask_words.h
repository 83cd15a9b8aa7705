// A partial tile's mask as words, from the plan's items: what each thread of a warpgroup may keep of its scores.
// Compiled by nvcc for the kernels and by the host's compiler for tests, which compare it with the plan pair by pair.
//
// A thread holds two rows of a score tile, and of each the columns 8 j + 2 quad + {0, 1}, quad = lane mod 4: bit 2 j +
// e of a word stands for column 8 j + 2 quad + e. 128 columns fill 32 bits, 64 columns 16.
#pragma once

#include <cstdint>

#include "lanes/cuda/abi.h"

namespace tessera::lanes::cuda {

struct MaskTables {
  const Item* items;
  const TokenSpan* spans;
  const uint64_t* bits;
  int32_t row_valid;   // tokens of the rows that are valid, where an item asks
  int32_t col_valid;   // the same of the columns
  int32_t col_tokens;  // the columns' length
};

// The two rows of a thread.
struct RowPair {
  int32_t row[2];     // within the tile
  int32_t row_token;  // of row 0 of the tile
  TokenSpan span[2];  // of their tokens; not read when no item asks for documents
};
struct Words {
  uint32_t word[2];
};

namespace mask {

TESSERA_CUDA_BOTH int32_t Least(int32_t a, int32_t b) { return a < b ? a : b; }
TESSERA_CUDA_BOTH int32_t Most(int32_t a, int32_t b) { return a > b ? a : b; }

// One item of the table, by two vector loads.
TESSERA_CUDA_BOTH Item LoadItem(const Item* item) {
#if defined(__CUDA_ARCH__)
  const int4 a = __ldg(reinterpret_cast<const int4*>(item));
  const int4 b = __ldg(reinterpret_cast<const int4*>(item) + 1);
  return {a.x, a.y, a.z, a.w, b.x, b.y, static_cast<uint32_t>(b.z), static_cast<uint32_t>(b.w)};
#else
  return *item;
#endif
}
TESSERA_CUDA_BOTH uint64_t LoadWord(const uint64_t* word) {
#if defined(__CUDA_ARCH__)
  return __ldg(reinterpret_cast<const unsigned long long*>(word));
#else
  return *word;
#endif
}

// Ones from the thread's first column at or after `column` on.
template <int32_t Cols>
TESSERA_CUDA_BOTH uint32_t BitsFrom(int32_t column, int32_t first_own) {
  const int32_t y = Least(Most(column - first_own, 0), Cols);
  const auto at = static_cast<uint32_t>(2 * (y >> 3) + Least(y & 7, 2));
#if defined(__CUDA_ARCH__)
  return __funnelshift_lc(0U, ~0U, at);  // all zeros at 32
#else
  return at < 32 ? ~0U << at : 0U;
#endif
}

// Bits 8 j + first_own + {0, 1} of a row of stored bits, packed.
TESSERA_CUDA_BOTH uint32_t OwnBits(uint64_t bits, int32_t first_own) {
  uint64_t x = bits >> first_own & 0x0303030303030303U;
  x = (x | x >> 6) & 0x000F000F000F000FU;
  x = (x | x >> 12) & 0x000000FF000000FFU;
  return static_cast<uint32_t>((x | x >> 24) & 0xFFFFU);
}
template <int32_t Cols>
TESSERA_CUDA_BOTH uint32_t StoredBits(const uint64_t* row, int32_t first_own) {
  const uint32_t low = OwnBits(LoadWord(row), first_own);
  if constexpr (Cols <= 64) return low;
  return low | OwnBits(LoadWord(row + 1), first_own) << 16;
}

// One row of one item, without its document.
struct Reach {
  int32_t begin, end;  // columns of the tile
};
template <int32_t Cols>
TESSERA_CUDA_BOTH Reach ReachOf(const MaskTables& tables, const Item& item, int32_t row, int32_t row_token,
                                int32_t first_col) {
  Reach reach{Most(item.col_begin, row + item.diag_begin), Least(item.col_end, row + item.diag_end)};
  reach.end = Least(reach.end, tables.col_tokens - first_col);
  if ((item.flags & kItemValid) != 0) {
    reach.end = Least(reach.end, tables.col_valid - first_col);
    if (row_token + row >= tables.row_valid) reach.end = reach.begin;
  }
  if (row < item.row_begin || row >= item.row_end) reach.end = reach.begin;
  if ((item.flags & kItemRows) != 0 && (LoadWord(tables.bits + item.bits + (row >> 6)) >> (row & 63) & 1U) == 0) {
    reach.end = reach.begin;
  }
  return reach;
}

// The columns of `reach` in the row's document: one stretch, or more where a document reappears.
template <int32_t Cols, bool KeysAreRows>
TESSERA_CUDA_BOTH uint32_t DocumentWord(const MaskTables& tables, const Item& item, const Reach& reach, TokenSpan span,
                                        int32_t first_col, int32_t first_own) {
  uint32_t word = 0;
  const int32_t key_rank = span.origin;  // where keys are rows: the same whichever stretch of queries is looked at
  while (true) {
    const int32_t begin = Most(reach.begin, span.begin - first_col);
    int32_t end = Least(reach.end, span.end - first_col);
    if ((item.flags & kItemSink) != 0) {
      const auto sink = static_cast<int32_t>(item.flags >> kItemSinkShift);
      if (!KeysAreRows) end = Least(end, span.origin + sink - first_col);
      if (KeysAreRows && key_rank >= sink) end = begin;
    }
    word |= BitsFrom<Cols>(begin, first_own) & ~BitsFrom<Cols>(end, first_own);
    if (span.next == 0) return word;
    span = tables.spans[span.next - 1];
  }
}

}  // namespace mask

// The words of a tile whose slot has a cleanup, the first of whose items is given. `first_col` is the token of its
// first column, `quad` the lane mod 4.
template <int32_t Cols, bool KeysAreRows>
TESSERA_CUDA_BOTH Words CleanupWords(const MaskTables& tables, int32_t cleanup, Item item, const RowPair& rows,
                                     int32_t first_col, int32_t quad) {
  Words words{{0, 0}};
  const int32_t first_own = 2 * quad;
  const Item* at = tables.items + (cleanup - 1);
  while (true) {
#if defined(__CUDACC__)
#pragma unroll
#endif
    for (int32_t r = 0; r < 2; ++r) {
      const mask::Reach reach = mask::ReachOf<Cols>(tables, item, rows.row[r], rows.row_token, first_col);
      uint32_t word;
      if ((item.flags & kItemDocument) != 0) {
        word = mask::DocumentWord<Cols, KeysAreRows>(tables, item, reach, rows.span[r], first_col, first_own);
      } else {
        word = mask::BitsFrom<Cols>(reach.begin, first_own) & ~mask::BitsFrom<Cols>(reach.end, first_own);
      }
      if ((item.flags & kItemBits) != 0) {
        const int32_t row = (item.flags & kItemSameBits) != 0 ? 0 : rows.row[r] * (Cols / 64);
        word &= mask::StoredBits<Cols>(tables.bits + item.bits + row, first_own);
      }
      words.word[r] |= word;
    }
    if ((item.flags & kItemLast) != 0) return words;
    item = mask::LoadItem(++at);
  }
}

}  // namespace tessera::lanes::cuda
