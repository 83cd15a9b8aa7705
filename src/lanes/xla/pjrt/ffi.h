// Functions of this process that a compiled program calls: XLA's typed FFI, as far as it is used here, in our own words
// (C interface, version 0.1, which every plugin since takes: a handler that claims a newer version than the plugin's is
// refused without a word). Registered with a plugin through PJRT's extension for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lanes/xla/pjrt/plugin.h"

namespace tessera::pjrt {

namespace ffi {

struct Error;
struct Extension {
  size_t struct_size;
  uint32_t type;  // 1: metadata
  Extension* next;
};
struct Version {
  size_t struct_size;
  Extension* extension_start;
  int major_version;
  int minor_version;
};
struct Metadata {
  size_t struct_size;
  Version api_version;
  uint32_t traits;
};
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};
struct ErrorCreateArgs {
  size_t struct_size;
  Extension* extension_start;
  const char* message;
  uint32_t code;
};
struct ErrorTextArgs {
  size_t struct_size;
  Extension* extension_start;
  Error* error;
  const char* message;  // given
};
struct ErrorDestroyArgs {
  size_t struct_size;
  Extension* extension_start;
  Error* error;
};
struct StreamArgs {
  size_t struct_size;
  Extension* extension_start;
  void* context;
  void* stream;  // given: CUDA's own
};
// The table goes on.
struct Api {
  size_t struct_size;
  Extension* extension_start;
  Version api_version;
  const void* internal_api;
  Error* (*error_create)(ErrorCreateArgs*);
  void (*error_text)(ErrorTextArgs*);
  void (*error_destroy)(ErrorDestroyArgs*);
  Error* (*handler_register)(void*);
  Error* (*stream_get)(StreamArgs*);
};
struct Buffer {
  size_t struct_size;
  Extension* extension_start;
  uint32_t type;  // a number of XLA's own
  void* data;
  int64_t rank;
  int64_t* dims;
};
struct List {
  size_t struct_size;
  Extension* extension_start;
  int64_t size;
  uint32_t* types;  // 1: a buffer
  void** items;
};
struct Name {
  const char* data;
  size_t size;
};
struct Scalar {
  uint32_t type;
  void* value;
};
struct Attributes {
  size_t struct_size;
  Extension* extension_start;
  int64_t size;
  uint32_t* types;  // 3: a scalar
  Name** names;
  void** items;
};
struct Frame {
  size_t struct_size;
  Extension* extension_start;
  const Api* api;
  void* context;
  uint32_t stage;  // 3: execute
  List operands;
  List results;
  Attributes attributes;
};

}  // namespace ffi

// One call, as the function sees it. Buffers are dense and row-major.
class HostCall {
 public:
  explicit HostCall(const ffi::Frame& frame) : frame_(frame) {}
  size_t num_operands() const { return static_cast<size_t>(frame_.operands.size); }
  size_t num_results() const { return static_cast<size_t>(frame_.results.size); }
  const ffi::Buffer& Operand(size_t i) const { return *static_cast<const ffi::Buffer*>(frame_.operands.items[i]); }
  const ffi::Buffer& Result(size_t i) const { return *static_cast<const ffi::Buffer*>(frame_.results.items[i]); }
  std::optional<int64_t> Number(std::string_view name) const;  // an attribute
  // Of a program on a GPU, whose calls put their work on it: buffers are in that GPU's memory. TSR-L008 elsewhere.
  tessera::Result<void*> Stream() const;

 private:
  const ffi::Frame& frame_;
};
int64_t NumElements(const ffi::Buffer& buffer);

// What a plugin calls: `Answer<&Function>`, which answers its questions and turns a Status into an error of XLA's.
using Handler = ffi::Error* (*)(ffi::Frame*);
bool AnswerMetadata(ffi::Frame* frame);
ffi::Error* MakeError(const ffi::Frame& frame, const tessera::Error& error);
template <Status (*kFunction)(const HostCall&)>
ffi::Error* Answer(ffi::Frame* frame) {
  constexpr uint32_t kExecute = 3;
  if (AnswerMetadata(frame) || frame->stage != kExecute) return nullptr;
  const Status done = kFunction(HostCall(*frame));
  return done ? nullptr : MakeError(*frame, done.error());
}

struct HostFunction {
  std::string_view name;
  Handler handler = nullptr;
};
// XLA's words for what a program runs on: the function itself always runs on the host.
inline constexpr std::string_view kHostPlatform = "HOST";
inline constexpr std::string_view kCudaPlatform = "CUDA";
// Before a program that calls it is compiled; again does nothing. TSR-L008 for a plugin without the extension.
Status Register(const Plugin& plugin, std::string_view platform, std::span<const HostFunction> functions);

}  // namespace tessera::pjrt
