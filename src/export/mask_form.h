// What a library would be told about each head's mask: one of the forms its kernel computes, or stored tiles.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "contract/mask_sets.h"
#include "tessera/contract.h"
#include "tessera/export.h"

namespace tessera::exports {

// Heads grouped as the libraries group them: by how the mask was said where they have a class for it (a causal mask and
// an equal stored one are two forms to them), by content otherwise.
struct HeadForms {
  std::vector<uint32_t> form_of_head;
  std::vector<int64_t> head_of_form;     // the first head of each form, in order of appearance
  std::optional<MaskFunction> function;  // when there is one form, and the kernel computes it
  uint32_t NumForms() const { return static_cast<uint32_t>(head_of_form.size()); }
};

// Every head alike, with that function.
HeadForms OneForm(int64_t num_heads, const std::optional<MaskFunction>& function);
// `content_of_head` numbers heads by content. With `stored`, only content counts.
HeadForms GroupHeads(const Contract& contract, std::span<const uint32_t> content_of_head, bool stored);

// The function that means what every head's static mask means, however it is spelled: `causal and window(511, 0)` is
// local. Nothing inside the result = every pair, which needs no function. Refused (TSR-X002) where heads differ or no
// kernel has a function for it. `sets` are those of a contract that LeaveSegmentsToRuntime takes.
Result<std::optional<MaskFunction>> FunctionByMeaning(const Contract& contract, const MaskSets& sets);

// The contract with `documents` and `valid` left to segment ids. Refused (TSR-X002) unless every head's mask is "some
// static mask, and equal ids": that is all a kernel with segment ids can do. `sets` are the contract's own, without
// picks.
Result<Contract> LeaveSegmentsToRuntime(const Contract& contract, const MaskSets& sets);

}  // namespace tessera::exports
