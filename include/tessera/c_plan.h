/* Plans: made by an attention (c_engine.h) or loaded, and what they say.
 * c_api.h has the rules of the whole interface. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tessera/c_data.h"
#include "tessera/c_error.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef struct tessera_plan tessera_plan;

/* Checks the bytes, whatever they are, and that the plan was made for this contract (TSR-P007). Copies them. */
int tessera_plan_load(const tessera_contract* contract, const void* bytes, size_t num_bytes, tessera_plan** plan,
                      tessera_error** error);
/* The bytes to save; they belong to the plan. NULL and 0 for a null plan. */
const void* tessera_plan_bytes(const tessera_plan* plan, size_t* num_bytes);
const char* tessera_plan_fingerprint(const tessera_plan* plan); /* 32 hex digits over the bytes */
const char* tessera_plan_class_key(const tessera_plan* plan);   /* what a lane compiles once */
const char* tessera_plan_mask_digest(const tessera_plan* plan); /* the mask, equal on every target */
/* About what the largest plan of its class takes; one with masks of many terms or stored pairs may take more. 0 for a
 * null plan. */
int64_t tessera_plan_class_bytes(const tessera_plan* plan);
int tessera_plan_json(const tessera_plan* plan, char** json, tessera_error** error); /* the whole plan */

#define TESSERA_DIRECTION_FORWARD 0
#define TESSERA_DIRECTION_DQ 1
#define TESSERA_DIRECTION_DKV 2
typedef struct tessera_tile_counts {
  size_t struct_size;
  int64_t empty;
  int64_t partial;
  int64_t full;
} tessera_tile_counts;
static inline tessera_tile_counts tessera_tile_counts_init(void) {
  tessera_tile_counts out;
  memset(&out, 0, sizeof(out));
  out.struct_size = sizeof(out);
  return out;
}
/* Tiles of one direction, over every batch row and query head. */
int tessera_plan_tile_counts(const tessera_plan* plan, int64_t direction, tessera_tile_counts* counts,
                             tessera_error** error);

/* Every section of the plan where it lies (docs/plan_format.md), "forward.slots" and so on. A section of small structs
 * has one row for each; "items", whose fields differ in width, is rows of bytes. */
size_t tessera_plan_num_arrays(const tessera_plan* plan);
int tessera_plan_array(const tessera_plan* plan, size_t index, tessera_array* array, tessera_error** error);
void tessera_plan_free(tessera_plan* plan);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
