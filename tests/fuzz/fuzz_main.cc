// The entry point of a libFuzzer program; the build says which target it is for.
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tessera::TESSERA_FUZZ_FUNCTION(data, size);
  return 0;
}
