// Plan bytes. Random bytes would stop at the fingerprint, so the input is a list of edits to a good plan, which then
// gets a new fingerprint: what VerifyPlan accepts must be safe to walk.
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

namespace {

struct Edit {
  uint16_t offset;
  uint8_t width;  // how many bytes of `value` to write, 1 to 8
  uint64_t value;
};
constexpr size_t kEditBytes = 11;

std::vector<std::byte> GoodPlan() {
  const auto contract = tessera::ParseContract(
      "version = 1\n[shape]\nbatch = 2\nq_len = 23\nkv_len = 23\nnum_q_heads = 2\nnum_kv_heads = 1\ndim_qk = 4\ndim_v "
      "= 4\n"
      "dtype = \"f32\"\n[mask]\nheads = [\"causal and documents and valid\", \"window(3, 2) and documents\"]\n"
      "[tiles]\nq = 8\nkv = 8\nreason = \"a small plan\"\n");
  tessera::Require(contract.has_value(), "the fixed contract is good");
  const auto batch = tessera::ParseBatch(
      "{\"doc_ids\": [[0,0,0,0,0,1,1,1,1,1,1,1,1,1,2,2,2,2,2,2,-1,-1,-1],"
      "[5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,6,6,6,6,6,6,6]], \"valid_tokens\": [20, 23]}");
  tessera::Require(batch.has_value(), "the fixed batch is good");
  const auto target = tessera::FindTarget("cpu");
  tessera::Require(target.has_value(), "there is a cpu target");
  tessera::PlanOptions options;
  options.tile = tessera::TileSize{.q = 8, .kv = 8};
  const auto result = tessera::MakePlan(*contract, *batch, *target, options);
  tessera::Require(result.has_value(), "the fixed plan is made");
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

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<std::byte> good = GoodPlan();
  std::vector<std::byte> bytes = good;
  for (size_t at = 0; at + kEditBytes <= size; at += kEditBytes) Apply(data + at, bytes);
  // What is left of the input, one byte or more, cuts the plan short.
  if (size % kEditBytes == 1) bytes.resize(bytes.size() - std::min<size_t>(bytes.size(), 8 * size_t{data[size - 1]}));
  if (bytes.size() >= sizeof(tessera::plan::Header)) {
    const tessera::Hash128 fingerprint = tessera::plan::FingerprintOf(bytes);
    std::memcpy(bytes.data() + offsetof(tessera::plan::Header, fingerprint), fingerprint.data(), sizeof(fingerprint));
  }
  const auto plan = tessera::VerifyPlan(bytes);
  if (!plan) return 0;
  for (size_t i = 0; i < tessera::kNumDirections; ++i) {
    (void)tessera::CountTiles(*plan, static_cast<tessera::Direction>(i));
    if (plan->q_len * plan->kv_len <= 1 << 16) {
      (void)tessera::ToDense(*plan, static_cast<tessera::Direction>(i), 0, 0);
    }
  }
  (void)tessera::MetadataBytes(*plan);
  (void)tessera::DrawTiles(*plan, 0, 0, 20, 20);
  return 0;
}
