/* The C interface beyond plain calls: batches from arrays, routed contracts, classes, compiling and exports. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

static tessera_contract* parse(const char* text) {
  tessera_contract* contract = NULL;
  tessera_error* error = NULL;
  good(tessera_contract_parse(text, NULL, &contract, &error), &error, "contract_parse");
  return contract;
}

static tessera_attention* prepare(const tessera_contract* contract) {
  tessera_engine* engine = make_engine();
  tessera_attention* attention = NULL;
  tessera_error* error = NULL;
  good(tessera_attention_new(engine, contract, NULL, NULL, &attention, &error), &error, "attention_new");
  tessera_engine_free(engine);
  return attention;
}

/* --- What a binding asks ---------------------------------------------------------------------------------------------
 */

static void test_shape(void) {
  tessera_error* error = NULL;
  tessera_contract* contract = parse(
      "version = 1\n[shape]\nbatch = 3\nq_len = 8\nkv_len = 12\nnum_q_heads = 4\nnum_kv_heads = 2\ndim_qk = 16\n"
      "dim_v = 24\ndtype = \"bf16\"\n[mask]\nexpr = \"causal\"\n[score]\nsink_logits = true\n");
  tessera_shape shape = tessera_shape_init();
  good(tessera_contract_shape(contract, &shape, &error), &error, "shape");
  check(shape.batch == 3 && shape.q_len == 8 && shape.kv_len == 12 && shape.num_q_heads == 4, "its sizes");
  check(shape.num_kv_heads == 2 && shape.dim_qk == 16 && shape.dim_v == 24, "and more");
  check(shape.dtype == TESSERA_DTYPE_BF16 && shape.sink_logits == 1, "dtype and sink logits");
  bad(tessera_contract_shape(NULL, &shape, &error), &error, "TSR-A001", "contract is NULL", "shape of null");
  bad(tessera_contract_shape(contract, NULL, &error), &error, "TSR-A001", "shape is NULL", "null shape");
  tessera_contract_free(contract);
}

static void test_plan_arrays(void) {
  tessera_error* error = NULL;
  tessera_contract* contract =
      parse("version = 1\n[shape]\nq_len = 1024\ndim_qk = 8\n[mask]\nexpr = \"causal and documents\"\n");
  tessera_attention* attention = prepare(contract);
  tessera_batch* batch = NULL;
  const int32_t lengths[2] = {300, 724};
  const int64_t count = 2;
  good(tessera_batch_new(&batch, &error), &error, "batch_new");
  good(tessera_batch_set_doc_lengths(batch, TESSERA_SIDE_BOTH, lengths, &count, 1, &error), &error, "lengths");
  tessera_plan* plan = NULL;
  good(tessera_attention_plan(attention, batch, NULL, NULL, &plan, &error), &error, "plan");
  size_t num_bytes = 0;
  const unsigned char* bytes = tessera_plan_bytes(plan, &num_bytes);
  const tessera_array none = tessera_array_init();
  tessera_array offsets = none, slots = none, segments = none;
  for (size_t i = 0; i < tessera_plan_num_arrays(plan); ++i) {
    tessera_array array = none;
    good(tessera_plan_array(plan, i, &array, &error), &error, "plan_array");
    const unsigned char* data = array.data;
    check(array.num_bytes == 0 || (data >= bytes && data + array.num_bytes <= bytes + num_bytes), "inside the plan");
    size_t elements = 1;
    for (int64_t axis = 0; axis < array.rank; ++axis) elements *= (size_t)array.shape[axis];
    const size_t width = strcmp(array.dtype, "U8") == 0 ? 1 : strcmp(array.dtype, "U64") == 0 ? 8 : 4;
    check(array.num_bytes == elements * width, array.name);
    if (strcmp(array.name, "forward.row_offsets") == 0) offsets = array;
    if (strcmp(array.name, "forward.slots") == 0) slots = array;
    if (strcmp(array.name, "q_segments") == 0) segments = array;
  }
  const uint64_t* rows = offsets.data;
  check(rows != NULL && rows[0] == 0 && (int64_t)rows[offsets.shape[0] - 1] == slots.shape[0],
        "rows end with the slots");
  check(segments.rank == 2 && segments.shape[0] == 2 && ((const int32_t*)segments.data)[1] == 300, "two documents");
  tessera_array array = none;
  bad(tessera_plan_array(plan, 99, &array, &error), &error, "TSR-A001", "index is 99", "beyond the last");
  bad(tessera_plan_array(NULL, 0, &array, &error), &error, "TSR-A001", "plan is NULL", "of null");
  check(tessera_plan_num_arrays(NULL) == 0, "a null plan has none");
  tessera_plan_free(plan);
  tessera_batch_free(batch);
  tessera_attention_free(attention);
  tessera_contract_free(contract);
}

