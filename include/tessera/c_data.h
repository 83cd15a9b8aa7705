/* What a call is about: contracts, batches and tensors.
 * c_api.h has the rules of the whole interface. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tessera/c_error.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef struct tessera_contract tessera_contract;
typedef struct tessera_batch tessera_batch;

/* --- Contracts ---------------------------------------------------------------------------------------------------- */

/* TOML or JSON text. Files it names are looked for in `base_dir`; NULL is the current folder. */
int tessera_contract_parse(const char* text, const char* base_dir, tessera_contract** contract, tessera_error** error);
const char* tessera_contract_key(const tessera_contract* contract);  /* 32 hex digits */
const char* tessera_contract_text(const tessera_contract* contract); /* canonical TOML, every default resolved */
int tessera_contract_json(const tessera_contract* contract, char** json, tessera_error** error); /* the same as JSON */
void tessera_contract_free(tessera_contract* contract);

/* What a caller has to know of its tensors: the sizes of [batch, head, token, dim]. */
typedef struct tessera_shape {
  size_t struct_size;
  int64_t batch;
  int64_t q_len;
  int64_t kv_len;
  int64_t num_q_heads;
  int64_t num_kv_heads;
  int64_t dim_qk;
  int64_t dim_v;
  int64_t dtype;       /* TESSERA_DTYPE_F32, _BF16 or _F16 */
  int64_t sink_logits; /* 1: calls bring one logit for each query head */
} tessera_shape;
static inline tessera_shape tessera_shape_init(void) {
  tessera_shape out;
  memset(&out, 0, sizeof(out));
  out.struct_size = sizeof(out);
  return out;
}
int tessera_contract_shape(const tessera_contract* contract, tessera_shape* shape, tessera_error** error);

/* --- Batches ------------------------------------------------------------------------------------------------------ */

int tessera_batch_parse(const char* json, tessera_batch** batch, tessera_error** error);
int tessera_batch_new(tessera_batch** batch, tessera_error** error); /* an empty one, to be filled */
void tessera_batch_free(tessera_batch* batch);

/* A _set_ copies what it is given, in place of what the batch had of the same name. Plans that were made before keep
 * what they were made of. Whether a batch fits a contract is said when it is planned: every fault at once, TSR-C007. */
#define TESSERA_SIDE_BOTH 0 /* queries and keys alike; their lengths must be equal */
#define TESSERA_SIDE_Q 1
#define TESSERA_SIDE_KV 2

/* Documents, in one of three forms a side. Ids: [rows, len], one of every token, negative = padding. */
int tessera_batch_set_doc_ids(tessera_batch* batch, int64_t side, const int32_t* ids, int64_t rows, int64_t len,
                              tessera_error** error);
/* Lengths: those of each row's documents, one row after the other; counts[row] says how many the row has. Tokens after
 * the last document are padding. */
int tessera_batch_set_doc_lengths(tessera_batch* batch, int64_t side, const int32_t* lengths, const int64_t* counts,
                                  int64_t rows, tessera_error** error);
/* Ends: 0 and then the end of each document, laid out like lengths; counts[row] counts the 0 too. */
int tessera_batch_set_cu_seqlens(tessera_batch* batch, int64_t side, const int32_t* ends, const int64_t* counts,
                                 int64_t rows, tessera_error** error);

/* How many tokens of each row are valid: `rows` is the batch's, or 1 for every row alike. */
int tessera_batch_set_valid_tokens(tessera_batch* batch, int64_t side, const int32_t* tokens, int64_t rows,
                                   tessera_error** error);
/* The same in units of `base_block_tokens`. */
int tessera_batch_set_valid_slots(tessera_batch* batch, const int32_t* slots, int64_t rows, int64_t base_block_tokens,
                                  tessera_error** error);
/* Picks for the `blocks` term: [batch, q_len or query tiles, num_kv_heads, top_n], negative = no pick. */
int tessera_batch_set_picks(tessera_batch* batch, const int32_t* blocks, const int64_t* shape, int64_t rank,
                            int64_t block_tokens, tessera_error** error);

/* --- Tensors ------------------------------------------------------------------------------------------------------ */

#define TESSERA_DTYPE_CONTRACT 0 /* the contract's own */
#define TESSERA_DTYPE_F32 1
#define TESSERA_DTYPE_BF16 2
#define TESSERA_DTYPE_F16 3

#define TESSERA_MEMORY_HOST 0
#define TESSERA_MEMORY_GPU 1
#define TESSERA_MEMORY_TPU 2

/* A [batch, head, token, dim] tensor in the caller's memory. Strides count elements, the last axis is contiguous:
 * a dense [B,H,T,D] has strides H*T*D, T*D, D and a dense [B,T,H,D] has T*H*D, D, H*D. Inputs are never written. */
typedef struct tessera_tensor {
  void* data; /* NULL = not given */
  int64_t dtype;
  int64_t batch_stride;
  int64_t head_stride;
  int64_t token_stride;
  int64_t memory;  /* TESSERA_MEMORY_: where the data lies; nothing is copied to another memory */
  int64_t ordinal; /* which device of that kind; 0 for the host */
} tessera_tensor;

/* Dense [B,H,T,D] and [B,T,H,D] in the host's memory, of the contract's dtype. */
static inline tessera_tensor tessera_tensor_bhtd(const void* data, int64_t heads, int64_t tokens, int64_t dim) {
  tessera_tensor out = {(void*)data, TESSERA_DTYPE_CONTRACT, heads * tokens * dim, tokens * dim, dim, 0, 0};
  return out;
}
static inline tessera_tensor tessera_tensor_bthd(const void* data, int64_t heads, int64_t tokens, int64_t dim) {
  tessera_tensor out = {(void*)data, TESSERA_DTYPE_CONTRACT, heads * tokens * dim, dim, heads * dim, 0, 0};
  return out;
}

/* --- Arrays ------------------------------------------------------------------------------------------------------- */

/* One array of a plan or an export, dense and row-major; everything belongs to the handle it was asked of. */
typedef struct tessera_array {
  size_t struct_size;
  const char* name;
  const char* dtype; /* "I32", "BOOL", ...; "" where the library has None */
  const int64_t* shape;
  int64_t rank;
  const void* data; /* NULL where the library has None */
  size_t num_bytes;
} tessera_array;
static inline tessera_array tessera_array_init(void) {
  tessera_array out;
  memset(&out, 0, sizeof(out));
  out.struct_size = sizeof(out);
  return out;
}

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
