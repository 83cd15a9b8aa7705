#include "lanes/xla/pjrt/sharding.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "lanes/xla/pjrt/wire.h"

namespace tessera::pjrt {
namespace {

// Field numbers of XLA's xla_data.proto.
namespace sharding_field {
constexpr uint32_t kType = 1;
constexpr uint32_t kTileDimensions = 3;
constexpr uint32_t kTileDevices = 4;
constexpr uint32_t kTuple = 5;
constexpr uint32_t kReplicateOnLast = 6;
constexpr uint32_t kIotaDims = 9;
constexpr uint32_t kIotaPermutation = 10;
}  // namespace sharding_field

// Of tuples in tuples; XLA itself writes one level.
constexpr int kMostNesting = 8;

tl::unexpected<Error> Bad(const std::string& message) {
  return Fail(ErrorCode::kPluginFailed, "not an optimized program: " + message, "sharding");
}

Result<Sharding> ReadNested(std::string_view bytes, int depth) {
  if (depth > kMostNesting) return Bad(fmt::format("tuples nest deeper than {}", kMostNesting));
  Sharding sharding;
  WireReader reader(bytes);
  for (WireField field; reader.Next(field);) {
    std::string fault;
    if (field.number == sharding_field::kType) sharding.kind = static_cast<Sharding::Kind>(field.value);
    if (field.number == sharding_field::kReplicateOnLast) sharding.replicate_on_last = field.value != 0;
    if (field.number == sharding_field::kTileDimensions) fault = AddIntegers(field, sharding.tiles);
    if (field.number == sharding_field::kTileDevices) fault = AddIntegers(field, sharding.devices);
    if (field.number == sharding_field::kIotaDims) fault = AddIntegers(field, sharding.iota);
    if (field.number == sharding_field::kIotaPermutation) fault = AddIntegers(field, sharding.permutation);
    if (!fault.empty()) return Bad(fault);
    if (field.number == sharding_field::kTuple) {
      Result<Sharding> inner = ReadNested(field.bytes, depth + 1);
      if (!inner) return inner;
      sharding.tuple.push_back(std::move(*inner));
    }
  }
  if (!reader.ok()) return Bad(reader.Fault());
  return sharding;
}

// The product of sizes that are all at least 1, or -1 where one is not or the product is more than `most`.
int64_t ProductOf(const std::vector<int64_t>& sizes, int64_t most) {
  int64_t product = 1;
  for (const int64_t size : sizes) {
    if (size < 1 || size > most / product) return -1;
    product *= size;
  }
  return product;
}

}  // namespace

Result<Sharding> ReadSharding(std::string_view bytes) { return ReadNested(bytes, 0); }

std::string ToText(const Sharding& sharding) {
  switch (sharding.kind) {
    case Sharding::Kind::kReplicated:
      return "{replicated}";
    case Sharding::Kind::kMaximal:
      return fmt::format("{{maximal device={}}}", fmt::join(sharding.devices, ","));
    case Sharding::Kind::kTuple: {
      std::vector<std::string> parts;
      for (const Sharding& part : sharding.tuple) parts.push_back(ToText(part));
      return fmt::format("{{{}}}", fmt::join(parts, ", "));
    }
    case Sharding::Kind::kTiled: {
      std::string text = fmt::format("{{devices=[{}]", fmt::join(sharding.tiles, ","));
      if (sharding.iota.empty()) {
        text += fmt::format("{}", fmt::join(sharding.devices, ","));
      } else {
        text += fmt::format("<=[{}]", fmt::join(sharding.iota, ","));
        if (sharding.permutation.size() > 1) text += fmt::format("T({})", fmt::join(sharding.permutation, ","));
      }
      return text + (sharding.replicate_on_last ? " last_tile_dim_replicate}" : "}");
    }
    case Sharding::Kind::kManual:
      return "{manual}";
  }
  return fmt::format("{{kind {}}}", static_cast<uint64_t>(sharding.kind));
}

std::vector<int64_t> Iota(const std::vector<int64_t>& dims, const std::vector<int64_t>& permutation, int64_t count) {
  if (count < 1 || ProductOf(dims, count) != count) return {};
  std::vector<int64_t> order = permutation;
  if (order.empty()) {
    order.resize(dims.size());
    std::iota(order.begin(), order.end(), 0);
  }
  std::vector<int64_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] != static_cast<int64_t>(i)) return {};
  }
  if (order.size() != dims.size()) return {};
  std::vector<int64_t> stride(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) stride[i - 1] = stride[i] * dims[i];
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  for (int64_t n = 0; n < count; ++n) {
    int64_t rest = n;
    int64_t number = 0;
    for (size_t i = order.size(); i-- > 0;) {
      const auto from = static_cast<size_t>(order[i]);
      number += rest % dims[from] * stride[from];
      rest /= dims[from];
    }
    numbers[static_cast<size_t>(n)] = number;
  }
  return numbers;
}

Result<std::vector<std::vector<int64_t>>> TilesOfDevices(const Sharding& sharding, size_t rank, int64_t num_devices) {
  std::vector<std::vector<int64_t>> tiles(static_cast<size_t>(num_devices), std::vector<int64_t>(rank, 0));
  if (sharding.kind == Sharding::Kind::kReplicated) return tiles;
  const auto bad = [&] {
    return Bad(fmt::format("{} of {} dimensions over {} devices", ToText(sharding), rank, num_devices));
  };
  if (sharding.kind != Sharding::Kind::kTiled) return bad();
  if (sharding.tiles.size() != rank + (sharding.replicate_on_last ? 1 : 0)) return bad();
  if (ProductOf(sharding.tiles, num_devices) != num_devices) return bad();
  const std::vector<int64_t> devices =
      sharding.iota.empty() ? sharding.devices : Iota(sharding.iota, sharding.permutation, num_devices);
  if (static_cast<int64_t>(devices.size()) != num_devices) return bad();
  std::vector<bool> is_seen(static_cast<size_t>(num_devices), false);
  for (size_t n = 0; n < devices.size(); ++n) {
    if (devices[n] < 0 || devices[n] >= num_devices) return bad();
    const auto device = static_cast<size_t>(devices[n]);
    if (is_seen[device]) return bad();
    is_seen[device] = true;
    auto rest = static_cast<int64_t>(n);
    for (size_t i = sharding.tiles.size(); i-- > 0;) {
      if (i < rank) tiles[device][i] = rest % sharding.tiles[i];
      rest /= sharding.tiles[i];
    }
  }
  return tiles;
}

}  // namespace tessera::pjrt