/* --- Engines ------------------------------------------------------------------------------------------------------ */

static void test_engine_options(void) {
  const Sizes sizes = small_sizes();
  tessera_error* error = NULL;
  tessera_engine* engine = NULL;
  tessera_attention* attention = NULL;
  tessera_contract* contract = make_contract(&sizes);
  Inputs in = make_inputs(&sizes, BHTD, NULL);
  tessera_engine_options options = tessera_engine_options_init();
  options.lane = "reference";
  options.max_prepared = -1;
  good(tessera_engine_new(&options, &engine, &error), &error, "an engine with options");
  good(tessera_attention_new(engine, contract, NULL, NULL, &attention, &error), &error, "its attention");
  tessera_plan* plan = make_plan(attention, &in, BY_IDS);
  tessera_bound* bound = NULL;
  good(tessera_attention_bind(attention, plan, &bound, &error), &error, "bound");
  check(strcmp(tessera_bound_lane(bound), "reference") == 0, "the engine's lane");
  tessera_bound_free(bound);
  tessera_plan_free(plan);
  tessera_attention_free(attention);
  tessera_engine_free(engine);
  options.lane = "gpu";
  good(tessera_engine_new(&options, &engine, &error), &error, "an engine that no lane suits");
  bad(tessera_attention_new(engine, contract, NULL, NULL, &attention, &error), &error, "TSR-L001", "gpu", "says so");
  tessera_engine_free(engine);
  tessera_contract_free(contract);
  free_inputs(&in);
}

/* --- Batches ------------------------------------------------------------------------------------------------------ */

static const char* const kDocuments =
    "version = 1\n[shape]\nbatch = 2\nq_len = 8\ndim_qk = 4\n[mask]\nexpr = \"causal and documents\"\n"
    "[tiles]\nq = 4\nkv = 4\nreason = \"a small test\"\n";
static const char* const kAllTerms =
    "version = 1\n[shape]\nbatch = 2\nq_len = 8\ndim_qk = 4\n[mask]\nexpr = \"causal and valid and blocks\"\n"
    "[tiles]\nq = 4\nkv = 4\nreason = \"a small test\"\n";

/* A batch of arrays plans as the same batch of text. */
static void expect_same(const tessera_attention* attention, const tessera_batch* batch, const char* json) {
  tessera_batch* parsed = NULL;
  tessera_plan *plan = NULL, *want = NULL;
  tessera_error* error = NULL;
  good(tessera_batch_parse(json, &parsed, &error), &error, json);
  good(tessera_attention_plan(attention, parsed, NULL, NULL, &want, &error), &error, json);
  good(tessera_attention_plan(attention, batch, NULL, NULL, &plan, &error), &error, "from arrays");
  check(strcmp(tessera_plan_fingerprint(plan), tessera_plan_fingerprint(want)) == 0, json);
  tessera_plan_free(plan);
  tessera_plan_free(want);
  tessera_batch_free(parsed);
}

