// Plan bytes from anywhere: truncated, flipped, or rebuilt with a good fingerprint around bad content.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "plan/layout.h"
#include "planner/plans.h"
#include "support/proves.h"
#include "support/random_batch.h"

namespace tessera {
namespace {

std::vector<std::byte> GoodBytes() {
  Contract contract = MakeContract("causal and window(40, 0) and documents or sink(3)", 300, 300);
  Target target = TestTarget();
  target.forward = {32, 32};
  target.dq = {32, 32};
  target.dkv = {64, 32};
  const Result<PlanResult> made = MakePlan(contract, MakeDocuments({{111, 89, 100}}), target);
  return {made->plan.bytes().begin(), made->plan.bytes().end()};
}

void Reseal(std::vector<std::byte>& bytes) {
  const Hash128 print = plan::FingerprintOf(bytes);
  std::memcpy(bytes.data() + offsetof(plan::Header, fingerprint), print.data(), print.size());
}

// Everything a lane would touch, so that a sanitizer sees any read outside the bytes.
void Walk(const PlanView& plan) {
  for (int64_t b = 0; b < std::min<int64_t>(plan.batch, 2); ++b) {
    for (size_t d = 0; d < kNumDirections; ++d) {
      if (plan.q_len * plan.kv_len < 1 << 20) {
        EXPECT_TRUE(ToDense(plan, static_cast<Direction>(d), b, 0).has_value());
      }
      CountTiles(plan, static_cast<Direction>(d));
      for (const Part& part : plan.worklists[d].parts) {
        for (uint32_t i = part.slot_begin; i < part.slot_end; ++i) plan.Cleanup(plan.worklists[d].slots[i].cleanup);
      }
    }
  }
  MetadataBytes(plan);
}

TEST(HostilePlan, TruncatedAnywhere_IsRefused) {
  const std::vector<std::byte> good = GoodBytes();
  for (size_t size = 0; size < good.size(); ++size) {
    std::vector<std::byte> cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
    const Result<PlanView> view = VerifyPlan(cut);
    ASSERT_FALSE(view.has_value()) << size;
    ASSERT_FALSE(view.error().message.empty());
    if (cut.size() >= sizeof(plan::Header)) {
      plan::Header header;
      std::memcpy(&header, cut.data(), sizeof(header));
      header.total_bytes = size;
      std::memcpy(cut.data(), &header, sizeof(header));
      Reseal(cut);
      if (const Result<PlanView> resealed = VerifyPlan(cut); resealed) Walk(*resealed);
    }
  }
}

TEST(HostilePlan, RandomFlipsUnderAGoodFingerprint_NeverCrash) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  const std::vector<std::byte> good = GoodBytes();
  ASSERT_TRUE(VerifyPlan(good).has_value());
  int accepted = 0;
  for (int trial = 0; trial < 30000; ++trial) {
    std::vector<std::byte> bytes = good;
    const int64_t flips = RandomInt(rng, 1, 4);
    for (int64_t f = 0; f < flips; ++f) {
      // Half of them in the header, where the offsets are.
      const int64_t end =
          RandomInt(rng, 0, 1) == 0 ? static_cast<int64_t>(sizeof(plan::Header)) : static_cast<int64_t>(bytes.size());
      const auto at = static_cast<size_t>(RandomInt(rng, 0, end - 1));
      bytes[at] = static_cast<std::byte>(RandomInt(rng, 0, 3) == 0 ? 0xff : RandomInt(rng, 0, 255));
    }
    Reseal(bytes);
    const Result<PlanView> view = VerifyPlan(bytes);
    if (view) {
      ++accepted;
      Walk(*view);
    }
  }
  EXPECT_LT(accepted, 30000) << "nothing was refused: the checks do not check";
}

TEST(HostilePlan, EveryByteWithoutResealing_IsCaughtByTheFingerprint) {
  const std::vector<std::byte> good = GoodBytes();
  for (size_t i = plan::kFingerprintEnd; i < good.size(); i += 3) {
    std::vector<std::byte> bytes = good;
    bytes[i] ^= std::byte{1};
    ASSERT_FALSE(VerifyPlan(bytes).has_value()) << i;
  }
}

TEST(HostilePlan, OtherVersion_SaysSo) {
  std::vector<std::byte> bytes = GoodBytes();
  plan::Header header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  header.version = 9;
  std::memcpy(bytes.data(), &header, sizeof(header));
  Reseal(bytes);
  EXPECT_EQ(VerifyPlan(bytes).error().code, ErrorCode::kPlanVersion);
}

TEST(HostilePlan, MisalignedBytes_AreRefused) {
  const std::vector<std::byte> good = GoodBytes();
  std::vector<std::byte> shifted(good.size() + 1);
  std::memcpy(shifted.data() + 1, good.data(), good.size());
  EXPECT_FALSE(VerifyPlan(std::span(shifted).subspan(1)).has_value());
}

}  // namespace
}  // namespace tessera
