// The PJRT structs about buffers: as api.h, in a file of their own.
#pragma once

#include "lanes/xla/pjrt/api.h"

namespace tessera::pjrt::api {

// A layout without tiles: the dimensions, the fastest first.
struct TiledLayout {
  size_t struct_size = sizeof(TiledLayout);
  void* extension_start = nullptr;
  const int64_t* minor_to_major = nullptr;
  size_t minor_to_major_size = 0;
  const int64_t* tile_dims = nullptr;
  const size_t* tile_dim_sizes = nullptr;
  size_t num_tiles = 0;
};

// The interface has a union of two layouts here; the tiled one is the larger, and the only one we send.
struct MemoryLayout {
  size_t struct_size = sizeof(MemoryLayout);
  void* extension_start = nullptr;
  TiledLayout tiled;
  int32_t type = 0;  // 0: tiled
  uint64_t spare[kSpareWords] = {};
};

// How long the data of BufferFromHostArgs must stay: until the call returns, or as long as the buffer, which may be
// that memory itself.
inline constexpr int32_t kOnlyDuringCall = 0;
inline constexpr int32_t kZeroCopy = 2;

struct BufferFromHostArgs {
  static constexpr int kSlot = 22;
  static constexpr const char* kName = "PJRT_Client_BufferFromHostBuffer";
  size_t struct_size = sizeof(BufferFromHostArgs);
  void* extension_start = nullptr;
  Client* client = nullptr;
  const void* data = nullptr;
  int32_t type = 0;
  const int64_t* dims = nullptr;
  size_t num_dims = 0;
  const int64_t* byte_strides = nullptr;
  size_t num_byte_strides = 0;
  int32_t host_buffer_semantics = 0;
  Device* device = nullptr;
  Memory* memory = nullptr;
  MemoryLayout* device_layout = nullptr;
  Event* done_with_host_buffer = nullptr;
  Buffer* buffer = nullptr;
  uint64_t spare[kSpareWords] = {};
};

struct BufferDestroyArgs {
  static constexpr int kSlot = 58;
  static constexpr const char* kName = "PJRT_Buffer_Destroy";
  size_t struct_size = sizeof(BufferDestroyArgs);
  void* extension_start = nullptr;
  Buffer* buffer = nullptr;
  uint64_t spare[kSpareWords] = {};
};

struct BufferElementTypeArgs {
  static constexpr int kSlot = 59;
  static constexpr const char* kName = "PJRT_Buffer_ElementType";
  size_t struct_size = sizeof(BufferElementTypeArgs);
  void* extension_start = nullptr;
  Buffer* buffer = nullptr;
  int32_t type = 0;
  uint64_t spare[kSpareWords] = {};
};

struct BufferDimensionsArgs {
  static constexpr int kSlot = 60;
  static constexpr const char* kName = "PJRT_Buffer_Dimensions";
  size_t struct_size = sizeof(BufferDimensionsArgs);
  void* extension_start = nullptr;
  Buffer* buffer = nullptr;
  const int64_t* dims = nullptr;
  size_t num_dims = 0;
  uint64_t spare[kSpareWords] = {};
};

struct BufferIsDeletedArgs {
  static constexpr int kSlot = 68;
  static constexpr const char* kName = "PJRT_Buffer_IsDeleted";
  size_t struct_size = sizeof(BufferIsDeletedArgs);
  void* extension_start = nullptr;
  Buffer* buffer = nullptr;
  bool is_deleted = false;
  uint64_t spare[kSpareWords] = {};
};

struct BufferToHostArgs {
  static constexpr int kSlot = 70;
  static constexpr const char* kName = "PJRT_Buffer_ToHostBuffer";
  size_t struct_size = sizeof(BufferToHostArgs);
  void* extension_start = nullptr;
  Buffer* src = nullptr;
  MemoryLayout* host_layout = nullptr;
  void* dst = nullptr;
  size_t dst_size = 0;
  Event* event = nullptr;
  uint64_t spare[kSpareWords] = {};
};

struct BufferReadyEventArgs {
  static constexpr int kSlot = 72;
  static constexpr const char* kName = "PJRT_Buffer_ReadyEvent";
  size_t struct_size = sizeof(BufferReadyEventArgs);
  void* extension_start = nullptr;
  Buffer* buffer = nullptr;
  Event* event = nullptr;
  uint64_t spare[kSpareWords] = {};
};

struct BufferUnsafePointerArgs {
  static constexpr int kSlot = 73;
  static constexpr const char* kName = "PJRT_Buffer_UnsafePointer";
  size_t struct_size = sizeof(BufferUnsafePointerArgs);
  void* extension_start = nullptr;
  Buffer* buffer = nullptr;
  uintptr_t buffer_pointer = 0;
  uint64_t spare[kSpareWords] = {};
};

// The sizes of PJRT 0.114.
static_assert(sizeof(BufferFromHostArgs) >= 120 && sizeof(BufferToHostArgs) >= 56);

}  // namespace tessera::pjrt::api