static void test_batches(void) {
  tessera_error* error = NULL;
  tessera_batch* batch = NULL;
  tessera_plan *plan = NULL, *before = NULL;
  tessera_contract* contract = parse(kDocuments);
  tessera_attention* attention = prepare(contract);
  const int32_t ids[16] = {0, 0, 0, 1, 1, 1, -1, -1, 5, 5, 5, 5, 5, 5, 5, 5}, others[16] = {0};
  const int32_t lengths[3] = {3, 3, 8}, ends[5] = {0, 3, 6, 0, 8};
  const int64_t num_lengths[2] = {2, 1}, num_ends[2] = {3, 2};
  const char* const json = "{\"doc_ids\": [[0, 0, 0, 1, 1, 1, -1, -1], [5, 5, 5, 5, 5, 5, 5, 5]]}";
  good(tessera_batch_new(&batch, &error), &error, "batch_new");
  good(tessera_batch_set_doc_ids(batch, TESSERA_SIDE_BOTH, ids, 2, 8, &error), &error, "ids");
  expect_same(attention, batch, json);
  /* A plan keeps what it was made of; a set after it is for the next. */
  good(tessera_attention_plan(attention, batch, NULL, NULL, &before, &error), &error, "a plan");
  good(tessera_batch_set_doc_ids(batch, TESSERA_SIDE_BOTH, others, 2, 8, &error), &error, "other ids");
  good(tessera_attention_plan(attention, batch, NULL, NULL, &plan, &error), &error, "another plan");
  check(strcmp(tessera_plan_fingerprint(plan), tessera_plan_fingerprint(before)) != 0, "another plan");
  tessera_plan_free(plan);
  tessera_plan_free(before);
  good(tessera_batch_set_doc_lengths(batch, TESSERA_SIDE_BOTH, lengths, num_lengths, 2, &error), &error, "lengths too");
  bad(tessera_attention_plan(attention, batch, NULL, NULL, &plan, &error), &error, "TSR-C007", "doc_lengths",
      "two forms");
  tessera_batch_free(batch);

  const char* const numbered = "{\"doc_ids\": [[0, 0, 0, 1, 1, 1, -1, -1], [0, 0, 0, 0, 0, 0, 0, 0]]}";
  good(tessera_batch_new(&batch, &error), &error, "batch_new");
  good(tessera_batch_set_doc_lengths(batch, TESSERA_SIDE_BOTH, lengths, num_lengths, 2, &error), &error, "lengths");
  expect_same(attention, batch, numbered);
  tessera_batch_free(batch);
  good(tessera_batch_new(&batch, &error), &error, "batch_new");
  good(tessera_batch_set_cu_seqlens(batch, TESSERA_SIDE_Q, ends, num_ends, 2, &error), &error, "ends of queries");
  bad(tessera_attention_plan(attention, batch, NULL, NULL, &plan, &error), &error, "TSR-C007", "kv_", "half of a pair");
  good(tessera_batch_set_doc_lengths(batch, TESSERA_SIDE_KV, lengths, num_lengths, 2, &error), &error, "and of keys");
  expect_same(attention, batch, numbered);
  const int32_t too_long[3] = {3, 6, 8}, no_zero[5] = {1, 3, 6, 0, 8}, falling[5] = {0, 6, 3, 0, 8};
  good(tessera_batch_set_doc_lengths(batch, TESSERA_SIDE_KV, too_long, num_lengths, 2, &error), &error, "too long");
  bad(tessera_attention_plan(attention, batch, NULL, NULL, &plan, &error), &error, "TSR-C007", "kv_doc_lengths[0]", "");
  good(tessera_batch_set_doc_lengths(batch, TESSERA_SIDE_KV, lengths, num_lengths, 1, &error), &error, "one row");
  bad(tessera_attention_plan(attention, batch, NULL, NULL, &plan, &error), &error, "TSR-C007", "kv_doc_lengths",
      "rows");
  good(tessera_batch_set_doc_lengths(batch, TESSERA_SIDE_KV, lengths, num_lengths, 2, &error), &error, "as before");
  good(tessera_batch_set_cu_seqlens(batch, TESSERA_SIDE_Q, no_zero, num_ends, 2, &error), &error, "no zero");
  bad(tessera_attention_plan(attention, batch, NULL, NULL, &plan, &error), &error, "TSR-C007", "q_cu_seqlens[0]",
      "zero");
  good(tessera_batch_set_cu_seqlens(batch, TESSERA_SIDE_Q, falling, num_ends, 2, &error), &error, "falling");
  bad(tessera_attention_plan(attention, batch, NULL, NULL, &plan, &error), &error, "TSR-C007", "q_cu_seqlens[0]",
      "fall");
  check(plan == NULL, "no plan after an error");
  tessera_batch_free(batch);
  tessera_attention_free(attention);
  tessera_contract_free(contract);

  contract = parse(kAllTerms);
  attention = prepare(contract);
  const int32_t valid[2] = {7, 0}, slots[2] = {3, 2}, picks[8] = {0, 1, 1, -1, 0, -1, 0, 1};
  const int64_t shape[4] = {2, 2, 1, 2};
  good(tessera_batch_new(&batch, &error), &error, "batch_new");
  good(tessera_batch_set_picks(batch, picks, shape, 4, 4, &error), &error, "picks");
  good(tessera_batch_set_valid_slots(batch, slots, 2, 2, &error), &error, "valid slots");
  expect_same(attention, batch,
              "{\"valid_slots\": [3, 2], \"base_block_tokens\": 2, \"picks\": {\"block_tokens\": 4, \"blocks\": "
              "[[[[0, 1]], [[1, -1]]], [[[0, -1]], [[0, 1]]]]}}");
  tessera_batch_free(batch);
  good(tessera_batch_new(&batch, &error), &error, "batch_new");
  good(tessera_batch_set_picks(batch, picks, shape, 4, 4, &error), &error, "picks");
  good(tessera_batch_set_valid_tokens(batch, TESSERA_SIDE_BOTH, valid, 2, &error), &error, "valid tokens");
  expect_same(attention, batch,
              "{\"valid_tokens\": [7, 0], \"picks\": {\"block_tokens\": 4, \"blocks\": "
              "[[[[0, 1]], [[1, -1]]], [[[0, -1]], [[0, 1]]]]}}");
  tessera_batch_free(batch);
  tessera_attention_free(attention);
  tessera_contract_free(contract);
}

