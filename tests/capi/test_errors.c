/* The C interface given what it cannot use: bad text, null pointers, wrong struct sizes, unknown values, bad tensors.
 */
#include <stdlib.h>
#include <string.h>

#include "harness.h"

static const char* const kCode = "TSR-A001";
static int somewhere = 0; /* what an output points at before a call: must be overwritten */

static void test_bad_text(void) {
  tessera_contract* contract = (tessera_contract*)&somewhere;
  tessera_batch* batch = (tessera_batch*)&somewhere;
  tessera_error* error = NULL;
  bad(tessera_contract_parse("version = ", NULL, &contract, &error), &error, "TSR-C001", "", "contract syntax");
  check(contract == NULL, "no contract after an error");
  bad(tessera_contract_parse("version = 1\n[shape]\nq_len = 4\nnonsense = 1\n", NULL, &contract, &error), &error,
      "TSR-C002", "nonsense", "contract field");
  int status = tessera_contract_parse(
      "version = 1\n[shape]\nq_len = 4\ndim_qk = 4\nnum_q_heads = 3\nnum_kv_heads = 2\n[mask]\nexpr = \"causal\"\n"
      "[score]\nsoftcap = -1.0\n",
      NULL, &contract, &error);
  check(tessera_error_num_violations(error) >= 2, "every violation is there");
  check(strlen(tessera_error_violation_field(error, 0)) > 0, "a violation has a field");
  check(strlen(tessera_error_violation_expected(error, 0)) > 0, "and what was expected");
  check(strcmp(tessera_error_violation_field(error, 99), "") == 0, "and there is no hundredth");
  bad(status, &error, "TSR-C003", "softcap", "contract rules");
  bad(tessera_batch_parse("{", &batch, &error), &error, "TSR-C006", "", "batch syntax");
  check(batch == NULL, "no batch after an error");
  check(tessera_contract_parse("", NULL, &contract, NULL) == 1, "an error nobody wants");
}

