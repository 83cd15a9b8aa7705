// Where a field of the PJRT interface lies, as one side sees it. Read by C too.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct PjrtPlace {
  const char* owner;  // the interface's own name of the struct, or of the function
  const char* field;  // empty for the struct as a whole and for a slot of the function table
  size_t offset;
  size_t size;
};

// As the header says that the CPU plugin's wheel ships. Only there when the header was found at configure time.
extern const struct PjrtPlace kPjrtPlacesOfHeader[];
extern const size_t kNumPjrtPlacesOfHeader;

#ifdef __cplusplus
}
#endif