/* --- Routed contracts --------------------------------------------------------------------------------------------- */

/* The page of a routed plan, with the scores of its picks where q and k are given. */
static void test_view(const tessera_attention* attention, const tessera_plan* plan, const tessera_tensor* q,
                      const tessera_tensor* k) {
  tessera_error* error = NULL;
  char* html = NULL;
  tessera_view_options options = tessera_view_options_init();
  bad(tessera_view_html(NULL, &html, &error), &error, "TSR-A001", "options is NULL", "no options");
  bad(tessera_view_html(&options, NULL, &error), &error, "TSR-A001", "html is NULL", "nowhere to write");
  bad(tessera_view_html(&options, &html, &error), &error, "TSR-A001", "options->attention is NULL", "no attention");
  options.attention = attention;
  bad(tessera_view_html(&options, &html, &error), &error, "TSR-A001", "options->plan is NULL", "no plan");
  options.plan = plan;
  good(tessera_view_html(&options, &html, &error), &error, "a page");
  check(strstr(html, "<!doctype html>") == html && strstr(html, tessera_plan_fingerprint(plan)) != NULL, "of the plan");
  check(strstr(html, "\"picks\":null") != NULL, "without picks");
  tessera_string_free(html);
  options.q = q;
  options.k = k;
  options.other_plan = plan;
  options.other_name = "again";
  bad(tessera_view_html(&options, &html, &error), &error, "TSR-A001", "other_attention is NULL", "a plan alone");
  options.other_attention = attention;
  good(tessera_view_html(&options, &html, &error), &error, "two plans");
  check(strstr(html, "plan and again") != NULL && strstr(html, "\"picks\":{\"block_tokens\":16") != NULL, "and picks");
  tessera_string_free(html);
  tessera_contract* other = parse("version = 1\n[shape]\nq_len = 64\ndim_qk = 8\n[mask]\nexpr = \"causal\"\n");
  tessera_attention* stranger = prepare(other);
  options.attention = stranger;
  bad(tessera_view_html(&options, &html, &error), &error, "TSR-P007", "", "a plan of another contract");
  check(html == NULL, "no page after an error");
  tessera_attention_free(stranger);
  tessera_contract_free(other);
}