/* Every output is NULL after a call that failed. */
static void test_null_makers(void) {
  tessera_error* error = NULL;
  const Sizes sizes = small_sizes();
  tessera_engine* engine = make_engine();
  tessera_contract* contract = (tessera_contract*)&somewhere;
  tessera_attention* attention = make_attention(&sizes, 0);
  char* text = (char*)&somewhere;
  tessera_attention* attention_out = (tessera_attention*)&somewhere;
  tessera_plan* plan = (tessera_plan*)&somewhere;
  tessera_bound* bound = (tessera_bound*)&somewhere;
  tessera_class* class_out = (tessera_class*)&somewhere;
  tessera_export* exported = (tessera_export*)&somewhere;
  tessera_programs* programs = (tessera_programs*)&somewhere;
  tessera_receipt* receipt = (tessera_receipt*)&somewhere;
  bad(tessera_contract_parse(NULL, NULL, &contract, &error), &error, kCode, "text is NULL", "null contract text");
  bad(tessera_contract_parse("", NULL, NULL, &error), &error, kCode, "contract is NULL", "null contract out");
  bad(tessera_contract_json(NULL, &text, &error), &error, kCode, "contract is NULL", "json of null");
  check(text == NULL && contract == NULL, "no text and no contract");
  contract = make_contract(&sizes);
  bad(tessera_batch_parse(NULL, NULL, &error), &error, kCode, "batch is NULL", "null batch");
  bad(tessera_batch_new(NULL, &error), &error, kCode, "batch is NULL", "null batch out");
  bad(tessera_engine_new(NULL, NULL, &error), &error, kCode, "engine is NULL", "null engine out");
  bad(tessera_attention_new(NULL, contract, NULL, NULL, &attention_out, &error), &error, kCode, "engine is NULL",
      "new");
  bad(tessera_attention_new(engine, NULL, NULL, NULL, &attention_out, &error), &error, kCode, "contract", "new");
  bad(tessera_attention_new(engine, contract, NULL, NULL, NULL, &error), &error, kCode, "attention is NULL", "new");
  bad(tessera_attention_check(NULL, &error), &error, kCode, "attention is NULL", "check of null");
  bad(tessera_attention_json(NULL, &text, &error), &error, kCode, "attention is NULL", "json of null");
  bad(tessera_attention_json(attention, NULL, &error), &error, kCode, "json is NULL", "json into null");
  bad(tessera_attention_plan(NULL, NULL, NULL, NULL, &plan, &error), &error, kCode, "attention is NULL",
      "plan of null");
  bad(tessera_attention_plan(attention, NULL, NULL, NULL, NULL, &error), &error, kCode, "plan is NULL", "plan to null");
  bad(tessera_attention_bind(NULL, NULL, &bound, &error), &error, kCode, "attention is NULL", "bind of null");
  bad(tessera_attention_bind(attention, NULL, &bound, &error), &error, kCode, "plan is NULL", "bind of no plan");
  bad(tessera_attention_bind(attention, plan, NULL, &error), &error, kCode, "bound is NULL", "bind to null");
  bad(tessera_attention_rebind(attention, NULL, plan, NULL, &bound, &error), &error, kCode, "earlier is NULL",
      "rebind");
  int64_t image_bytes = 0;
  bad(tessera_attention_image(NULL, NULL, NULL, 0, &image_bytes, &error), &error, kCode, "attention is NULL", "image");
  bad(tessera_attention_image(attention, NULL, NULL, 0, &image_bytes, &error), &error, kCode, "plan is NULL", "image");
  bad(tessera_plan_load(NULL, "x", 1, &plan, &error), &error, kCode, "contract is NULL", "load for null");
  bad(tessera_plan_load(contract, NULL, 1, &plan, &error), &error, kCode, "bytes is NULL", "load of null");
  bad(tessera_class_new(NULL, NULL, NULL, &class_out, &error), &error, kCode, "contract is NULL", "class of null");
  bad(tessera_class_new(contract, NULL, NULL, NULL, &error), &error, kCode, "of is NULL", "class to null");
  bad(tessera_export_new(NULL, NULL, NULL, &exported, &error), &error, kCode, "contract is NULL", "export of null");
  bad(tessera_export_new(contract, NULL, NULL, NULL, &error), &error, kCode, "exported is NULL", "export to null");
  bad(tessera_lower(NULL, NULL, &programs, &error), &error, kCode, "engine is NULL", "lower of null");
  bad(tessera_lower(engine, NULL, &programs, &error), &error, kCode, "request is NULL", "lower of no request");
  bad(tessera_compile(engine, NULL, &receipt, &error), &error, kCode, "request is NULL", "compile of no request");
  bad(tessera_run(NULL, NULL, NULL, NULL, NULL, NULL, NULL, &receipt, &error), &error, kCode, "engine", "run of null");
  bad(tessera_run(engine, contract, NULL, NULL, NULL, NULL, NULL, NULL, &error), &error, kCode, "args", "run on null");
  check(attention_out == NULL && plan == NULL && bound == NULL && class_out == NULL && exported == NULL &&
            programs == NULL && receipt == NULL,
        "nothing comes of null");
  check(tessera_run(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL) == 1, "all null");
  tessera_engine_free(engine);
  tessera_contract_free(contract);
  tessera_attention_free(attention);
}

