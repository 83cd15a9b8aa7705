// What we use of DLPack's C exchange interface, declared by ourselves: by it a framework says what a tensor is without
// a Python object for each answer. PyTorch has it since 2.10.
#pragma once

#include <cstdint>

namespace tessera_python::dlpack {

inline constexpr uint32_t kMajor = 1;  // another one may have other structs
inline constexpr int32_t kCpu = 1;
inline constexpr uint8_t kFloat = 2;
inline constexpr uint8_t kBfloat = 4;

struct Tensor {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  uint8_t dtype_code;
  uint8_t dtype_bits;
  uint16_t dtype_lanes;
  int64_t* shape;
  int64_t* strides;  // in elements; null: in one piece
  uint64_t byte_offset;
};
static_assert(sizeof(Tensor) == 48 && sizeof(void*) == 8);

struct ExchangeApi {
  uint32_t major;
  uint32_t minor;
  ExchangeApi* earlier;
  void* allocate;
  void* export_tensor;
  void* import_tensor;
  int (*read)(void* object, Tensor* out);  // of memory that is the object's; may be null
  void* current_stream;
};

}  // namespace tessera_python::dlpack