static void test_routed(void) {
  enum { LEN = 64, DIM = 8 };
  static float q[LEN][DIM], k[LEN][DIM], v[LEN][DIM], o[LEN][DIM], again[LEN][DIM], lse[LEN];
  for (int i = 0; i < LEN; ++i)
    for (int d = 0; d < DIM; ++d) {
      q[i][d] = random_float();
      k[i][d] = random_float();
      v[i][d] = random_float();
    }
  tessera_error* error = NULL;
  tessera_contract* contract = parse(
      "version = 1\n[shape]\nq_len = 64\ndim_qk = 8\n[mask]\nexpr = \"causal and blocks\"\n"
      "[tiles]\nq = 16\nkv = 16\nreason = \"a small test\"\n"
      "[routing]\nquery_tile = 16\nkv_tile = 32\nselected_block = 16\nblock_stride = 8\ncompression_block = 16\n"
      "top_n = 4\n");
  tessera_attention* attention = prepare(contract);
  tessera_plan* plan = NULL;
  tessera_bound* bound = NULL;
  const tessera_tensor q_ref = tessera_tensor_bhtd(q, 1, LEN, DIM), k_ref = tessera_tensor_bthd(k, 1, LEN, DIM);
  bad(tessera_attention_plan(attention, NULL, NULL, NULL, &plan, &error), &error, "TSR-P009", "", "no q and k");
  bad(tessera_attention_plan(attention, NULL, &q_ref, NULL, &plan, &error), &error, "TSR-P009", "", "no k");
  good(tessera_attention_plan(attention, NULL, &q_ref, &k_ref, &plan, &error), &error, "routed");
  good(tessera_attention_bind(attention, plan, &bound, &error), &error, "bind");
  test_view(attention, plan, &q_ref, &k_ref);
  tessera_args args = tessera_args_init();
  args.q = q_ref;
  args.k = k_ref;
  args.v = tessera_tensor_bhtd(v, 1, LEN, DIM);
  args.o = tessera_tensor_bhtd(o, 1, LEN, DIM);
  args.lse = lse;
  good(tessera_bound_forward(bound, &args, NULL, NULL, &error), &error, "forward");
  /* Four blocks of sixteen are all there are: routed attention is causal attention then. */
  int num_wrong = 0;
  for (int i = 0; i < LEN; ++i) {
    double sum = 0, want[DIM] = {0};
    for (int j = 0; j <= i; ++j) {
      double score = 0;
      for (int d = 0; d < DIM; ++d) score += (double)q[i][d] * (double)k[j][d];
      const double e = exp(score / sqrt(DIM));
      sum += e;
      for (int d = 0; d < DIM; ++d) want[d] += e * (double)v[j][d];
    }
    for (int d = 0; d < DIM; ++d) num_wrong += fabs(want[d] / sum - (double)o[i][d]) > 4e-6;
  }
  check(num_wrong == 0, "routed numbers");
  tessera_engine* engine = make_engine();
  args.o = tessera_tensor_bhtd(again, 1, LEN, DIM);
  good(tessera_run(engine, contract, NULL, NULL, NULL, &args, NULL, NULL, &error), &error, "routed in one go");
  check(memcmp(o, again, sizeof(o)) == 0, "the same bits");

  /* Programs of a routed contract need q and k too. */
  tessera_programs* programs = NULL;
  tessera_attention_options options = tessera_attention_options_init();
  options.lane = "xla_chunked";
  tessera_compile_request request = tessera_compile_request_init();
  request.contract = contract;
  request.options = &options;
  bad(tessera_lower(engine, &request, &programs, &error), &error, "TSR-R001", "", "no q and k");
  request.q = &q_ref;
  request.k = &k_ref;
  good(tessera_lower(engine, &request, &programs, &error), &error, "routed programs");
  check(tessera_programs_count(programs) == 1, "a forward");
  tessera_programs_free(programs);
  tessera_tensor elsewhere = q_ref;
  elsewhere.memory = TESSERA_MEMORY_GPU;
  request.q = &elsewhere;
  bad(tessera_lower(engine, &request, &programs, &error), &error, "TSR-A001", "host", "q elsewhere");
  tessera_engine_free(engine);
  tessera_bound_free(bound);
  tessera_plan_free(plan);
  tessera_attention_free(attention);
  tessera_contract_free(contract);
}

/* --- Classes ------------------------------------------------------------------------------------------------------ */