static void test_null_handles(void) {
  tessera_error* error = NULL;
  const Sizes sizes = small_sizes();
  Inputs in = make_inputs(&sizes, BHTD, NULL);
  tessera_attention* attention = make_attention(&sizes, 0);
  tessera_plan* plan = make_plan(attention, &in, BY_IDS);
  tessera_bound* bound = make_bound(&in, TESSERA_FORWARD, BY_IDS);
  tessera_tile_counts counts = tessera_tile_counts_init();
  tessera_class_sizes class_sizes = tessera_class_sizes_init();
  tessera_array array = tessera_array_init();
  char* text = NULL;
  tessera_contract* contract = NULL;
  tessera_batch* batch = NULL;
  bad(tessera_plan_json(plan, NULL, &error), &error, kCode, "json is NULL", "null json");
  bad(tessera_plan_json(NULL, &text, &error), &error, kCode, "plan is NULL", "json of null");
  bad(tessera_plan_tile_counts(NULL, 0, &counts, &error), &error, kCode, "plan is NULL", "counts of null");
  bad(tessera_plan_tile_counts(plan, 0, NULL, &error), &error, kCode, "counts is NULL", "null counts");
  bad(tessera_plan_tile_counts(plan, 3, &counts, &error), &error, kCode, "direction is 3", "a fourth direction");
  bad(tessera_bound_forward(NULL, NULL, NULL, NULL, &error), &error, kCode, "bound is NULL", "call of null");
  bad(tessera_bound_forward(bound, NULL, NULL, NULL, &error), &error, kCode, "args is NULL", "call on null");
  bad(tessera_bound_backward(NULL, NULL, NULL, NULL, &error), &error, kCode, "bound is NULL", "call of null");
  bad(tessera_class_get_sizes(NULL, &class_sizes, &error), &error, kCode, "of is NULL", "sizes of null");
  bad(tessera_class_contract(NULL, &contract, &error), &error, kCode, "of is NULL", "contract of null");
  bad(tessera_class_batch(NULL, NULL, &batch, &error), &error, kCode, "of is NULL", "batch of null");
  bad(tessera_export_json(NULL, &text, &error), &error, kCode, "exported is NULL", "json of null");
  bad(tessera_export_array(NULL, 0, &array, &error), &error, kCode, "exported is NULL", "array of null");
  check(tessera_class_head(NULL, 0) == -1, "no head of null");
  check(tessera_programs_count(NULL) == 0 && tessera_export_num_arrays(NULL) == 0, "none of null");
  check(tessera_bound_workspace_bytes(NULL) == 0, "no bytes of null");
  size_t num_bytes = 1;
  check(tessera_plan_bytes(NULL, &num_bytes) == NULL && num_bytes == 0, "bytes of null");
  check(tessera_plan_bytes(NULL, NULL) == NULL, "bytes of null into null");
  const char* const empty[] = {
      tessera_contract_key(NULL),     tessera_contract_text(NULL),    tessera_plan_fingerprint(NULL),
      tessera_plan_class_key(NULL),   tessera_plan_mask_digest(NULL), tessera_receipt_json(NULL),
      tessera_receipt_line(NULL),     tessera_error_code(NULL),       tessera_error_meaning(NULL),
      tessera_error_message(NULL),    tessera_error_where(NULL),      tessera_error_text(NULL),
      tessera_attention_lane(NULL),   tessera_attention_key(NULL),    tessera_bound_lane(NULL),
      tessera_bound_kernel(NULL),     tessera_bound_isa(NULL),        tessera_class_key(NULL),
      tessera_programs_name(NULL, 0), tessera_programs_text(NULL, 0)};
  for (size_t i = 0; i < sizeof(empty) / sizeof(empty[0]); ++i) check(strcmp(empty[i], "") == 0, "text of null");
  check(tessera_receipt_ok(NULL) == 0, "no receipt is not ok");
  check(tessera_error_num_violations(NULL) == 0, "violations of null");
  tessera_contract_free(NULL);
  tessera_batch_free(NULL);
  tessera_plan_free(NULL);
  tessera_receipt_free(NULL);
  tessera_error_free(NULL);
  tessera_string_free(NULL);
  tessera_engine_free(NULL);
  tessera_attention_free(NULL);
  tessera_bound_free(NULL);
  tessera_class_free(NULL);
  tessera_programs_free(NULL);
  tessera_export_free(NULL);
  tessera_bound_free(bound);
  tessera_plan_free(plan);
  tessera_attention_free(attention);
  free_inputs(&in);
}

