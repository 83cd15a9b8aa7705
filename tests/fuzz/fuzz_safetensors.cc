// Safetensors files: any bytes give an error or tensors whose bytes match their shapes.
#include "fuzz.h"
#include "tessera/tensor.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tensors = tessera::ParseSafetensors(tessera::AsText(data, size));
  if (!tensors) return 0;
  for (const auto& [name, tensor] : *tensors) {
    const int64_t num_bytes = tensor.NumElements() * tessera::BytesOf(tensor.type);
    tessera::Require(num_bytes == static_cast<int64_t>(tensor.bytes.size()), "bytes match the shape");
  }
  return 0;
}
