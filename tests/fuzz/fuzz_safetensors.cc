// Safetensors files: any bytes give an error or tensors whose bytes match their shapes.
#include "fuzz.h"
#include "tessera/io.h"

namespace tessera {

bool FuzzSafetensors(const uint8_t* data, size_t size) {
  const auto tensors = ParseSafetensors(AsText(data, size));
  if (!tensors) return false;
  for (const auto& [name, tensor] : *tensors) {
    const int64_t num_bytes = tensor.NumElements() * BytesOf(tensor.type);
    Require(num_bytes == static_cast<int64_t>(tensor.bytes.size()), "bytes match the shape");
  }
  return true;
}

}  // namespace tessera
