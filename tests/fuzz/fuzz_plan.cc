// Plan bytes. Random bytes would stop at the fingerprint, so the input is a whole plan, told by its first bytes, or
// else a list of edits to a good plan; either way it gets a new fingerprint. What VerifyPlan accepts must be safe to
// walk.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "fuzz.h"
#include "plan/layout.h"
#include "tessera/batch.h"
#include "tessera/contract.h"
#include "tessera/plan.h"
#include "tessera/planner.h"
#include "tessera/target.h"

namespace tessera {
namespace {

struct Edit {
  uint16_t offset;
  uint8_t width;  // how many bytes of `value` to write, 1 to 8
  uint64_t value;
};
constexpr size_t kEditBytes = 11;

std::vector<std::byte> GoodPlan() {
  const auto contract = ParseContract(
      "version = 1\n[shape]\nbatch = 2\nq_len = 23\nkv_len = 23\nnum_q_heads = 2\nnum_kv_heads = 1\ndim_qk = 4\ndim_v "
      "= 4\n"
      "dtype = \"f32\"\n[mask]\nheads = [\"causal and documents and valid\", \"window(3, 2) and documents\"]\n"
      "[tiles]\nq = 8\nkv = 8\nreason = \"a small plan\"\n");
  Require(contract.has_value(), "the fixed contract is good");
  const auto batch = ParseBatch(
      "{\"doc_ids\": [[0,0,0,0,0,1,1,1,1,1,1,1,1,1,2,2,2,2,2,2,-1,-1,-1],"
      "[5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,6,6,6,6,6,6,6]], \"valid_tokens\": [20, 23]}");
  Require(batch.has_value(), "the fixed batch is good");
  const auto target = FindTarget("cpu");
  Require(target.has_value(), "there is a cpu target");
  PlanOptions options;
  options.tile = TileSize{.q = 8, .kv = 8};
  const auto result = MakePlan(*contract, *batch, *target, options);
  Require(result.has_value(), "the fixed plan is made");
  const auto bytes = result->plan.bytes();
  return {bytes.begin(), bytes.end()};
}

void Apply(const uint8_t* record, std::vector<std::byte>& bytes) {
  Edit edit{};
  std::memcpy(&edit.offset, record, 2);
  edit.width = static_cast<uint8_t>(1 + record[2] % 8);
  std::memcpy(&edit.value, record + 3, 8);
  const size_t offset = edit.offset % bytes.size();
  std::memcpy(bytes.data() + offset, &edit.value, std::min<size_t>(edit.width, bytes.size() - offset));
}

}  // namespace

bool FuzzPlan(const uint8_t* data, size_t size) {
  static const std::vector<std::byte> good = GoodPlan();
  const auto* input = reinterpret_cast<const std::byte*>(data);
  const bool is_plan = size >= sizeof(plan::kMagic) && std::memcmp(data, good.data(), sizeof(plan::kMagic)) == 0;
  std::vector<std::byte> bytes = is_plan ? std::vector<std::byte>(input, input + size) : good;
  if (!is_plan) {
    for (size_t at = 0; at + kEditBytes <= size; at += kEditBytes) Apply(data + at, bytes);
    // What is left of the input, one byte, cuts the plan short.
    if (size % kEditBytes == 1) bytes.resize(bytes.size() - std::min<size_t>(bytes.size(), 8 * size_t{data[size - 1]}));
  }
  if (bytes.size() >= sizeof(plan::Header)) {
    const Hash128 fingerprint = plan::FingerprintOf(bytes);
    std::memcpy(bytes.data() + offsetof(plan::Header, fingerprint), fingerprint.data(), sizeof(fingerprint));
  }
  const auto view = VerifyPlan(bytes);
  if (!view) return false;
  for (const Direction direction : {Direction::kForward, Direction::kDq, Direction::kDkv}) {
    const TileCounts tiles = CountTiles(*view, direction);
    Require(tiles.empty >= 0 && tiles.partial >= 0 && tiles.full >= 0, "tile counts are counts");
    if (view->q_len * view->kv_len <= 1 << 14) (void)ToDense(*view, direction, view->batch - 1, view->num_q_heads - 1);
  }
  (void)MetadataBytes(*view);
  (void)DrawTiles(*view, 0, 0, 20, 20);
  (void)Summary(*view);
  return true;
}

}  // namespace tessera
