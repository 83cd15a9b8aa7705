// What stands behind the C interface's opaque handles, and the one guard every C function that can fail runs in.
// Handles do not change once made, batches apart; what they share is held by shared_ptr, so they may be freed in any
// order.
#pragma once

#include <array>
#include <atomic>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/try.h"
#include "tessera/batch.h"
#include "tessera/c_api.h"
#include "tessera/contract.h"
#include "tessera/engine.h"
#include "tessera/error.h"
#include "tessera/plan.h"
#include "tessera/target.h"

struct tessera_error {
  std::string code;
  std::string meaning;
  tessera::Error error;
  std::string text;
};

struct tessera_contract {
  std::shared_ptr<const tessera::Contract> contract;
  std::string key;
  std::string text;
};

// The one handle that changes, by its _set_ functions. What it holds is shared with what was made from it, so that the
// first change after that makes a copy.
struct tessera_batch {
  std::shared_ptr<tessera::Batch> batch;
  mutable std::atomic<bool> is_shared = false;
};

struct tessera_plan {
  // A section of the plan's bytes, which stay where they are.
  struct Array {
    const char* name = "";
    const char* dtype = "";
    std::array<int64_t, 2> shape{};
    int64_t rank = 1;
    std::span<const std::byte> bytes;
  };
  std::shared_ptr<const tessera::Batch> batch;  // null for a plan that was loaded
  tessera::Plan plan;
  std::vector<Array> arrays;
  std::string fingerprint;
  std::string class_key;
  std::string mask_digest;
};

struct tessera_engine {
  tessera::Engine engine;
};

struct tessera_attention {
  tessera::Attention attention;
  std::string lane;
  std::string key;
};

struct tessera_bound {
  tessera::Bound bound;
  tessera::Shape shape;
  std::shared_ptr<const tessera::Batch> batch;  // for receipts; null where nobody knows it
};

struct tessera_receipt {
  bool ok = false;
  std::string json;
  std::string line;
};

namespace tessera::capi {

// Leaves a new error in *out; where memory has run out, one that is always there.
void Report(tessera_error** out, const Error& error) noexcept;
void ReportNoMemory(tessera_error** out) noexcept;
// An exception that nothing in the library expects.
void ReportDefect(tessera_error** out, std::string_view where, const char* what) noexcept;

// TSR-A001 in function `where`.
inline tl::unexpected<Error> BadArgument(std::string_view where, std::string message) {
  return Fail(ErrorCode::kAbiArgument, std::move(message), std::string(where));
}

// For a required pointer: `TESSERA_TRY(NotNull(x, "x", where));`.
inline Status NotNull(const void* pointer, std::string_view name, std::string_view where) {
  if (pointer != nullptr) return {};
  return BadArgument(where, std::string(name) + " is NULL");
}

// Runs the body of a C function: whatever goes wrong in it, memory and defects included, becomes an error.
template <class Body>
int Guard(std::string_view where, tessera_error** error, Body body) noexcept {
  if (error != nullptr) *error = nullptr;
  try {
    Status status = body();
    if (status) return 0;
    Report(error, status.error());
  } catch (const std::bad_alloc&) {
    ReportNoMemory(error);
  } catch (const std::length_error&) {  // a container asked for more than any machine has
    ReportNoMemory(error);
  } catch (const std::exception& exception) {
    ReportDefect(error, where, exception.what());
  } catch (...) {
    ReportDefect(error, where, "of an unknown type");
  }
  return 1;
}

// A copy that tessera_string_free frees.
char* CopyText(std::string_view text);

// A name that may be left out.
inline std::string TextOr(const char* text, std::string_view otherwise) {
  return std::string(text == nullptr ? otherwise : text);
}

// "cpu" where none is named.
inline Result<Target> ReadTarget(const char* name) { return FindTarget(TextOr(name, "cpu")); }

// A new handle of a contract that was checked.
Result<tessera_contract*> MakeContractHandle(Contract contract);

// Where every section of the plan lies.
std::vector<tessera_plan::Array> ListArrays(const PlanView& plan);

// The batch as the library takes it; an empty one where none is given.
std::shared_ptr<const Batch> BatchOf(const tessera_batch* batch);

// The receipt as a handle, where somebody wants it.
void GiveReceipt(const Receipt& from, tessera_receipt** to);

}  // namespace tessera::capi