static void test_batch_setters(void) {
  tessera_error* error = NULL;
  tessera_batch* batch = NULL;
  const int32_t values[16] = {0};
  const int64_t counts[2] = {3, -1}, shape[4] = {1, 2, 2, 4}, huge[4] = {INT64_MAX, 2, 2, 2};
  good(tessera_batch_new(&batch, &error), &error, "batch_new");
  bad(tessera_batch_set_doc_ids(NULL, 0, values, 2, 4, &error), &error, kCode, "batch is NULL", "no batch");
  bad(tessera_batch_set_doc_ids(batch, 0, NULL, 2, 4, &error), &error, kCode, "ids is NULL", "no ids");
  bad(tessera_batch_set_doc_ids(batch, 3, values, 2, 4, &error), &error, kCode, "side is 3", "a fourth side");
  bad(tessera_batch_set_doc_ids(batch, 0, values, -2, 4, &error), &error, kCode, "[-2, 4]", "a negative size");
  bad(tessera_batch_set_doc_ids(batch, 0, values, INT64_MAX, 4, &error), &error, kCode, "memory", "a size too large");
  bad(tessera_batch_set_doc_lengths(NULL, 0, values, counts, 1, &error), &error, kCode, "batch is NULL", "no batch");
  bad(tessera_batch_set_doc_lengths(batch, 0, NULL, counts, 1, &error), &error, kCode, "lengths is NULL", "no lengths");
  bad(tessera_batch_set_doc_lengths(batch, 0, values, NULL, 1, &error), &error, kCode, "counts is NULL", "no counts");
  bad(tessera_batch_set_doc_lengths(batch, 0, values, counts, 2, &error), &error, kCode, "[-1]", "a negative count");
  bad(tessera_batch_set_doc_lengths(batch, 0, values, counts, -1, &error), &error, kCode, "rows is -1", "rows");
  bad(tessera_batch_set_cu_seqlens(NULL, 0, values, counts, 1, &error), &error, kCode, "batch is NULL", "no batch");
  bad(tessera_batch_set_cu_seqlens(batch, 0, NULL, counts, 1, &error), &error, kCode, "ends is NULL", "no ends");
  bad(tessera_batch_set_cu_seqlens(batch, -1, values, counts, 1, &error), &error, kCode, "side is -1", "no side");
  bad(tessera_batch_set_valid_tokens(NULL, 0, values, 1, &error), &error, kCode, "batch is NULL", "no batch");
  bad(tessera_batch_set_valid_tokens(batch, 0, NULL, 1, &error), &error, kCode, "tokens is NULL", "no tokens");
  bad(tessera_batch_set_valid_slots(NULL, values, 1, 16, &error), &error, kCode, "batch is NULL", "no batch");
  bad(tessera_batch_set_valid_slots(batch, NULL, 1, 16, &error), &error, kCode, "slots is NULL", "no slots");
  bad(tessera_batch_set_picks(NULL, values, shape, 4, 16, &error), &error, kCode, "batch is NULL", "no batch");
  bad(tessera_batch_set_picks(batch, NULL, shape, 4, 16, &error), &error, kCode, "blocks is NULL", "no blocks");
  bad(tessera_batch_set_picks(batch, values, NULL, 4, 16, &error), &error, kCode, "shape is NULL", "no shape");
  bad(tessera_batch_set_picks(batch, values, shape, 3, 16, &error), &error, kCode, "rank is 3", "another rank");
  bad(tessera_batch_set_picks(batch, values, huge, 4, 16, &error), &error, kCode, "memory", "picks too many");
  check(tessera_batch_set_picks(NULL, NULL, NULL, 0, 0, NULL) == 1, "all null");
  tessera_batch_free(batch);
}