/* The request run on padded memory gives the request's own numbers. */
static void test_class(void) {
  const Sizes sizes = {2, 29, 3, 1, 8, 8, 9};
  tessera_error* error = NULL;
  Inputs in = make_inputs(&sizes, BHTD, NULL);
  Answer want = attend(&in);
  tessera_contract* contract = make_contract(&sizes);
  tessera_batch* batch = make_batch(&in, BY_LENGTHS);
  tessera_class* of = NULL;
  good(tessera_class_new(contract, NULL, NULL, &of, &error), &error, "class_new");
  tessera_class_sizes at_class = tessera_class_sizes_init();
  good(tessera_class_get_sizes(of, &at_class, &error), &error, "sizes");
  check(strlen(tessera_class_key(of)) == 32, "a class has a key");
  check(at_class.q_len == 32 && at_class.kv_len == 32 && at_class.batch == 2, "sizes are rounded up");
  check(at_class.class_slots >= at_class.exact_slots && at_class.exact_slots > 0, "and cost slots");
  check(tessera_class_head(of, 0) == 0 && tessera_class_head(of, 3) == -1, "heads");
  const Sizes padded = {at_class.batch,  at_class.q_len, at_class.num_q_heads, at_class.num_kv_heads,
                        at_class.dim_qk, at_class.dim_v, sizes.window};
  tessera_contract* padded_contract = NULL;
  tessera_batch* padded_batch = NULL;
  good(tessera_class_contract(of, &padded_contract, &error), &error, "padded contract");
  bad(tessera_class_batch(of, NULL, &padded_batch, &error), &error, "TSR-C007", "doc_ids", "no batch");
  good(tessera_class_batch(of, batch, &padded_batch, &error), &error, "padded batch");
  Inputs wide = make_inputs(&padded, BHTD, NULL);
  Outputs out = make_outputs(&padded, BHTD);
  for (int64_t b = 0; b < sizes.batch; ++b)
    for (int64_t h = 0; h < sizes.q_heads; ++h)
      for (int64_t i = 0; i < sizes.len; ++i)
        memcpy(at(&wide.q, b, tessera_class_head(of, h), i), at(&in.q, b, h, i), (size_t)sizes.dim_qk * sizeof(float));
  for (int64_t b = 0; b < sizes.batch; ++b)
    for (int64_t i = 0; i < sizes.len; ++i) {
      memcpy(at(&wide.k, b, 0, i), at(&in.k, b, 0, i), (size_t)sizes.dim_qk * sizeof(float));
      memcpy(at(&wide.v, b, 0, i), at(&in.v, b, 0, i), (size_t)sizes.dim_v * sizeof(float));
    }
  for (int64_t h = 0; h < sizes.q_heads; ++h) wide.sink_logits[tessera_class_head(of, h)] = in.sink_logits[h];
  tessera_engine* engine = make_engine();
  tessera_args args = make_args(&wide, &out);
  good(tessera_run(engine, padded_contract, padded_batch, NULL, NULL, &args, NULL, NULL, &error), &error, "at class");
  int num_wrong = 0;
  for (int64_t b = 0; b < sizes.batch; ++b)
    for (int64_t h = 0; h < sizes.q_heads; ++h)
      for (int64_t i = 0; i < sizes.len; ++i)
        for (int64_t d = 0; d < sizes.dim_v; ++d) {
          const double expected = want.o[((b * sizes.q_heads + h) * sizes.len + i) * sizes.dim_v + d];
          num_wrong += fabs((double)at(&out.o, b, tessera_class_head(of, h), i)[d] - expected) > 4e-6;
        }
  check(num_wrong == 0, "numbers at class");
  tessera_contract* huge = parse("version = 1\n[shape]\nq_len = 2000000\ndim_qk = 8\n[mask]\nexpr = \"causal\"\n");
  tessera_class* none = NULL;
  bad(tessera_class_new(huge, NULL, NULL, &none, &error), &error, "TSR-L007", "", "beyond every class");
  bad(tessera_class_new(contract, "pdp11", NULL, &none, &error), &error, "TSR-C008", "pdp11", "a target");
  check(none == NULL, "no class after an error");
  tessera_contract_free(huge);
  tessera_engine_free(engine);
  free_outputs(&out);
  free_inputs(&wide);
  tessera_batch_free(padded_batch);
  tessera_contract_free(padded_contract);
  tessera_class_free(of);
  tessera_batch_free(batch);
  tessera_contract_free(contract);
  free_answer(&want);
  free_inputs(&in);
}

