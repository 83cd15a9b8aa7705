// What we use of XLA's typed FFI, declared by ourselves: structs of its C interface, API version 0.1, which every
// jaxlib from 0.5 on accepts. (A handler that claims a newer version than the runtime's takes JAX's whole CPU backend
// down, so a build against a new jaxlib's header would refuse older ones.) A test compares these with the header of the
// jaxlib that is installed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera_python::xla_ffi {

inline constexpr int kMajor = 0;
inline constexpr int kMinor = 1;

struct Error;
struct ExecutionContext;

inline constexpr uint32_t kExtensionMetadata = 1;
struct ExtensionBase {
  size_t struct_size;
  uint32_t type;
  ExtensionBase* next;
};

struct ApiVersion {
  size_t struct_size;
  ExtensionBase* extension_start;
  int major_version;
  int minor_version;
};

struct Metadata {
  size_t struct_size;
  ApiVersion api_version;
  uint32_t traits;
};
struct MetadataExtension {
  ExtensionBase extension_base;
  Metadata* metadata;
};

inline constexpr uint32_t kInvalidArgument = 3;
struct ErrorCreateArgs {
  size_t struct_size;
  ExtensionBase* extension_start;
  const char* message;
  uint32_t code;
};

struct StreamGetArgs {
  size_t struct_size;
  ExtensionBase* extension_start;
  ExecutionContext* ctx;
  void* stream;  // out; of CUDA a CUstream
};

// The table goes on; what is not called is an address.
struct Api {
  size_t struct_size;
  ExtensionBase* extension_start;
  ApiVersion api_version;
  const void* internal_api;
  Error* (*error_create)(ErrorCreateArgs*);
  void* error_get_message;
  void* error_destroy;
  void* handler_register;
  Error* (*stream_get)(StreamGetArgs*);
};

enum DataType : uint32_t { kS64 = 5, kU8 = 6, kF16 = 10, kF32 = 11, kBf16 = 16 };
struct Buffer {
  size_t struct_size;
  ExtensionBase* extension_start;
  uint32_t dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};

struct Args {
  size_t struct_size;
  ExtensionBase* extension_start;
  int64_t size;
  uint32_t* types;  // 1 is a buffer
  void** args;
};
using Rets = Args;

inline constexpr uint32_t kScalar = 3;
struct ByteSpan {
  const char* data;
  size_t size;
};
struct Scalar {
  uint32_t dtype;
  void* value;
};
struct Attrs {
  size_t struct_size;
  ExtensionBase* extension_start;
  int64_t size;
  uint32_t* types;
  ByteSpan** names;
  void** attrs;
};

inline constexpr uint32_t kExecute = 3;
struct CallFrame {
  size_t struct_size;
  ExtensionBase* extension_start;
  const Api* api;
  ExecutionContext* ctx;
  uint32_t stage;
  Args args;
  Rets rets;
  Attrs attrs;
};

}  // namespace tessera_python::xla_ffi
