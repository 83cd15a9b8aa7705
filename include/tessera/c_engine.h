/* Engine, attention, bound: what runs, decided once and called many times; and the receipts of calls.
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

typedef struct tessera_engine tessera_engine;
typedef struct tessera_attention tessera_attention;
typedef struct tessera_bound tessera_bound;
typedef struct tessera_receipt tessera_receipt;

/* --- Engines ------------------------------------------------------------------------------------------------------ */

typedef struct tessera_engine_options {
  size_t struct_size;
  const char* lane;        /* for attentions that leave it open; NULL = "auto" */
  const char* isa;         /* the same */
  const char* machine_isa; /* the best instruction set that counts as this machine's; NULL = what it has */
  const char* plugin;      /* a PJRT plugin's path, for attentions that leave it open; NULL = an installed one */
  const char* ledger;      /* the same: a file of measurements; NULL = none */
  const char* xla_folder;  /* has the installed plugins, and programs that are kept; NULL: no plugin is found */
  const char* xla_flags;   /* what XLA reads from the environment by itself, on which its programs depend */
  int64_t max_prepared;    /* attentions kept for requests like them; 0 = the default, negative = none */
} tessera_engine_options;
static inline tessera_engine_options tessera_engine_options_init(void) {
  tessera_engine_options out;
  memset(&out, 0, sizeof(out));
  out.struct_size = sizeof(out);
  return out;
}

/* NULL as options: from the environment (TESSERA_LANE, _ISA, _MACHINE_ISA, _PJRT_PLUGIN, _LEDGER, _XLA). With options
 * the environment is not looked at. */
int tessera_engine_new(const tessera_engine_options* options, tessera_engine** engine, tessera_error** error);
void tessera_engine_free(tessera_engine* engine); /* what was made with it stays good */

/* --- Attentions --------------------------------------------------------------------------------------------------- */

#define TESSERA_FORWARD 1
#define TESSERA_BACKWARD 2

typedef struct tessera_attention_options {
  size_t struct_size;
  const char* lane;           /* NULL = the engine's; a lane's name: that lane or an error */
  const char* isa;            /* NULL = the engine's; an instruction set's name: that one or an error */
  const char* const* exclude; /* names of lanes never to use */
  size_t num_exclude;
  int64_t strict;  /* 1: any fallback is an error */
  int64_t passes;  /* TESSERA_FORWARD, TESSERA_BACKWARD, or both with |: those that will be called; 0 = forward */
  int64_t threads; /* 0 = as many as the target has workers; negative is an error */
  int64_t memory;  /* TESSERA_MEMORY_: where the tensors of the calls will be */
  int64_t ordinal;
  const char* plugin;       /* of the lanes that go through XLA; NULL = the engine's */
  int64_t device;           /* of the plugin's own */
  int64_t set_optimization; /* 1: `optimization` is XLA's backend level, 0 to 3; 0: the plugin's choice */
  int64_t optimization;
  int64_t forget_programs; /* 1: compiled programs are not kept on disk */
  const char* ledger;      /* NULL = the engine's */
  int64_t experimental;    /* 1: the ledger may choose a lane that won at this shape only */
  int64_t tile_q;          /* 0 and 0: the target's tile, or the contract's */
  int64_t tile_kv;
  int64_t widen_class;        /* 1: a batch beyond the class's capacities makes a wider class instead of TSR-P003 */
  int64_t verify_stages;      /* 1: run each stage's own check */
  const char* const* disable; /* names of stages to leave out */
  size_t num_disable;
} tessera_attention_options;
static inline tessera_attention_options tessera_attention_options_init(void) {
  tessera_attention_options out;
  memset(&out, 0, sizeof(out));
  out.struct_size = sizeof(out);
  return out;
}

/* Decides, once and for all, what will run. NULL as target is "cpu", NULL as options are the defaults. */
int tessera_attention_new(const tessera_engine* engine, const tessera_contract* contract, const char* target,
                          const tessera_attention_options* options, tessera_attention** attention,
                          tessera_error** error);
/* Good when some lane that may run this accepted the contract: a refusal before any input is made. */
int tessera_attention_check(const tessera_attention* attention, tessera_error** error);
const char* tessera_attention_lane(const tessera_attention* attention); /* selected, by the table or a ledger */
const char* tessera_attention_key(const tessera_attention* attention);  /* 32 hex digits: docs/caching.md */
/* {"lane", "rule", "key", "decisions": [{"lane", "step", "accepted", "reason", "detail"}]} */
int tessera_attention_json(const tessera_attention* attention, char** json, tessera_error** error);
void tessera_attention_free(tessera_attention* attention);

/* NULL as batch is an empty one. q and k are looked at when the contract routes, and then needed (TSR-P009). */
int tessera_attention_plan(const tessera_attention* attention, const tessera_batch* batch, const tessera_tensor* q,
                           const tessera_tensor* k, tessera_plan** plan, tessera_error** error);
/* Asks the lanes about the plan; the first that accepts is bound, and compiles what it must. */
int tessera_attention_bind(const tessera_attention* attention, const tessera_plan* plan, tessera_bound** bound,
                           tessera_error** error);

