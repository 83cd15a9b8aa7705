// The text that the guard gives in place of /proc/cpuinfo. C, because what is preloaded into a program should bring no
// library along.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Writes 0xd0c, the part of a core of the same age without SVE, over each "CPU part" in the table of SVE cores. The
// text keeps its length. Returns how many parts it wrote over.
int tessera_rewrite_cpuinfo(char* text, size_t size);

#ifdef __cplusplus
}
#endif
