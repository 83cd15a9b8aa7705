/* The C interface: contracts, batches, plans, runs on the caller's own memory, receipts. C11, and C++ as well.
 * docs/c_api.md has a working example.
 *
 * Errors. A function that can fail returns 0 when it is good and 1 when it failed, sets its outputs to NULL first, and
 *   on failure leaves a new error in *error; `error` itself may be NULL. A null pointer, a struct of the wrong size or
 *   an unknown value is TSR-A001 wherever it is met. No C++ exception leaves this interface.
 * Ownership. A handle is freed by its own _free function; NULL is allowed there. What a handle was made from may be
 *   freed before it. A `const char*` belongs to its handle, is never NULL, and is "" for a null handle. A `char*` is
 *   the caller's, to be freed with tessera_string_free.
 * Threads. Every handle is immutable: any number of threads may use one at the same time, as long as none of them frees
 *   it. There is no global state; an error belongs to the call that returned it. Two runs at the same time need
 *   separate output memory, and nothing else.
 * Versions. A struct begins with its own size, which its _init function sets; all else may be zero. A caller built
 *   for an older, smaller struct is served with zeros for the rest; one built for a newer, larger struct is served as
 *   long as what this library does not know is zero. tessera_tensor never changes. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The number in the library's soname. Before 1 it changes with every incompatible change. */
#define TESSERA_ABI_VERSION 0

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef struct tessera_error tessera_error;
typedef struct tessera_contract tessera_contract;
typedef struct tessera_batch tessera_batch;
typedef struct tessera_plan tessera_plan;
typedef struct tessera_receipt tessera_receipt;

const char* tessera_version(void); /* of the library that runs: TESSERA_VERSION of its tessera/version.h */
int64_t tessera_abi_version(void); /* its TESSERA_ABI_VERSION; must equal the caller's */
void tessera_string_free(char* text);

/* --- Errors ------------------------------------------------------------------------------------------------------- */

const char* tessera_error_code(const tessera_error* error);    /* "TSR-C003"; docs/error_codes.md has a page of them */
const char* tessera_error_meaning(const tessera_error* error); /* the code's own sentence, the same in every case */
const char* tessera_error_message(const tessera_error* error); /* what is wrong in this case */
const char* tessera_error_where(const tessera_error* error);   /* file, field, stage or function; may be "" */
const char* tessera_error_text(const tessera_error* error);    /* all of it for people, one line per violation */
/* Every broken rule of a validation error. Out of range gives "". */
size_t tessera_error_num_violations(const tessera_error* error);
const char* tessera_error_violation_field(const tessera_error* error, size_t index);
const char* tessera_error_violation_expected(const tessera_error* error, size_t index);
void tessera_error_free(tessera_error* error);

/* --- Contracts and batches ---------------------------------------------------------------------------------------- */

/* TOML or JSON text. Files it names are looked for in `base_dir`; NULL is the current folder. */
int tessera_contract_parse(const char* text, const char* base_dir, tessera_contract** contract, tessera_error** error);
const char* tessera_contract_key(const tessera_contract* contract);  /* 32 hex digits */
const char* tessera_contract_text(const tessera_contract* contract); /* canonical TOML, every default resolved */
int tessera_contract_json(const tessera_contract* contract, char** json, tessera_error** error); /* the same as JSON */
void tessera_contract_free(tessera_contract* contract);

int tessera_batch_parse(const char* json, tessera_batch** batch, tessera_error** error);
void tessera_batch_free(tessera_batch* batch);

/* --- Plans -------------------------------------------------------------------------------------------------------- */

typedef struct tessera_plan_options {
  size_t struct_size;
  int64_t tile_q; /* 0 and 0: the target's tile, or the contract's */
  int64_t tile_kv;
  int64_t widen_class;        /* 1: a batch beyond the class's capacities makes a wider class instead of TSR-P003 */
  int64_t verify_stages;      /* 1: run each stage's own check */
  const char* const* disable; /* names of stages to leave out */
  size_t num_disable;
} tessera_plan_options;
static inline tessera_plan_options tessera_plan_options_init(void) {
  tessera_plan_options out;
  memset(&out, 0, sizeof(out));
  out.struct_size = sizeof(out);
  return out;
}

/* NULL as batch is an empty one, NULL as target is "cpu", NULL as options are the defaults. */
int tessera_plan_make(const tessera_contract* contract, const tessera_batch* batch, const char* target,
                      const tessera_plan_options* options, tessera_plan** plan, tessera_error** error);
