// The bytes of a plan: a fixed header whose sections point into the same buffer. Little-endian, every section
// 8-byte aligned, offsets from the first byte. docs/plan_format.md shows one by example.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <type_traits>

#include "tessera/plan.h"

namespace tessera::plan {

inline constexpr std::array<char, 8> kMagic{'T', 'S', 'R', 'P', 'L', 'A', 'N', '\0'};
inline constexpr uint64_t kAlign = 8;

struct Section {
  uint64_t offset = 0;  // bytes from the start of the plan
  uint64_t count = 0;   // elements
};

struct WorklistHeader {
  uint32_t tile_q = 0;
  uint32_t tile_kv = 0;
  uint32_t rows_per_mask = 0;
  uint32_t width_capacity = 0;
  uint32_t part_slots = 0;
  uint32_t reserved = 0;
  Section row_offsets;
  Section slots;
  Section ranks;
  Section parts;
};

struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t version = 0;
  uint32_t header_bytes = 0;
  uint64_t total_bytes = 0;
  Hash128 fingerprint{};  // XXH3-128 of every byte after this field
  Hash128 contract_key{};
  Hash128 class_key{};
  Hash128 mask_digest{};
  uint64_t batch = 0;
  uint64_t q_len = 0;
  uint64_t kv_len = 0;
  uint64_t num_q_heads = 0;
  uint64_t num_masks = 0;
  uint64_t mask_capacity = 0;
  uint64_t cleanup_capacity = 0;
  uint64_t part_capacity = 0;
  std::array<WorklistHeader, kNumDirections> worklists;
  Section mask_of;
  Section batch_of;
  Section conditions;
  Section cleanup_offsets;
  Section items;
  Section bit_tile_offsets;
  Section bit_words;
  Section q_segment_offsets;
  Section q_segments;
  Section kv_segment_offsets;
  Section kv_segments;
  Section q_valid;
  Section kv_valid;
};
static_assert(std::is_trivially_copyable_v<Header> && sizeof(Header) % kAlign == 0);
static_assert(sizeof(WorklistHeader) == 88 && sizeof(Header) == 24 + 64 + 64 + 3 * 88 + 13 * 16);

inline constexpr uint64_t kFingerprintEnd = offsetof(Header, fingerprint) + sizeof(Hash128);

// Limits a plan must keep to beside those of contract/limits.h; the planner refuses beyond them before it allocates.
inline constexpr uint64_t kMaxSlots = uint64_t{1} << 27;
inline constexpr uint64_t kMaxRows = uint64_t{1} << 26;
inline constexpr uint64_t kMaxPlanHeads = uint64_t{1} << 26;  // (batch row, head) pairs: each names its mask
inline constexpr uint64_t kMaxConditions = 16;

// The bits of CleanupItem::conditions that stand for picked blocks. The planner needs them while it makes a plan; no
// item of a finished one may have them, since picks are written into the items themselves.
inline uint32_t BlocksBits(std::span<const Condition> conditions) {
  uint32_t bits = 0;
  for (size_t c = 0; c < conditions.size(); ++c) {
    if (conditions[c].kind == ConditionKind::kBlocks) bits |= 1U << c;
  }
  return bits;
}

Hash128 FingerprintOf(std::span<const std::byte> bytes);

// A view of bytes whose header and section bounds are good; nothing inside the sections has been looked at.
Result<PlanView> BindPlan(std::span<const std::byte> bytes);

}  // namespace tessera::plan
