// Normalisation: many requests become few classes without a change of meaning. A request's sizes are rounded up to a
// small list, what was added is padding that the mask shuts out, and the window stays an operand: what is compiled once
// serves every request of the class, while contract keys still tell requests apart. docs/classes.md has the list.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/batch.h"
#include "tessera/contract.h"
#include "tessera/plan.h"
#include "tessera/planner.h"
#include "tessera/target.h"
#include "tessera/tensor.h"

#pragma GCC visibility push(default)
namespace tessera {

// The lengths there are: 2^k and 3*2^(k-1), from 16 to 2^20; multiples of 128 from 256 on.
const std::vector<int64_t>& ClassLengths();
// The numbers of batch rows, key heads and query heads per key head: 2^k and 3*2^(k-1), from 1 to 65536.
const std::vector<int64_t>& ClassCounts();

// What shuts the padding out. `valid` serves nearly every mask. A mask in which `valid` itself is one of several
// choices needs it for its own lengths; documents then do the same, and where the mask has both, nothing is padded but
// heads.
enum class PaddingCut : uint8_t { kValid, kDocuments, kNone };

struct RequestClass {
  Shape request;     // as asked for
  Shape shape;       // rounded up
  ClassShape sizes;  // tiles, widths, cleanups and parts a lane compiles for; powers of two
  std::string key;   // the class key of the request at this class
  PaddingCut cut = PaddingCut::kValid;
  int64_t exact_slots = 0;  // forward worklist slots of the request as it is: rows x width x heads x batch
  int64_t class_slots = 0;  // and of the class: the difference is what rounding cost
};

// Refuses a request beyond the largest class (TSR-L007). A mask with registered terms keeps its lengths and heads,
// because only the program that registered them knows what they mean at others; with routing the heads of a group stay
// as many as they are, because their scores are added.
Result<RequestClass> Normalise(const Contract& contract, const Target& target, const PlanOptions& options = {});

// The same request at the class's sizes: mask `(expr) and valid`, the offset as a number, bitmaps padded with zeros,
// heads that were added see nothing. TSR-L007 when the class is another request's.
Result<Contract> AtClass(const Contract& contract, const RequestClass& at);
// The batch with it: true lengths as valid lengths, ids of padding -1, no picks in padding.
Result<Batch> AtClass(const Contract& contract, const Batch& batch, const RequestClass& at);

// Where a query head of the request is among the class's: heads of one key head stay together.
int64_t HeadAtClass(const RequestClass& at, int64_t q_head);

// Inputs by name as Run takes them, padded with `fill`, which no result depends on; and outputs back at the request's
// sizes. A tensor of another name or size is TSR-R001.
struct PadOptions {
  Layout layout = Layout::kBhtd;
  double fill = 0.0;
};
Result<TensorMap> PadToClass(const TensorMap& tensors, const RequestClass& at, const PadOptions& options = {});
Result<TensorMap> CropToRequest(const TensorMap& tensors, const RequestClass& at, const PadOptions& options = {});

}  // namespace tessera
#pragma GCC visibility pop
