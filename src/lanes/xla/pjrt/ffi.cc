// See ffi.h.
#include "lanes/xla/pjrt/ffi.h"

#include <fmt/format.h>

#include <mutex>
#include <set>
#include <utility>

#include "lanes/xla/pjrt/call.h"

namespace tessera::pjrt {
namespace {

constexpr uint32_t kMetadata = 1;
constexpr uint32_t kScalar = 3;
constexpr uint32_t kInternal = 13;  // XLA's code of an error
constexpr uint32_t kInt64 = 5;

// PJRT's extensions are a list; this is the one for FFI.
constexpr int32_t kFfiExtension = 5;
struct PjrtExtension {
  size_t struct_size;
  int32_t type;
  PjrtExtension* next;
};
struct RegisterArgs {
  size_t struct_size = sizeof(RegisterArgs);
  const char* target_name = nullptr;
  size_t target_name_size = 0;
  void* handler = nullptr;
  const char* platform_name = nullptr;
  size_t platform_name_size = 0;
  uint32_t traits = 0;
};
struct FfiExtension {
  PjrtExtension base;
  void* type_register;
  void* user_data_add;
  api::Error* (*register_handler)(RegisterArgs*);
};

const FfiExtension* FindExtension(const api::Table& table) {
  for (auto* at = static_cast<PjrtExtension*>(table.extension_start); at != nullptr; at = at->next) {
    if (at->type == kFfiExtension && at->struct_size >= sizeof(FfiExtension)) {
      return reinterpret_cast<const FfiExtension*>(at);
    }
  }
  return nullptr;
}

}  // namespace

std::optional<int64_t> HostCall::Number(std::string_view name) const {
  const ffi::Attributes& attributes = frame_.attributes;
  for (int64_t i = 0; i < attributes.size; ++i) {
    const ffi::Name& found = *attributes.names[i];
    if (attributes.types[i] != kScalar || std::string_view(found.data, found.size) != name) continue;
    const auto* scalar = static_cast<const ffi::Scalar*>(attributes.items[i]);
    if (scalar->type == kInt64) return *static_cast<const int64_t*>(scalar->value);
  }
  return std::nullopt;
}

tessera::Result<void*> HostCall::Stream() const {
  ffi::StreamArgs args{sizeof(args), nullptr, frame_.context, nullptr};
  ffi::Error* error = frame_.api->stream_get(&args);
  if (error == nullptr) return args.stream;
  ffi::ErrorTextArgs text{sizeof(text), nullptr, error, nullptr};
  frame_.api->error_text(&text);
  std::string message = fmt::format("a call has no stream: {}", text.message);
  ffi::ErrorDestroyArgs destroy{sizeof(destroy), nullptr, error};
  frame_.api->error_destroy(&destroy);
  return Fail(ErrorCode::kPluginUnusable, std::move(message));
}

int64_t NumElements(const ffi::Buffer& buffer) {
  int64_t count = 1;
  for (int64_t i = 0; i < buffer.rank; ++i) count *= buffer.dims[i];
  return count;
}

bool AnswerMetadata(ffi::Frame* frame) {
  ffi::Extension* extension = frame->extension_start;
  if (extension == nullptr || extension->type != kMetadata) return false;
  ffi::Metadata* metadata = reinterpret_cast<ffi::MetadataExtension*>(extension)->metadata;
  metadata->api_version = {sizeof(ffi::Version), nullptr, 0, 1};
  metadata->traits = 0;
  return true;
}

ffi::Error* MakeError(const ffi::Frame& frame, const tessera::Error& error) {
  const std::string text = ToText(error);
  ffi::ErrorCreateArgs args{sizeof(args), nullptr, text.c_str(), kInternal};
  return frame.api->error_create(&args);
}

Status Register(const Plugin& plugin, std::string_view platform, std::span<const HostFunction> functions) {
  const FfiExtension* extension = FindExtension(plugin.table());
  if (extension == nullptr) {
    return Fail(ErrorCode::kPluginUnusable, "the plugin has no way to call functions of this process",
                plugin.info().path);
  }
  // A plugin keeps what it was told as long as it is loaded, which is for ever.
  static std::mutex* const kMutex = new std::mutex;
  static auto* const kDone = new std::set<std::pair<const Plugin*, std::string>>;
  const std::lock_guard<std::mutex> lock(*kMutex);
  for (const HostFunction& function : functions) {
    if (kDone->contains({&plugin, std::string(function.name)})) continue;
    RegisterArgs args;
    args.target_name = function.name.data();
    args.target_name_size = function.name.size();
    args.handler = reinterpret_cast<void*>(function.handler);
    args.platform_name = platform.data();
    args.platform_name_size = platform.size();
    if (api::Error* error = extension->register_handler(&args); error != nullptr) {
      return TakeError(plugin.table(), error, "PJRT_FFI_Register_Handler");
    }
    kDone->emplace(&plugin, function.name);
  }
  return {};
}

}  // namespace tessera::pjrt
