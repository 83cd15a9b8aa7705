// The one way into a plugin: a call with its argument struct, and what it answered as a Status.
#pragma once

#include <string>

#include "lanes/xla/pjrt/api.h"
#include "tessera/error.h"

namespace tessera::pjrt {

// Whether the table has the slot and something in it.
bool HasSlot(const api::Table& table, int slot);

// "INVALID_ARGUMENT" for 3.
std::string_view PluginCodeText(int32_t code);

// Turns a plugin's error into ours and frees it: TSR-L009 with the plugin's own message, the call as the place.
Status TakeError(const api::Table& table, api::Error* error, const char* call);

// A plugin's threads do not survive fork(): in a forked child every call would hang or abort, so none is made there.
// NoteClient says that there are threads from now on.
void NoteClient();
bool IsForkedChild();
tl::unexpected<Error> FailForked(const char* call);
tl::unexpected<Error> FailNoSlot(const char* call);

template <class Args>
Status Call(const api::Table& table, Args& args) {
  if (IsForkedChild()) return FailForked(Args::kName);
  if (!HasSlot(table, Args::kSlot)) return FailNoSlot(Args::kName);
  using Function = api::Error* (*)(Args*);
  api::Error* error = reinterpret_cast<Function>(table.slots[Args::kSlot])(&args);
  if (error == nullptr) return {};
  return TakeError(table, error, Args::kName);
}

}  // namespace tessera::pjrt