/* What the two programs take: the caller's tensors first, tables with their data. */
static void test_operands(const tessera_programs* programs) {
  tessera_error* error = NULL;
  const char* source = NULL;
  tessera_array array = tessera_array_init();
  int tables = 0;
  for (size_t index = 0; index < 2; ++index) {
    const size_t count = tessera_programs_num_operands(programs, index);
    check(count > 3 && tessera_programs_num_results(programs, index) > 1, "operands and results");
    for (size_t i = 0; i < count; ++i) {
      good(tessera_programs_operand(programs, index, i, &source, &array, &error), &error, "an operand");
      tables += strcmp(source, "plan") == 0;
      check((array.data == NULL) ==
                (strcmp(source, "caller") == 0 || strcmp(source, "forward") == 0 || strcmp(source, "part") == 0),
            "data where no call brings it");
      if (i == 0) check(strcmp(array.name, "q") == 0 && array.rank == 4 && array.shape[2] == 512, "q is the first");
    }
    good(tessera_programs_result(programs, index, 0, &array, &error), &error, "a result");
    check(strcmp(array.name, index == 0 ? "o" : "dq") == 0, "and its name");
    bad(tessera_programs_operand(programs, index, count, &source, &array, &error), &error, "TSR-A001", "no operand",
        "");
  }
  check(tables > 2, "tables of the plan");
  check(tessera_programs_num_operands(programs, 2) == 0 && tessera_programs_num_results(NULL, 0) == 0, "none there");
  bad(tessera_programs_result(programs, 2, 0, &array, &error), &error, "TSR-A001", "no result 0 of program 2", "");
  bad(tessera_programs_operand(NULL, 0, 0, NULL, &array, &error), &error, "TSR-A001", "programs is NULL", "");
  bad(tessera_programs_result(programs, 0, 0, NULL, &error), &error, "TSR-A001", "array is NULL", "");
}

/* --- Compiling ---------------------------------------------------------------------------------------------------- */

static void test_compile(void) {
  tessera_error* error = NULL;
  tessera_receipt* receipt = NULL;
  tessera_programs* programs = NULL;
  tessera_engine* engine = NULL;
  tessera_engine_options none = tessera_engine_options_init(); /* no folder: no plugin is found */
  good(tessera_engine_new(&none, &engine, &error), &error, "an engine without plugins");
  tessera_contract* contract = parse("version = 1\n[shape]\nq_len = 512\ndim_qk = 8\n[mask]\nexpr = \"causal\"\n");
  tessera_attention_options options = tessera_attention_options_init();
  options.passes = TESSERA_FORWARD | TESSERA_BACKWARD;
  options.lane = "xla_chunked";
  tessera_compile_request request = tessera_compile_request_init();
  bad(tessera_lower(engine, &request, &programs, &error), &error, "TSR-A001", "request->contract", "no contract");
  request.contract = contract;
  request.options = &options;
  good(tessera_lower(engine, &request, &programs, &error), &error, "lower");
  check(tessera_programs_count(programs) == 2, "a forward and a backward");
  check(strstr(tessera_programs_text(programs, 0), "stablehlo.") != NULL, "a text");
  check(strstr(tessera_programs_name(programs, 1), "backward") != NULL, "a name");
  check(strcmp(tessera_programs_text(programs, 2), "") == 0, "and no third");
  test_operands(programs);
  tessera_programs_free(programs);
  check(tessera_compile(engine, &request, &receipt, &error) == 1, "no plugin, no program");
  check(tessera_receipt_ok(receipt) == 0 && strstr(tessera_receipt_json(receipt), "compile_only") != NULL,
        "the receipt");
  check(strstr(tessera_error_code(error), "TSR-L") != NULL, "and the error say so");
  tessera_error_free(error);
  tessera_receipt_free(receipt);
  options.lane = "cpu";
  bad(tessera_lower(engine, &request, &programs, &error), &error, "TSR-L002", "no programs", "a lane without programs");
  request.target = "pdp11";
  bad(tessera_lower(engine, &request, &programs, &error), &error, "TSR-C008", "pdp11", "a target");
  check(programs == NULL, "no programs after an error");
  tessera_contract_free(contract);
  tessera_engine_free(engine);
}

/* --- Exports ------------------------------------------------------------------------------------------------------ */