/* Checks the bytes, whatever they are, and that the plan was made for this contract (TSR-P007). Copies them. */
int tessera_plan_load(const tessera_contract* contract, const char* target, const void* bytes, size_t num_bytes,
                      tessera_plan** plan, tessera_error** error);
/* The bytes to save; they belong to the plan. NULL and 0 for a null plan. */
const void* tessera_plan_bytes(const tessera_plan* plan, size_t* num_bytes);
const char* tessera_plan_fingerprint(const tessera_plan* plan); /* 32 hex digits over the bytes */
const char* tessera_plan_class_key(const tessera_plan* plan);   /* what a lane compiles once */
const char* tessera_plan_mask_digest(const tessera_plan* plan); /* the mask, equal on every target */
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
void tessera_plan_free(tessera_plan* plan);

/* --- Runs --------------------------------------------------------------------------------------------------------- */

#define TESSERA_DTYPE_CONTRACT 0 /* the contract's own */
#define TESSERA_DTYPE_F32 1
#define TESSERA_DTYPE_BF16 2
#define TESSERA_DTYPE_F16 3

/* A [batch, head, token, dim] tensor in the caller's memory. Strides count elements, the last axis is contiguous:
 * a dense [B,H,T,D] has strides H*T*D, T*D, D and a dense [B,T,H,D] has T*H*D, D, H*D. Inputs are never written. */
typedef struct tessera_tensor {
  void* data; /* NULL = not given */
  int64_t dtype;
  int64_t batch_stride;
  int64_t head_stride;
  int64_t token_stride;
} tessera_tensor;

/* Row statistics are dense f32 [batch, num_q_heads, q_len], sink logits f32 [num_q_heads]. Outputs must overlap neither
 * each other nor an input, and when a run fails, what they hold is unspecified. */
typedef struct tessera_run_args {
  size_t struct_size;
  tessera_tensor q;
  tessera_tensor k;
  tessera_tensor v;
  tessera_tensor dout;      /* with a backward */
  const float* sink_logits; /* if and only if the contract's score.sink_logits is true */
  tessera_tensor o;         /* a forward writes it; a backward alone reads it, or takes delta in its place */
  float* lse;               /* a forward writes it, or goes without; a backward needs it */
  float* row_max;           /* a forward writes it, when given */
  const float* delta;       /* a backward alone: sum of o * dout per row, when the caller has it */
  tessera_tensor dq;        /* with a backward */
  tessera_tensor dk;
  tessera_tensor dv;
  float* dsink_logits; /* a backward writes it, when given */
} tessera_run_args;
static inline tessera_run_args tessera_run_args_init(void) {
  tessera_run_args out;
  memset(&out, 0, sizeof(out));
  out.struct_size = sizeof(out);
  return out;
}

typedef struct tessera_run_options {
  size_t struct_size;
  const char* lane;           /* NULL = "auto"; a lane's name: that lane or an error */
  const char* const* exclude; /* names of lanes never to use */
  size_t num_exclude;
  int64_t strict;           /* 1: any fallback is an error */
  int64_t threads;          /* 0 = as many as the target has workers; negative is an error */
  const char* input_source; /* for the receipt: where the inputs came from */
  const char* batch_source; /* and the batch */
  const char* isa;          /* NULL = "auto"; an instruction set's name: that one or an error */
} tessera_run_options;
static inline tessera_run_options tessera_run_options_init(void) {
  tessera_run_options out;
  memset(&out, 0, sizeof(out));
  out.struct_size = sizeof(out);
  return out;
}

#define TESSERA_FORWARD 1
#define TESSERA_BACKWARD 2
/* `what` is TESSERA_FORWARD, TESSERA_BACKWARD (from the o and lse of a forward run before), or both, with |.
 * NULL as options are the defaults. `receipt` may be NULL; otherwise it gets a receipt also when the run fails, except
 * on TSR-A001 and when memory ran out. */
int tessera_run(const tessera_plan* plan, int64_t what, const tessera_run_args* args,
                const tessera_run_options* options, tessera_receipt** receipt, tessera_error** error);

int tessera_receipt_ok(const tessera_receipt* receipt);
const char* tessera_receipt_json(const tessera_receipt* receipt); /* docs/receipts.md has the fields */
const char* tessera_receipt_line(const tessera_receipt* receipt); /* one line for people */
void tessera_receipt_free(tessera_receipt* receipt);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
