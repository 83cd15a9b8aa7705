// See KeepFreedMemory in train.h. XLA's CPU client allocates the temporaries of a program each time it runs it.
#include "tessera/train.h"

#ifdef __GLIBC__
#include <malloc.h>

#include <climits>
#endif

namespace tessera {

void KeepFreedMemory() {
#ifdef __GLIBC__
  // One arena, since those of other threads are never large enough for such a block and would map it; and no block so
  // large that it is mapped for itself.
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, INT_MAX);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
#endif
}

}  // namespace tessera
