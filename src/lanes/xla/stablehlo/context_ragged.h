// The sparse exchange as one ragged all-to-all: exactly the tiles that are needed, and no round of padding. For targets
// whose compiler has that collective; XLA's for CPUs has none.
#pragma once

#include <utility>
#include <vector>

#include "lanes/xla/stablehlo/builder.h"
#include "lanes/xla/stablehlo/context.h"

namespace tessera::stablehlo {

// Rows of what a device tells the collective, each with an entry for every device.
enum class RaggedRow : uint8_t {
  kSendAt,     // where a device's tiles begin among those that are sent
  kSendCount,  // how many it gets
  kPutAt,      // where they lie among those that come to it
  kComeAt,     // where what comes from a device begins
  kComeCount,  // how many
  kReturnAt,   // where what came lies among those that the device sent
};
inline constexpr int64_t kRaggedRows = 6;

// A device's operands. Tiles are numbered over batch rows; those sent are in the order of the devices that get them,
// those that come in the order of the devices they are of.
//   sends [batch * received]         the own tile that each row of what is sent is
//   slots [batch * (received + 1)]   the row of what came that each place behind a device's own tiles takes
//   arrivals [batch * received]      the place that each row of what came takes
//   trades [kRaggedRows, devices]
std::vector<NamedType> RaggedInputs(const ContextSpec& spec);

// As TileExchange has it, but that gradients of a tile that went to several devices are added in their order.
class RaggedExchange {
 public:
  RaggedExchange(Builder& b, const ContextSpec& spec) : b_(b), spec_(spec) {}
  std::pair<Value, Value> Bring(const Value& k, const Value& v);
  std::pair<Value, Value> GiveBack(const Value& dk, const Value& dv);

 private:
  Value Row(RaggedRow row);
  Value ToRows(const Value& x);
  Value FromRows(const Value& rows);
  std::pair<Value, Value> Parts(const Value& both);

  Builder& b_;
  const ContextSpec& spec_;
};

}  // namespace tessera::stablehlo