/* Each struct that is read: of an older caller, of a newer one, of a wrong size. */
static void test_struct_sizes(void) {
  tessera_error* error = NULL;
  const Sizes sizes = small_sizes();
  tessera_engine* engine = make_engine();
  tessera_contract* contract = make_contract(&sizes);
  tessera_attention* made = NULL;
  tessera_attention_options options = tessera_attention_options_init();
  options.lane = "reference";
  options.isa = (const char*)&somewhere; /* beyond what this older caller's struct has */
  options.struct_size = offsetof(tessera_attention_options, isa);
  good(tessera_attention_new(engine, contract, NULL, &options, &made, &error), &error, "an older caller's options");
  tessera_attention_free(made);
  struct {
    tessera_attention_options known;
    int64_t unknown[2];
  } newer = {tessera_attention_options_init(), {0, 0}};
  newer.known.struct_size = sizeof(newer);
  good(tessera_attention_new(engine, contract, NULL, &newer.known, &made, &error), &error, "a newer caller's options");
  tessera_attention_free(made);
  newer.unknown[1] = 1;
  bad(tessera_attention_new(engine, contract, NULL, &newer.known, &made, &error), &error, kCode, "not zero",
      "a newer caller's wish");

  const size_t wrong_sizes[] = {0, 4, 12, 41, 100000, (size_t)-8};
  tessera_engine_options engine_options = tessera_engine_options_init();
  tessera_call_options call = tessera_call_options_init();
  tessera_args args = tessera_args_init();
  tessera_compile_request request = tessera_compile_request_init();
  tessera_export_options export_options = tessera_export_options_init();
  tessera_class_sizes class_sizes = tessera_class_sizes_init();
  tessera_array array = tessera_array_init();
  Inputs in = make_inputs(&sizes, BHTD, NULL);
  tessera_bound* bound = make_bound(&in, 0, BY_IDS);
  tessera_class* of = NULL;
  tessera_export* exported = NULL;
  tessera_engine* other = NULL;
  tessera_programs* programs = NULL;
  tessera_contract* causal = NULL;
  good(tessera_contract_parse("version = 1\n[shape]\nq_len = 512\ndim_qk = 8\n[mask]\nexpr = \"causal\"\n", NULL,
                              &causal, &error),
       &error, "a contract");
  good(tessera_class_new(contract, NULL, NULL, &of, &error), &error, "class_new");
  good(tessera_export_new(causal, NULL, NULL, &exported, &error), &error, "export_new");
  for (size_t i = 0; i < sizeof(wrong_sizes) / sizeof(wrong_sizes[0]); ++i) {
    const size_t wrong = wrong_sizes[i];
    tessera_export* none = NULL;
    options.struct_size = engine_options.struct_size = call.struct_size = args.struct_size = wrong;
    request.struct_size = export_options.struct_size = class_sizes.struct_size = array.struct_size = wrong;
    bad(tessera_attention_new(engine, contract, NULL, &options, &made, &error), &error, kCode, "options->struct_size",
        "");
    bad(tessera_engine_new(&engine_options, &other, &error), &error, kCode, "options->struct_size", "engine_options");
    bad(tessera_bound_forward(bound, &args, NULL, NULL, &error), &error, kCode, "args->struct_size", "args");
    bad(tessera_bound_forward(bound, &args, &call, NULL, &error), &error, kCode, "call->struct_size", "call");
    bad(tessera_lower(engine, &request, &programs, &error), &error, kCode, "request->struct_size", "request");
    bad(tessera_export_new(causal, NULL, &export_options, &none, &error), &error, kCode, "struct_size",
        "export_options");
    bad(tessera_class_get_sizes(of, &class_sizes, &error), &error, kCode, "sizes->struct_size", "class_sizes");
    bad(tessera_export_array(exported, 0, &array, &error), &error, kCode, "array->struct_size", "array");
  }
  array = tessera_array_init();
  bad(tessera_export_array(exported, 99, &array, &error), &error, kCode, "index is 99", "a hundredth array");
  check(made == NULL && other == NULL && programs == NULL, "nothing was made");
  tessera_contract_free(causal);
  tessera_export_free(exported);
  tessera_class_free(of);
  tessera_bound_free(bound);
  tessera_contract_free(contract);
  tessera_engine_free(engine);
  free_inputs(&in);
}

