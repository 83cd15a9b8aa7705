#include "lanes/xla/pjrt/call.h"

#include <fmt/format.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <mutex>

namespace tessera::pjrt {
namespace {

std::atomic<bool> has_client = false;
std::atomic<bool> is_forked_child = false;

// The two error calls that return nothing.
template <class Args>
void CallVoid(const api::Table& table, Args& args) {
  if (!HasSlot(table, Args::kSlot)) return;
  using Function = void (*)(Args*);
  reinterpret_cast<Function>(table.slots[Args::kSlot])(&args);
}

}  // namespace

bool HasSlot(const api::Table& table, int slot) {
  const size_t end = offsetof(api::Table, slots) + (static_cast<size_t>(slot) + 1) * sizeof(void*);
  return table.struct_size >= end && table.slots[slot] != nullptr;
}

std::string_view PluginCodeText(int32_t code) {
  static constexpr std::array<std::string_view, 17> kNames = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED"};
  return code >= 0 && code < static_cast<int32_t>(kNames.size()) ? kNames[code] : "an unknown code";
}

Status TakeError(const api::Table& table, api::Error* error, const char* call) {
  api::ErrorMessageArgs message{.error = error};
  CallVoid(table, message);
  std::string text = message.message == nullptr ? "no message" : std::string(message.message, message.message_size);
  int32_t code = 2;
  api::ErrorGetCodeArgs get_code{.error = error};
  if (HasSlot(table, api::ErrorGetCodeArgs::kSlot)) {
    using Function = api::Error* (*)(api::ErrorGetCodeArgs*);
    const Function function = reinterpret_cast<Function>(table.slots[api::ErrorGetCodeArgs::kSlot]);
    if (api::Error* second = function(&get_code); second == nullptr) {
      code = get_code.code;
    } else {
      api::ErrorDestroyArgs destroy_second{.error = second};
      CallVoid(table, destroy_second);
    }
  }
  api::ErrorDestroyArgs destroy{.error = error};
  CallVoid(table, destroy);
  return Fail(ErrorCode::kPluginFailed, fmt::format("the plugin answered {}: {}", PluginCodeText(code), text), call);
}

void NoteClient() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork(nullptr, nullptr, [] {
      if (has_client) is_forked_child = true;
    });
  });
  has_client = true;
}

bool IsForkedChild() { return is_forked_child.load(std::memory_order_relaxed); }

tl::unexpected<Error> FailForked(const char* call) {
  return Fail(
      ErrorCode::kPluginFailed,
      "this process was forked from one that had a PJRT client, whose threads are not here; start a new program "
      "(exec) instead",
      call);
}

tl::unexpected<Error> FailNoSlot(const char* call) {
  return Fail(ErrorCode::kPluginFailed, "the plugin does not implement this call", call);
}

}  // namespace tessera::pjrt
