// Owning plans, and reading and writing them as files.
#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <utility>

#include "base/hash.h"
#include "io/file.h"
#include "io/limits.h"
#include "plan/layout.h"
#include "tessera/version.h"

namespace tessera {

std::string ToHex(const Hash128& hash) { return Hex(hash); }

Hash128 FromHex(std::string_view hex) {
  Hash128 hash{};
  for (size_t i = 0; i < hash.size() && 2 * i + 2 <= hex.size(); ++i) {
    std::from_chars(hex.data() + 2 * i, hex.data() + 2 * i + 2, hash[i], 16);
  }
  return hash;
}

std::string_view ToText(Direction direction) {
  switch (direction) {
    case Direction::kForward:
      return "forward";
    case Direction::kDq:
      return "dq";
    case Direction::kDkv:
      return "dkv";
  }
  return "?";
}

Hash128 plan::FingerprintOf(std::span<const std::byte> bytes) {
  Hasher hasher;
  const std::span<const std::byte> covered = bytes.subspan(kFingerprintEnd);
  hasher.Bytes(covered.data(), covered.size());
  return hasher.Finish();
}

Result<Plan> Plan::FromBytes(std::vector<std::byte> bytes) {
  Result<PlanView> view = VerifyPlan(bytes);
  if (!view) return tl::unexpected(std::move(view.error()));
  Plan plan;
  plan.bytes_ = std::move(bytes);  // moving a vector keeps its storage, so the view stays good
  plan.view_ = std::move(*view);
  return plan;
}

Result<Plan> ReadPlan(const std::string& path) {
  const HeadCheck check = [&](std::string_view head, int64_t size) -> Status {
    plan::Header header;
    if (head.size() < sizeof(header)) return {};  // all of the file: too short, as FromBytes will say
    std::memcpy(&header, head.data(), sizeof(header));
    if (header.magic != plan::kMagic)
      return Fail(ErrorCode::kPlanMalformed, "the first eight bytes are not a plan's", path);
    if (header.version != kPlanVersion || header.total_bytes == static_cast<uint64_t>(size)) return {};
    return Fail(ErrorCode::kPlanMalformed,
                fmt::format("the header says {} bytes, there are {}", header.total_bytes, size), path);
  };
  Result<std::string> text = ReadFile(path, kMaxFileBytes, check);
  if (!text) return tl::unexpected(std::move(text.error()));
  const auto* begin = reinterpret_cast<const std::byte*>(text->data());
  Result<Plan> plan = Plan::FromBytes({begin, begin + text->size()});
  if (!plan) plan.error().where = path + (plan.error().where.empty() ? "" : ": ") + plan.error().where;
  return plan;
}

Status WritePlan(const std::string& path, const Plan& plan) {
  const std::span<const std::byte> bytes = plan.bytes();
  return WriteFile(path, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

}  // namespace tessera