/* Binds a plan of the same class in place of an earlier one of this attention: graphs captured from the earlier one's
 * calls run the new plan from here on in the order of `stream`. Keep `earlier` as long as its graphs, and do not call
 * it any more. Where it fails, bind and capture again. */
int tessera_attention_rebind(const tessera_attention* attention, const tessera_bound* earlier, const tessera_plan* plan,
                             void* stream, tessera_bound** bound, tessera_error** error);

/* The plan as the selected lane's kernels read it on their device, for the `image` of calls of anything that is bound
 * of this attention: who keeps plans in device memory binds one and brings the others. Needs no device. `image_bytes`
 * is what it takes; it is written where `capacity` has room for that, and not at all where it has not. TSR-L002 for a
 * lane without such a form. What lies in an image that a call brings is not checked. */
int tessera_attention_image(const tessera_attention* attention, const tessera_plan* plan, void* image, int64_t capacity,
                            int64_t* image_bytes, tessera_error** error);

/* --- Calls -------------------------------------------------------------------------------------------------------- */

/* Row statistics are dense f32 [batch, num_q_heads, q_len], sink logits f32 [num_q_heads], both in the tensors' memory.
 * Outputs must overlap neither each other nor an input, and when a call fails, what they hold is unspecified. What a
 * pass does not use is not looked at. */
typedef struct tessera_args {
  size_t struct_size;
  tessera_tensor q;
  tessera_tensor k;
  tessera_tensor v;
  tessera_tensor dout;      /* with a backward */
  const float* sink_logits; /* if and only if the contract's score.sink_logits is true */
  tessera_tensor o;         /* a forward writes it; a backward reads it, or takes delta in its place */
  float* lse;               /* a forward writes it, or goes without; a backward needs it */
  float* row_max;           /* a forward writes it, when given */
  const float* delta;       /* a backward alone: sum of o * dout per row, when the caller has it */
  tessera_tensor dq;        /* with a backward */
  tessera_tensor dk;
  tessera_tensor dv;
  float* dsink_logits; /* a backward writes it, when given */
} tessera_args;
static inline tessera_args tessera_args_init(void) {
  tessera_args out;
  memset(&out, 0, sizeof(out));
  out.struct_size = sizeof(out);
  return out;
}

typedef struct tessera_call_options {
  size_t struct_size;
  void* stream;             /* of the tensors' device: the call is ordered on it; host lanes take none */
  int64_t digests;          /* 1: also digests of inputs and outputs, for the receipt; they take their time */
  const char* input_source; /* for the receipt: where the inputs came from */
  const char* batch_source; /* and the batch */
  const char* contract_source;
  void* workspace;         /* in the tensors' memory, at a multiple of 64 bytes, nobody else's until the work is done */
  int64_t workspace_bytes; /* of it: at least tessera_bound_workspace_bytes; NULL and 0: the engine's */
  const void* image;       /* of a plan (tessera_attention_image), in the tensors' memory at a multiple of 16 bytes: */
  int64_t image_bytes;     /* it runs in place of the bound plan, in the stream's order; such a call has no receipt */
} tessera_call_options;
static inline tessera_call_options tessera_call_options_init(void) {
  tessera_call_options out;
  memset(&out, 0, sizeof(out));
  out.struct_size = sizeof(out);
  return out;
}

/* NULL as call are the defaults. `receipt` may be NULL: none is built then. Otherwise it gets one also when the call
 * fails, except on TSR-A001 and when memory ran out. */
int tessera_bound_forward(const tessera_bound* bound, const tessera_args* args, const tessera_call_options* call,
                          tessera_receipt** receipt, tessera_error** error);
int tessera_bound_backward(const tessera_bound* bound, const tessera_args* args, const tessera_call_options* call,
                           tessera_receipt** receipt, tessera_error** error);
const char* tessera_bound_lane(const tessera_bound* bound);
const char* tessera_bound_kernel(const tessera_bound* bound);
const char* tessera_bound_isa(const tessera_bound* bound);
int64_t tessera_bound_workspace_bytes(const tessera_bound* bound); /* of a call at most; 0 for a null handle */
void tessera_bound_free(tessera_bound* bound);

/* All of it in one go, for small uses: attention, plan (routed from q and k), bind, and the passes of the options. A
 * loop keeps its attention and binds once per batch. A call with a stream is refused: TSR-A001. */
int tessera_run(const tessera_engine* engine, const tessera_contract* contract, const tessera_batch* batch,
                const char* target, const tessera_attention_options* options, const tessera_args* args,
                const tessera_call_options* call, tessera_receipt** receipt, tessera_error** error);

/* --- Receipts ----------------------------------------------------------------------------------------------------- */

int tessera_receipt_ok(const tessera_receipt* receipt);
const char* tessera_receipt_json(const tessera_receipt* receipt); /* docs/receipts.md has the fields */
const char* tessera_receipt_line(const tessera_receipt* receipt); /* one line for people */
void tessera_receipt_free(tessera_receipt* receipt);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