static void test_bad_options(void) {
  tessera_error* error = NULL;
  const Sizes sizes = small_sizes();
  tessera_engine* engine = make_engine();
  tessera_contract* contract = make_contract(&sizes);
  tessera_attention* made = NULL;
#define BAD(field, value, code, says)                                                               \
  do {                                                                                              \
    tessera_attention_options options = tessera_attention_options_init();                           \
    options.field = value;                                                                          \
    bad(tessera_attention_new(engine, contract, NULL, &options, &made, &error), &error, code, says, \
        "options." #field);                                                                         \
  } while (0)
  const char* const names[] = {"nonsense", NULL};
  BAD(lane, "gpu", "TSR-L001", "gpu");
  BAD(isa, "no_such", "TSR-L004", "scalar");
  BAD(num_exclude, 1, kCode, "options->exclude is NULL");
  BAD(strict, 2, kCode, "options->strict is 2");
  BAD(passes, 4, kCode, "options->passes is 4");
  BAD(passes, -1, kCode, "options->passes is -1");
  BAD(threads, -1, "TSR-R007", "threads");
  BAD(memory, 3, kCode, "options->memory is 3");
  BAD(ordinal, 1, kCode, "options->ordinal is 1");
  BAD(set_optimization, 2, kCode, "set_optimization");
  BAD(optimization, 2, kCode, "without options->set_optimization");
  BAD(forget_programs, 2, kCode, "forget_programs");
  BAD(experimental, 2, kCode, "experimental");
  BAD(widen_class, 7, kCode, "widen_class");
  BAD(verify_stages, 7, kCode, "verify_stages");
  BAD(num_disable, 1, kCode, "options->disable is NULL");
#undef BAD
  tessera_attention_options options = tessera_attention_options_init();
  options.disable = names;
  options.num_disable = 2;
  bad(tessera_attention_new(engine, contract, NULL, &options, &made, &error), &error, kCode, "[1]", "a null name");
  bad(tessera_attention_new(engine, contract, "pdp11", NULL, &made, &error), &error, "TSR-C008", "pdp11", "a target");
  check(made == NULL, "no attention after an error");

  /* A forced lane that cannot: refused before there is an input. */
  options = tessera_attention_options_init();
  options.lane = "cuda";
  good(tessera_attention_new(engine, contract, NULL, &options, &made, &error), &error, "a lane that is not built");
  bad(tessera_attention_check(made, &error), &error, "TSR-L002", "cuda", "is refused");
  tessera_attention_free(made);
  tessera_contract_free(contract);
  tessera_engine_free(engine);
}

static void test_bad_calls(void) {
  const Sizes sizes = small_sizes();
  Inputs in = make_inputs(&sizes, BHTD, NULL);
  Outputs out = make_outputs(&sizes, BHTD);
  tessera_bound* bound = make_bound(&in, TESSERA_FORWARD | TESSERA_BACKWARD, BY_IDS);
  tessera_error* error = NULL;
  tessera_receipt* receipt = NULL;
  tessera_args args = make_args(&in, &out);
  args.k.data = NULL;
  args.o.head_stride = -4;
  args.v.batch_stride = INT64_MAX;
  int status = tessera_bound_forward(bound, &args, NULL, &receipt, &error);
  const char* const fields[] = {"k:", "o:", "v:"};
  for (int i = 0; i < 3; ++i) check(strstr(tessera_error_text(error), fields[i]) != NULL, fields[i]);
  check(tessera_receipt_ok(receipt) == 0, "a failed call has a receipt that says so");
  check(strstr(tessera_receipt_json(receipt), "\"failed_at\": \"forward\"") != NULL, "and where it failed");
  check(strstr(tessera_receipt_json(receipt), "TSR-R001") != NULL, "and why");
  tessera_receipt_free(receipt);
  bad(status, &error, "TSR-R001", "", "bad tensors");
  args = make_args(&in, &out);
  args.lse = NULL;
  args.dv.token_stride = 1;
  args.dq.data = in.q.data;
  status = tessera_bound_backward(bound, &args, NULL, NULL, &error);
  check(strstr(tessera_error_text(error), "lse:") != NULL && strstr(tessera_error_text(error), "dv:") != NULL, "both");
  bad(status, &error, "TSR-R001", "shares some with q", "bad gradients");

  args = make_args(&in, &out);
  args.sink_logits = NULL;
  bad(tessera_bound_forward(bound, &args, NULL, NULL, &error), &error, "TSR-R001", "sink_logits", "no sinks");
  args = make_args(&in, &out);
  args.q.data = (char*)in.q.data + 1;
  bad(tessera_bound_forward(bound, &args, NULL, NULL, &error), &error, "TSR-R001", "multiple of 4", "alignment");
  args = make_args(&in, &out);
  args.q.dtype = TESSERA_DTYPE_BF16;
  bad(tessera_bound_forward(bound, &args, NULL, NULL, &error), &error, "TSR-R001", "BF16", "another dtype");
  args.q.dtype = 17;
  bad(tessera_bound_forward(bound, &args, NULL, &receipt, &error), &error, kCode, "args->q.dtype is 17", "no dtype");
  check(receipt == NULL, "no receipt of a call that was not one");
  args = make_args(&in, &out);
  args.v.memory = 9;
  bad(tessera_bound_forward(bound, &args, NULL, NULL, &error), &error, kCode, "args->v.memory is 9", "no memory");
  args.v.memory = TESSERA_MEMORY_GPU;
  args.v.ordinal = -1;
  bad(tessera_bound_forward(bound, &args, NULL, NULL, &error), &error, kCode, "args->v.ordinal is -1", "no device");
  args.v.ordinal = 0;
  bad(tessera_bound_forward(bound, &args, NULL, NULL, &error), &error, "TSR-R001", "gpu:0", "another memory");
  args = make_args(&in, &out);
  args.struct_size = 24;
  bad(tessera_bound_forward(bound, &args, NULL, NULL, &error), &error, "TSR-R001", "k:", "a struct too short");

  args = make_args(&in, &out);
  tessera_call_options call = tessera_call_options_init();
  call.digests = 5;
  bad(tessera_bound_forward(bound, &args, &call, NULL, &error), &error, kCode, "call->digests is 5", "a flag");
  call.digests = 0;
  call.stream = &somewhere;
  bad(tessera_bound_forward(bound, &args, &call, NULL, &error), &error, "TSR-R007", "stream", "a host lane's stream");
  call.stream = NULL;
  call.workspace = &somewhere;
  bad(tessera_bound_forward(bound, &args, &call, NULL, &error), &error, kCode, "call->workspace_bytes is 0", "no size");
  call.workspace_bytes = 1;
  bad(tessera_bound_forward(bound, &args, &call, NULL, &error), &error, "TSR-R001", "workspace", "too little room");
  call = tessera_call_options_init();
  call.image = &somewhere;
  bad(tessera_bound_forward(bound, &args, &call, NULL, &error), &error, kCode, "call->image_bytes is 0", "no size");
  call.image_bytes = 128;
  bad(tessera_bound_forward(bound, &args, &call, NULL, &error), &error, "TSR-R007", "no image of another expected",
      "a lane without images");
  call = tessera_call_options_init();
  call.workspace = &somewhere;
  call.workspace_bytes = 1;
  tessera_engine* engine = make_engine();
  tessera_contract* contract = make_contract(&sizes);
  tessera_batch* batch = make_batch(&in, BY_IDS);
  bad(tessera_run(engine, contract, batch, NULL, NULL, &args, &call, NULL, &error), &error, kCode, "workspace",
      "run's");
  call = tessera_call_options_init();
  call.image = &somewhere;
  call.image_bytes = 128;
  bad(tessera_run(engine, contract, batch, NULL, NULL, &args, &call, NULL, &error), &error, kCode, "image",
      "a run has no image");
  call = tessera_call_options_init();
  call.stream = &somewhere;
  bad(tessera_run(engine, contract, batch, NULL, NULL, &args, &call, NULL, &error), &error, kCode, "stream", "run's");
  tessera_attention_options options = tessera_attention_options_init();
  const char* exclude[] = {"cpu"};
  options.exclude = exclude;
  options.num_exclude = 1;
  options.strict = 1;
  bad(tessera_run(engine, contract, batch, NULL, &options, &args, NULL, &receipt, &error), &error, "TSR-L003", "cpu",
      "");
  check(strstr(tessera_receipt_json(receipt), "dispatch.excluded") != NULL, "the receipt says who was excluded");
  tessera_receipt_free(receipt);
  bad(tessera_run(engine, contract, NULL, NULL, NULL, &args, NULL, &receipt, &error), &error, "TSR-C007", "doc_ids",
      "no batch");
  check(strstr(tessera_receipt_json(receipt), "\"failed_at\": \"batch\"") != NULL, "the receipt says where");
  tessera_receipt_free(receipt);
  tessera_batch_free(batch);
  tessera_contract_free(contract);
  tessera_engine_free(engine);
  tessera_bound_free(bound);
  free_outputs(&out);
  free_inputs(&in);
}

void test_errors(void) {
  test_bad_text();
  test_null_makers();
  test_null_handles();
  test_batch_setters();
  test_struct_sizes();
  test_bad_options();
  test_bad_calls();
}
