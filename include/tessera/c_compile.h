/* Classes, which are compiled once for many requests; compiling without running; and the texts of programs.
 * c_api.h has the rules of the whole interface. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tessera/c_data.h"
#include "tessera/c_engine.h"
#include "tessera/c_error.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef struct tessera_class tessera_class;
typedef struct tessera_programs tessera_programs;

/* --- Classes (docs/classes.md) ------------------------------------------------------------------------------------ */

/* The class of a request: its sizes rounded up to a small list, without a change of meaning. Of the options the tile,
 * widen_class and disable count. TSR-L007 beyond the largest class. NULL as target is "cpu". */
int tessera_class_new(const tessera_contract* contract, const char* target, const tessera_attention_options* options,
                      tessera_class** of, tessera_error** error);
const char* tessera_class_key(const tessera_class* of); /* 32 hex digits: requests that share it share programs */

typedef struct tessera_class_sizes {
  size_t struct_size;
  int64_t batch;
  int64_t q_len;
  int64_t kv_len;
  int64_t num_q_heads;
  int64_t num_kv_heads;
  int64_t dim_qk;
  int64_t dim_v;
  int64_t exact_slots; /* forward worklist slots of the request as it is */
  int64_t class_slots; /* and of the class: the difference is what rounding cost */
} tessera_class_sizes;
static inline tessera_class_sizes tessera_class_sizes_init(void) {
  tessera_class_sizes out;
  memset(&out, 0, sizeof(out));
  out.struct_size = sizeof(out);
  return out;
}
int tessera_class_get_sizes(const tessera_class* of, tessera_class_sizes* sizes, tessera_error** error);
/* Where a query head of the request is among the class's: heads of one key head stay together. -1 out of range. */
int64_t tessera_class_head(const tessera_class* of, int64_t q_head);

/* The request at the class's sizes, to be run on memory of those sizes like any other: rows, tokens and heads that were
 * added may hold anything finite, and no result depends on them. */
int tessera_class_contract(const tessera_class* of, tessera_contract** padded, tessera_error** error);
/* NULL as batch is an empty one. */
int tessera_class_batch(const tessera_class* of, const tessera_batch* batch, tessera_batch** padded,
                        tessera_error** error);
void tessera_class_free(tessera_class* of);

/* --- Compiling (docs/compile.md) ---------------------------------------------------------------------------------- */

/* What is compiled: a contract with a batch (NULL: an empty one) for a target (NULL: "cpu"), and the passes that the
 * options (NULL: the defaults) ask for. q and k, in the host's memory, are looked at when the contract routes. */
typedef struct tessera_compile_request {
  size_t struct_size;
  const tessera_contract* contract;
  const tessera_batch* batch;
  const char* target;
  const tessera_attention_options* options;
  const tessera_tensor* q;
  const tessera_tensor* k;
} tessera_compile_request;
static inline tessera_compile_request tessera_compile_request_init(void) {
  tessera_compile_request out;
  memset(&out, 0, sizeof(out));
  out.struct_size = sizeof(out);
  return out;
}

/* Plans, lowers and compiles, anew and whatever is kept, and runs nothing, also for a machine that is not here. The
 * receipt, which may be NULL, says "compile-only". */
int tessera_compile(const tessera_engine* engine, const tessera_compile_request* request, tessera_receipt** receipt,
                    tessera_error** error);
/* The texts alone, forward then backward: needs no plugin. */
int tessera_lower(const tessera_engine* engine, const tessera_compile_request* request, tessera_programs** programs,
                  tessera_error** error);
size_t tessera_programs_count(const tessera_programs* programs);
const char* tessera_programs_name(const tessera_programs* programs, size_t index); /* pass and class key */
const char* tessera_programs_text(const tessera_programs* programs,
                                  size_t index); /* StableHLO; out of range gives "" */
/* What a program takes and gives, in order. An operand's array has type and shape, and data where no call brings it:
 * `source`, which may be NULL, gets "plan" (a table), "contract" (scale, softcap) or "part" (always 0 for a TPU).
 * Others are "caller" (q, k, v, do, sink_logits) and "forward" (lse, and delta, the sum of o * do over a row). */
size_t tessera_programs_num_operands(const tessera_programs* programs, size_t index);
int tessera_programs_operand(const tessera_programs* programs, size_t index, size_t operand, const char** source,
                             tessera_array* array, tessera_error** error);
size_t tessera_programs_num_results(const tessera_programs* programs, size_t index);
int tessera_programs_result(const tessera_programs* programs, size_t index, size_t result, tessera_array* array,
                            tessera_error** error);
void tessera_programs_free(tessera_programs* programs);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
