// Lays a view over plan bytes: magic, version, sizes and section bounds. What the sections hold is VerifyPlan's
// business; only the planner, which just wrote them, may skip that.
#include <fmt/format.h>

#include <cstring>

#include "plan/layout.h"
#include "tessera/version.h"

namespace tessera {
namespace plan {
namespace {

tl::unexpected<Error> Bad(std::string message, std::string where) {
  return Fail(ErrorCode::kPlanMalformed, std::move(message), std::move(where));
}

template <class T>
Status Bind(std::span<const std::byte> bytes, const Section& section, std::string_view name, std::span<const T>& out) {
  if (section.offset % kAlign != 0 || section.offset < sizeof(Header) || section.offset > bytes.size() ||
      section.count > (bytes.size() - section.offset) / sizeof(T)) {
    return Bad(fmt::format("section lies outside the plan or is misaligned (offset {}, {} elements, plan {} bytes)",
                           section.offset, section.count, bytes.size()),
               std::string(name));
  }
  out = {reinterpret_cast<const T*>(bytes.data() + section.offset), static_cast<size_t>(section.count)};
  return {};
}

Status BindAll(std::span<const std::byte> bytes, const Header& header, PlanView& view) {
  Status ok;
  const auto bind = [&](const Section& section, std::string_view name, auto& out) {
    if (ok) ok = Bind(bytes, section, name, out);
  };
  for (size_t d = 0; d < kNumDirections; ++d) {
    const WorklistHeader& from = header.worklists[d];
    Worklist& to = view.worklists[d];
    to.tile_q = from.tile_q;
    to.tile_kv = from.tile_kv;
    to.rows_per_mask = from.rows_per_mask;
    to.width_capacity = from.width_capacity;
    to.part_slots = from.part_slots;
    bind(from.row_offsets, "row_offsets", to.row_offsets);
    bind(from.slots, "slots", to.slots);
    bind(from.ranks, "ranks", to.ranks);
    bind(from.parts, "parts", to.parts);
  }
  bind(header.mask_of, "mask_of", view.mask_of);
  bind(header.batch_of, "batch_of", view.batch_of);
  bind(header.conditions, "conditions", view.conditions);
  bind(header.cleanup_offsets, "cleanup_offsets", view.cleanup_offsets);
  bind(header.items, "items", view.items);
  bind(header.bit_tile_offsets, "bit_tile_offsets", view.bit_tile_offsets);
  bind(header.bit_words, "bit_words", view.bit_words);
  bind(header.q_segment_offsets, "q_segment_offsets", view.q_segment_offsets);
  bind(header.q_segments, "q_segments", view.q_segments);
  bind(header.kv_segment_offsets, "kv_segment_offsets", view.kv_segment_offsets);
  bind(header.kv_segments, "kv_segments", view.kv_segments);
  bind(header.q_valid, "q_valid", view.q_valid);
  bind(header.kv_valid, "kv_valid", view.kv_valid);
  return ok;
}

}  // namespace

Result<PlanView> BindPlan(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(Header)) {
    return Bad(fmt::format("a plan has at least {} bytes, this has {}", sizeof(Header), bytes.size()), "header");
  }
  if (reinterpret_cast<uintptr_t>(bytes.data()) % kAlign != 0) {
    return Bad("the bytes must lie at an 8-byte boundary", "header");
  }
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMagic) return Bad("the first eight bytes are not a plan's", "header");
  if (header.version != kPlanVersion) {
    return Fail(ErrorCode::kPlanVersion,
                fmt::format("format version {}, this program reads {}", header.version, kPlanVersion), "header");
  }
  if (header.header_bytes != sizeof(Header) || header.total_bytes != bytes.size()) {
    return Bad(fmt::format("the header says {} bytes, there are {}", header.total_bytes, bytes.size()), "header");
  }
  PlanView view;
  view.bytes = bytes;
  view.fingerprint = header.fingerprint;
  view.contract_key = header.contract_key;
  view.class_key = header.class_key;
  view.mask_digest = header.mask_digest;
  view.batch = static_cast<int64_t>(header.batch);
  view.q_len = static_cast<int64_t>(header.q_len);
  view.kv_len = static_cast<int64_t>(header.kv_len);
  view.num_q_heads = static_cast<int64_t>(header.num_q_heads);
  view.num_masks = static_cast<int64_t>(header.num_masks);
  view.mask_capacity = static_cast<int64_t>(header.mask_capacity);
  view.cleanup_capacity = static_cast<int64_t>(header.cleanup_capacity);
  view.part_capacity = static_cast<int64_t>(header.part_capacity);
  if (Status ok = BindAll(bytes, header, view); !ok) return tl::unexpected(std::move(ok.error()));
  return view;
}

Plan Trust(std::vector<std::byte> bytes) {
  Plan plan;
  plan.bytes_ = std::move(bytes);
  plan.view_ = *BindPlan(plan.bytes_);
  return plan;
}

}  // namespace plan
}  // namespace tessera
