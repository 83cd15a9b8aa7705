/* A contract and a batch in the arrays of the kernel you use today (docs/exports.md).
 * c_api.h has the rules of the whole interface. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tessera/c_data.h"
#include "tessera/c_error.h"
#include "tessera/c_plan.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef struct tessera_export tessera_export;

#define TESSERA_SEGMENTS_RUNTIME 0 /* segment ids alone: no batch changes the arrays */
#define TESSERA_SEGMENTS_BAKED 1   /* the arrays and their stored tiles */
#define TESSERA_SEGMENTS_SKIP 2    /* worklists that skip, and segment ids inside a tile: no tile is stored */

typedef struct tessera_export_options {
  size_t struct_size;
  const char* library; /* "splash", "tokamax", "flex" or "pallas"; NULL = "splash" */
  int64_t tile_q;      /* 0 and 0: the contract's */
  int64_t tile_kv;
  int64_t direction;    /* TESSERA_DIRECTION_FORWARD or _DKV; flex and pallas have both in one */
  int64_t store_tiles;  /* 1: every partial tile as bits, also where the kernel could compute it */
  int64_t segments;     /* TESSERA_SEGMENTS_: where the documents and valid lengths of a batch go */
  int64_t fixed_shapes; /* 1: every array at the capacities of the contract's class: one shape for all batches */
  int64_t widen_class;  /* 1: with fixed_shapes, a batch that does not fit gets a wider class, not TSR-P003 */
  int64_t head_shards;  /* splash; 0 = 1 */
  int64_t q_shards;     /* splash, tokamax; 0 = 1 */
  int64_t kv_shards;    /* tokamax; 0 = 1 */
  int64_t keep_empty;   /* splash, 1: empty tiles stay in the grid */
  int64_t dynamic_grid; /* tokamax, 1: lists of active tiles instead of the whole grid */
  int64_t set_row;      /* splash, tokamax, 1: `row` is the batch row to export; needed when rows differ */
  int64_t row;
} tessera_export_options;
static inline tessera_export_options tessera_export_options_init(void) {
  tessera_export_options out;
  memset(&out, 0, sizeof(out));
  out.struct_size = sizeof(out);
  return out;
}

/* NULL as batch is an empty one, NULL as options are the defaults. What the library cannot express is refused. */
int tessera_export_new(const tessera_contract* contract, const tessera_batch* batch,
                       const tessera_export_options* options, tessera_export** exported, tessera_error** error);
/* All of it: {"library", "direction", "tile", "arrays": {name: {"dtype", "shape", "data"} or null}, ...}. */
int tessera_export_json(const tessera_export* exported, char** json, tessera_error** error);

/* In the library's own order, then q_segment_ids and kv_segment_ids where the kernel needs them and a batch was given.
 */
size_t tessera_export_num_arrays(const tessera_export* exported);
int tessera_export_array(const tessera_export* exported, size_t index, tessera_array* array, tessera_error** error);
void tessera_export_free(tessera_export* exported);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
