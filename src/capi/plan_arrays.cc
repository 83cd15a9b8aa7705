// The sections of a plan as arrays of the C interface: named, and where they lie.
#include <fmt/format.h>

#include "capi/handles.h"
#include "capi/structs.h"
#include "tessera/plan.h"

namespace tessera::capi {
namespace {

// One row per element where an element is a struct of equal numbers.
template <class Element>
tessera_plan::Array Section(const char* name, const char* dtype, std::span<const Element> section,
                            int64_t row_numbers = 1) {
  return {.name = name,
          .dtype = dtype,
          .shape = {static_cast<int64_t>(section.size()), row_numbers},
          .rank = row_numbers == 1 ? 1 : 2,
          .bytes = std::as_bytes(section)};
}

struct WorklistNames {
  const char* row_offsets;
  const char* slots;
  const char* ranks;
  const char* parts;
};
constexpr WorklistNames kWorklists[kNumDirections] = {
    {"forward.row_offsets", "forward.slots", "forward.ranks", "forward.parts"},
    {"dq.row_offsets", "dq.slots", "dq.ranks", "dq.parts"},
    {"dkv.row_offsets", "dkv.slots", "dkv.ranks", "dkv.parts"},
};

}  // namespace

std::vector<tessera_plan::Array> ListArrays(const PlanView& plan) {
  static_assert(sizeof(Slot) == 2 * sizeof(uint32_t) && sizeof(Part) == 4 * sizeof(uint32_t));
  static_assert(sizeof(Segment) == 4 * sizeof(int32_t) && sizeof(Condition) == 2 * sizeof(int32_t));
  std::vector<tessera_plan::Array> out;
  out.reserve(kNumDirections * 4 + 13);
  for (size_t i = 0; i < kNumDirections; ++i) {
    const Worklist& list = plan.worklists[i];
    out.push_back(Section(kWorklists[i].row_offsets, "U64", list.row_offsets));
    out.push_back(Section(kWorklists[i].slots, "U32", list.slots, 2));
    out.push_back(Section(kWorklists[i].ranks, "U32", list.ranks));
    out.push_back(Section(kWorklists[i].parts, "U32", list.parts, 4));
  }
  out.push_back(Section("mask_of", "U32", plan.mask_of));
  out.push_back(Section("batch_of", "U32", plan.batch_of));
  out.push_back(Section("conditions", "I32", plan.conditions, 2));
  out.push_back(Section("cleanup_offsets", "U32", plan.cleanup_offsets));
  out.push_back(Section("items", "U8", plan.items, sizeof(CleanupItem)));
  out.push_back(Section("bit_tile_offsets", "U64", plan.bit_tile_offsets));
  out.push_back(Section("bit_words", "U64", plan.bit_words));
  out.push_back(Section("q_segment_offsets", "U64", plan.q_segment_offsets));
  out.push_back(Section("q_segments", "I32", plan.q_segments, 4));
  out.push_back(Section("kv_segment_offsets", "U64", plan.kv_segment_offsets));
  out.push_back(Section("kv_segments", "I32", plan.kv_segments, 4));
  out.push_back(Section("q_valid", "I32", plan.q_valid));
  out.push_back(Section("kv_valid", "I32", plan.kv_valid));
  return out;
}

}  // namespace tessera::capi

namespace {

using namespace tessera;        // NOLINT: the C functions below cannot be in the namespace
using namespace tessera::capi;  // NOLINT

}  // namespace

size_t tessera_plan_num_arrays(const tessera_plan* plan) { return plan == nullptr ? 0 : plan->arrays.size(); }

int tessera_plan_array(const tessera_plan* plan, size_t index, tessera_array* array, tessera_error** error) {
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(plan, "plan", where));
    if (index >= plan->arrays.size()) {
      return BadArgument(where, fmt::format("index is {}; there are {} arrays", index, plan->arrays.size()));
    }
    const tessera_plan::Array& from = plan->arrays[index];
    const tessera_array out{.struct_size = 0,
                            .name = from.name,
                            .dtype = from.dtype,
                            .shape = from.shape.data(),
                            .rank = from.rank,
                            .data = from.bytes.data(),
                            .num_bytes = from.bytes.size()};
    return WriteStruct(out, array, {"array", where});
  });
}
