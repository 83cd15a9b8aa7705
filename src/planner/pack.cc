// pack: one buffer with a header of offsets. Counts first, then fills: one allocation, and equal plans give equal
// bytes because padding between sections is zero.
#include <cstring>

#include "plan/layout.h"
#include "planner/stages.h"
#include "tessera/version.h"

namespace tessera::planner {
namespace {

using plan::Section;

// Books sections first and copies them once the buffer has its size.
class Packer {
 public:
  template <class T>
  Section Book(std::span<const T> values) {
    const Section section{end_, values.size()};
    copies_.push_back({end_, values.data(), values.size_bytes()});
    end_ += (values.size_bytes() + plan::kAlign - 1) / plan::kAlign * plan::kAlign;
    return section;
  }
  template <class T>
  Section Book(const std::vector<T>& values) {
    return Book(std::span<const T>(values));
  }

  std::vector<std::byte> Fill(plan::Header& header) {
    // Appended, not written into zeros: a plan's bytes are touched once.
    std::vector<std::byte> bytes;
    bytes.reserve(end_);
    header.header_bytes = sizeof(plan::Header);
    header.total_bytes = end_;
    bytes.resize(sizeof(plan::Header));
    for (const Copy& copy : copies_) {
      bytes.resize(copy.offset);
      const auto* data = static_cast<const std::byte*>(copy.data);
      bytes.insert(bytes.end(), data, data + copy.size);
    }
    bytes.resize(end_);
    std::memcpy(bytes.data(), &header, sizeof(header));
    header.fingerprint = plan::FingerprintOf(bytes);
    std::memcpy(bytes.data() + offsetof(plan::Header, fingerprint), header.fingerprint.data(), sizeof(Hash128));
    return bytes;
  }

 private:
  struct Copy {
    uint64_t offset;
    const void* data;
    size_t size;
  };
  uint64_t end_ = sizeof(plan::Header);
  std::vector<Copy> copies_;
};

struct BatchFacts {
  std::vector<uint64_t> q_offsets{0};
  std::vector<uint64_t> kv_offsets{0};
  std::vector<Segment> q_segments;
  std::vector<Segment> kv_segments;
  std::vector<int32_t> q_valid;
  std::vector<int32_t> kv_valid;
};

BatchFacts Flatten(const std::vector<BatchRow>& rows) {
  BatchFacts out;
  for (const BatchRow& row : rows) {
    out.q_segments.insert(out.q_segments.end(), row.q_segments.begin(), row.q_segments.end());
    out.q_offsets.push_back(out.q_segments.size());
    out.kv_segments.insert(out.kv_segments.end(), row.kv_segments.begin(), row.kv_segments.end());
    out.kv_offsets.push_back(out.kv_segments.size());
    out.q_valid.push_back(static_cast<int32_t>(row.q_valid.value_or(-1)));
    out.kv_valid.push_back(static_cast<int32_t>(row.kv_valid.value_or(-1)));
  }
  return out;
}

}  // namespace

std::vector<std::byte> Pack(const PackInput& input) {
  const Resolved& resolved = *input.resolved;
  plan::Header header;
  header.version = kPlanVersion;
  header.contract_key = input.contract_key;
  header.class_key = input.class_key;
  header.mask_digest = resolved.mask_digest;
  header.batch = static_cast<uint64_t>(resolved.batch);
  header.q_len = static_cast<uint64_t>(resolved.q_len);
  header.kv_len = static_cast<uint64_t>(resolved.kv_len);
  header.num_q_heads = static_cast<uint64_t>(resolved.num_q_heads);
  header.num_masks = resolved.masks.size();
  header.mask_capacity = static_cast<uint64_t>(input.shape.masks);
  header.cleanup_capacity = static_cast<uint64_t>(input.shape.cleanups);
  header.part_capacity = static_cast<uint64_t>(input.shape.parts);

  Packer packer;
  for (size_t d = 0; d < kNumDirections; ++d) {
    plan::WorklistHeader& list = header.worklists[d];
    list.tile_q = static_cast<uint32_t>(input.shape.tiles[d].q);
    list.tile_kv = static_cast<uint32_t>(input.shape.tiles[d].kv);
    list.rows_per_mask = static_cast<uint32_t>(input.shape.rows[d]);
    list.width_capacity = static_cast<uint32_t>(input.shape.width[d]);
    list.part_slots = static_cast<uint32_t>(input.shape.part_slots[d]);
  }
  const auto book_rows = [&](plan::WorklistHeader& list, const CompactRows& rows, const std::vector<Part>& parts) {
    list.row_offsets = packer.Book(rows.row_offsets);
    list.slots = packer.Book(rows.slots);
    list.ranks = packer.Book(std::span<const uint32_t>());
    list.parts = packer.Book(parts);
  };
  auto& [forward, dq, dkv] = header.worklists;
  book_rows(forward, *input.forward, input.parts[0]);
  if (input.dq == input.forward) {
    dq = forward;  // the same sections, stored once
  } else {
    book_rows(dq, *input.dq, input.parts[1]);
  }
  const std::vector<uint64_t> no_rows{0};
  if (input.columns != nullptr) {
    dkv.row_offsets = packer.Book(input.columns->row_offsets);
    dkv.slots = packer.Book(input.columns->slots);
    dkv.ranks = packer.Book(input.columns->ranks);
    dkv.parts = packer.Book(input.parts[2]);
  } else {
    dkv.rows_per_mask = 0;
    dkv.row_offsets = packer.Book(no_rows);
    dkv.slots = packer.Book(std::span<const Slot>());
    dkv.ranks = packer.Book(std::span<const uint32_t>());
    dkv.parts = packer.Book(std::span<const Part>());
  }
  std::vector<uint32_t> batch_of;
  for (const ResolvedMask& mask : resolved.masks) batch_of.push_back(mask.batch_row);
  const BatchFacts facts = Flatten(resolved.rows);
  header.mask_of = packer.Book(resolved.mask_of);
  header.batch_of = packer.Book(batch_of);
  header.conditions = packer.Book(resolved.conditions);
  header.cleanup_offsets = packer.Book(input.cleanups->offsets);
  header.items = packer.Book(input.cleanups->items);
  header.bit_tile_offsets = packer.Book(input.cleanups->bit_tile_offsets);
  header.bit_words = packer.Book(input.cleanups->bit_words);
  header.q_segment_offsets = packer.Book(facts.q_offsets);
  header.q_segments = packer.Book(facts.q_segments);
  header.kv_segment_offsets = packer.Book(facts.kv_offsets);
  header.kv_segments = packer.Book(facts.kv_segments);
  header.q_valid = packer.Book(facts.q_valid);
  header.kv_valid = packer.Book(facts.kv_valid);
  return packer.Fill(header);
}

}  // namespace tessera::planner