static void test_export(void) {
  tessera_error* error = NULL;
  tessera_export* exported = NULL;
  char* json = NULL;
  tessera_contract* contract =
      parse("version = 1\n[shape]\nq_len = 512\ndim_qk = 8\n[mask]\nexpr = \"causal and documents\"\n");
  tessera_batch* batch = NULL;
  const int32_t lengths[2] = {300, 212};
  const int64_t count = 2;
  good(tessera_batch_new(&batch, &error), &error, "batch_new");
  good(tessera_batch_set_doc_lengths(batch, TESSERA_SIDE_BOTH, lengths, &count, 1, &error), &error, "lengths");
  tessera_export_options options = tessera_export_options_init();
  const char* const libraries[] = {"splash", "tokamax", "flex", "pallas"};
  for (int i = 0; i < 4; ++i) {
    options.library = libraries[i];
    good(tessera_export_new(contract, batch, &options, &exported, &error), &error, libraries[i]);
    good(tessera_export_json(exported, &json, &error), &error, "json");
    char word[32];
    snprintf(word, sizeof(word), "\"library\": \"%s\"", libraries[i]);
    check(strstr(json, word) != NULL, "the library's name");
    tessera_string_free(json);
    size_t num_present = 0;
    for (size_t a = 0; a < tessera_export_num_arrays(exported); ++a) {
      tessera_array array = tessera_array_init();
      good(tessera_export_array(exported, a, &array, &error), &error, "array");
      if (array.data == NULL) continue;
      ++num_present;
      size_t elements = 1;
      for (int64_t axis = 0; axis < array.rank; ++axis) elements *= (size_t)array.shape[axis];
      check(strlen(array.name) > 0 && strlen(array.dtype) > 0, "an array has a name and a dtype");
      check(elements == 0 || array.num_bytes % elements == 0, "and as many bytes as its shape says");
    }
    check(num_present > 1, "arrays");
    tessera_export_free(exported);
  }
  /* Run-time segment ids of the batch come last. */
  options.library = NULL;
  good(tessera_export_new(contract, batch, &options, &exported, &error), &error, "splash by default");
  tessera_array last = tessera_array_init();
  good(tessera_export_array(exported, tessera_export_num_arrays(exported) - 1, &last, &error), &error,
       "the last array");
  check(strcmp(last.name, "kv_segment_ids") == 0 && last.rank == 2 && last.shape[1] == 512, "segment ids");
  check(strcmp(last.dtype, "I32") == 0 && last.num_bytes == 512 * sizeof(int32_t), "as int32");
  const int32_t* segments = last.data;
  check(segments != NULL && segments[299] != segments[300] && segments[300] == segments[511], "by document");
  tessera_array older = {offsetof(tessera_array, rank), NULL, NULL, NULL, -1, NULL, 0};
  good(tessera_export_array(exported, 0, &older, &error), &error, "an older caller's array");
  check(older.rank == -1 && older.name != NULL, "is written no further than it goes");
  tessera_export_free(exported);

#define BAD(field, value, code, says)                                                                           \
  do {                                                                                                          \
    tessera_export_options wrong = tessera_export_options_init();                                               \
    wrong.field = value;                                                                                        \
    bad(tessera_export_new(contract, batch, &wrong, &exported, &error), &error, code, says, "options." #field); \
  } while (0)
  BAD(direction, 3, "TSR-A001", "options->direction is 3");
  BAD(store_tiles, 2, "TSR-A001", "store_tiles");
  BAD(segments, 3, "TSR-A001", "options->segments is 3");
  BAD(fixed_shapes, 2, "TSR-A001", "fixed_shapes");
  BAD(widen_class, 2, "TSR-A001", "widen_class");
  BAD(head_shards, -1, "TSR-A001", "head_shards");
  BAD(q_shards, -1, "TSR-A001", "q_shards");
  BAD(kv_shards, -1, "TSR-A001", "kv_shards");
  BAD(keep_empty, 2, "TSR-A001", "keep_empty");
  BAD(dynamic_grid, 2, "TSR-A001", "dynamic_grid");
  BAD(set_row, 2, "TSR-A001", "set_row");
  BAD(row, 1, "TSR-A001", "without options->set_row");
#undef BAD
  options.library = "xformers";
  check(tessera_export_new(contract, batch, &options, &exported, &error) == 1, "a library nobody knows");
  check(strstr(tessera_error_text(error), "xformers") != NULL && exported == NULL, "is named");
  tessera_error_free(error);
  tessera_batch_free(batch);
  tessera_contract_free(contract);
}

void test_more(void) {
  test_shape();
  test_plan_arrays();
  test_engine_options();
  test_batches();
  test_routed();
  test_class();
  test_compile();
  test_export();
}
