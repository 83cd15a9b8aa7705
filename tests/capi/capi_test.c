/* The C interface from C: numbers on strided memory in several layouts, errors, struct sizes, plans as bytes, receipts
 * and threads. Compiled as C11 and linked like any C program. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "naive.h"
#include "tessera/tessera.h"

static int num_failed = 0;

static int check(int holds, const char* what) {
  if (holds) return 1;
  fprintf(stderr, "failed: %s\n", what);
  ++num_failed;
  return 0;
}

/* Checks that a call was good; shows and frees its error. The error comes by address: a call's arguments are evaluated
 * in any order, so its value may still be the old one. */
static int good(int status, tessera_error** left, const char* what) {
  tessera_error* error = *left;
  if (status != 0 || error != NULL) fprintf(stderr, "%s: %s\n", what, tessera_error_text(error));
  tessera_error_free(error);
  return check(status == 0 && error == NULL, what);
}

/* Checks that a call failed with this code, and with text that holds `says`. */
static void bad(int status, tessera_error** left, const char* code, const char* says, const char* what) {
  tessera_error* error = *left;
  const int holds = status == 1 && error != NULL && strcmp(tessera_error_code(error), code) == 0 &&
                    strstr(tessera_error_text(error), says) != NULL;
  if (!holds) fprintf(stderr, "%s: expected %s \"%s\", got: %s\n", what, code, says, tessera_error_text(error));
  check(holds, what);
  check(error == NULL || strlen(tessera_error_meaning(error)) > 10, "an error has its code's meaning");
  tessera_error_free(error);
}

/* --- What the tests run on ---------------------------------------------------------------------------------------- */

static const char* const kContract =
    "version = 1\n[shape]\nbatch = 2\nq_len = 29\nnum_q_heads = 4\nnum_kv_heads = 2\ndim_qk = 8\ndim_v = 6\n"
    "dtype = \"f32\"\n[mask]\nexpr = \"causal and window(9, 0) and documents\"\n"
    "[score]\nscale = 0.4\nsoftcap = 5.0\nsink_logits = true\n"
    "[tiles]\nq = 8\nkv = 8\nreason = \"a small test\"\n";

typedef enum { BHTD, BTHD, PADDED, NUM_LAYOUTS } Layout;
static const char* const kLayouts[] = {"[B,H,T,D]", "[B,T,H,D]", "padded"};

static const float kUntouched = 12345.0f;

static Tensor make_tensor(Layout layout, int64_t heads, int64_t dim) {
  Tensor t = {NULL, 0, heads, dim, heads * LEN * dim, LEN * dim, dim};
  if (layout == BTHD) {
    t.head_stride = dim;
    t.token_stride = heads * dim;
  }
  if (layout == PADDED) {
    t.token_stride = dim + 3;
    t.head_stride = LEN * t.token_stride + 5;
    t.batch_stride = heads * t.head_stride + 7;
  }
  t.num = (size_t)(BATCH * t.batch_stride);
  t.data = malloc(t.num * sizeof(float));
  for (size_t i = 0; i < t.num; ++i) t.data[i] = kUntouched;
  return t;
}

static uint64_t random_state = 1;
static float random_float(void) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (float)((double)(random_state >> 40) / (double)(1 << 23) - 1.0);
}

static void fill(Tensor* t, const Tensor* values) {
  for (int64_t b = 0; b < BATCH; ++b)
    for (int64_t h = 0; h < t->heads; ++h)
      for (int64_t i = 0; i < LEN; ++i)
        for (int64_t d = 0; d < t->dim; ++d)
          at(t, b, h, i)[d] = values != NULL ? at(values, b, h, i)[d] : random_float();
}

static Tensor copy_tensor(const Tensor* from, Layout layout) {
  Tensor t = make_tensor(layout, from->heads, from->dim);
  fill(&t, from);
  return t;
}

static Inputs make_inputs(void) {
  Inputs in;
  in.q = make_tensor(BHTD, Q_HEADS, DIM_QK);
  in.k = make_tensor(BHTD, KV_HEADS, DIM_QK);
  in.v = make_tensor(BHTD, KV_HEADS, DIM_V);
  in.dout = make_tensor(BHTD, Q_HEADS, DIM_V);
  fill(&in.q, NULL);
  fill(&in.k, NULL);
  fill(&in.v, NULL);
  fill(&in.dout, NULL);
  for (int h = 0; h < Q_HEADS; ++h) in.sink_logits[h] = random_float();
  /* Two documents and three tokens of padding, whose rows see nothing. */
  for (int b = 0; b < BATCH; ++b)
    for (int i = 0; i < LEN; ++i) in.doc_ids[b][i] = i >= LEN - 3 ? -1 : i < 7 + 6 * b ? 0 : 1;
  return in;
}

static void free_inputs(Inputs* in) {
  free(in->q.data);
  free(in->k.data);
  free(in->v.data);
  free(in->dout.data);
}

static tessera_batch* make_batch(const Inputs* in) {
  char json[4096] = "{\"doc_ids\": [";
  for (int b = 0; b < BATCH; ++b) {
    strcat(json, b > 0 ? ", [" : "[");
    for (int i = 0; i < LEN; ++i) {
      char number[16];
      snprintf(number, sizeof(number), "%s%d", i > 0 ? ", " : "", (int)in->doc_ids[b][i]);
      strcat(json, number);
    }
    strcat(json, "]");
  }
  strcat(json, "]}");
  tessera_batch* batch = NULL;
  tessera_error* error = NULL;
  good(tessera_batch_parse(json, &batch, &error), &error, "batch_parse");
  return batch;
}

/* A plan whose contract and batch are freed before it is used. */
static tessera_plan* make_plan(const Inputs* in) {
  tessera_contract* contract = NULL;
  tessera_plan* plan = NULL;
  tessera_error* error = NULL;
  good(tessera_contract_parse(kContract, NULL, &contract, &error), &error, "contract_parse");
  tessera_batch* batch = make_batch(in);
  good(tessera_plan_make(contract, batch, "cpu", NULL, &plan, &error), &error, "plan_make");
  tessera_contract_free(contract);
  tessera_batch_free(batch);
  return plan;
}

/* --- Runs and their numbers --------------------------------------------------------------------------------------- */

typedef struct {
  Tensor o, dq, dk, dv;
  float lse[BATCH][Q_HEADS][LEN], max[BATCH][Q_HEADS][LEN], dsink_logits[Q_HEADS];
} Outputs;

static Outputs make_outputs(Layout layout) {
  Outputs out;
  memset(&out, 0, sizeof(out));
  out.o = make_tensor(layout, Q_HEADS, DIM_V);
  out.dq = make_tensor(layout, Q_HEADS, DIM_QK);
  out.dk = make_tensor(layout, KV_HEADS, DIM_QK);
  out.dv = make_tensor(layout, KV_HEADS, DIM_V);
  return out;
}

static void free_outputs(Outputs* out) {
  free(out->o.data);
  free(out->dq.data);
  free(out->dk.data);
  free(out->dv.data);
}

static tessera_tensor ref(const Tensor* t) {
  tessera_tensor out = {t->data, TESSERA_DTYPE_CONTRACT, t->batch_stride, t->head_stride, t->token_stride};
  return out;
}

static tessera_run_args make_args(Inputs* in, Outputs* out) {
  tessera_run_args args = tessera_run_args_init();
  args.q = ref(&in->q);
  args.k = ref(&in->k);
  args.v = ref(&in->v);
  args.dout = ref(&in->dout);
  args.sink_logits = in->sink_logits;
  args.o = ref(&out->o);
  args.lse = &out->lse[0][0][0];
  args.row_max = &out->max[0][0][0];
  args.dq = ref(&out->dq);
  args.dk = ref(&out->dk);
  args.dv = ref(&out->dv);
  args.dsink_logits = out->dsink_logits;
  return args;
}

/* f32 results of double arithmetic on values of about 1; the backward starts from a rounded lse and o. */
static int is_close(double got, double want) { return got == want || fabs(got - want) <= 4e-6 * (1.0 + fabs(want)); }

static void compare(const Tensor* got, const double* want, const char* name, const char* layout) {
  char what[64];
  int num_wrong = 0;
  for (int64_t b = 0; b < BATCH; ++b)
    for (int64_t h = 0; h < got->heads; ++h)
      for (int64_t i = 0; i < LEN; ++i)
        for (int64_t d = 0; d < got->dim; ++d)
          num_wrong += !is_close(at(got, b, h, i)[d], want[((b * got->heads + h) * LEN + i) * got->dim + d]);
  snprintf(what, sizeof(what), "%s %s: %d wrong values", name, layout, num_wrong);
  check(num_wrong == 0, what);
  /* What lies between the rows is the caller's. */
  size_t num_untouched = 0;
  for (size_t i = 0; i < got->num; ++i) num_untouched += got->data[i] == kUntouched;
  snprintf(what, sizeof(what), "%s %s: padding untouched", name, layout);
  check(num_untouched == got->num - (size_t)(BATCH * got->heads * LEN * got->dim), what);
}

static void compare_floats(const float* got, const double* want, int num, const char* name, const char* layout) {
  char what[64];
  int num_wrong = 0;
  for (int i = 0; i < num; ++i) num_wrong += !is_close(got[i], want[i]);
  snprintf(what, sizeof(what), "%s %s: %d wrong values", name, layout, num_wrong);
  check(num_wrong == 0, what);
}

static void compare_all(const Outputs* out, const Answer* want, const char* layout) {
  compare(&out->o, &want->o[0][0][0][0], "o", layout);
  compare(&out->dq, &want->dq[0][0][0][0], "dq", layout);
  compare(&out->dk, &want->dk[0][0][0][0], "dk", layout);
  compare(&out->dv, &want->dv[0][0][0][0], "dv", layout);
  compare_floats(&out->lse[0][0][0], &want->lse[0][0][0], BATCH * Q_HEADS * LEN, "lse", layout);
  compare_floats(&out->max[0][0][0], &want->max[0][0][0], BATCH * Q_HEADS * LEN, "max", layout);
  compare_floats(out->dsink_logits, want->dsink_logits, Q_HEADS, "dsink_logits", layout);
}

static void test_numbers(Layout layout) {
  Inputs dense = make_inputs();
  Answer* want = malloc(sizeof(Answer));
  attend(&dense, want);
  tessera_plan* plan = make_plan(&dense);
  Inputs in = dense;
  in.q = copy_tensor(&dense.q, layout);
  in.k = copy_tensor(&dense.k, layout);
  in.v = copy_tensor(&dense.v, layout);
  in.dout = copy_tensor(&dense.dout, layout);
  tessera_error* error = NULL;
  tessera_receipt* receipt = NULL;

  /* Both at once. */
  Outputs both = make_outputs(layout);
  tessera_run_args args = make_args(&in, &both);
  good(tessera_run(plan, TESSERA_FORWARD | TESSERA_BACKWARD, &args, NULL, &receipt, &error), &error, "run both");
  check(tessera_receipt_ok(receipt) == 1, "the receipt says ok");
  check(strstr(tessera_receipt_json(receipt), "\"executed\": \"cpu\"") != NULL, "the receipt names the lane");
  check(strstr(tessera_receipt_json(receipt), tessera_plan_fingerprint(plan)) != NULL, "and the plan");
  check(strncmp(tessera_receipt_line(receipt), "cpu ran", 7) == 0, "and has a line for people");
  tessera_receipt_free(receipt);
  compare_all(&both, want, kLayouts[layout]);

  /* A forward, and later a backward from its o and lse. */
  Outputs apart = make_outputs(layout);
  args = make_args(&in, &apart);
  args.dout.data = NULL;
  args.dq.data = args.dk.data = args.dv.data = NULL;
  good(tessera_run(plan, TESSERA_FORWARD, &args, NULL, NULL, &error), &error, "run forward");
  args = make_args(&in, &apart);
  good(tessera_run(plan, TESSERA_BACKWARD, &args, NULL, &receipt, &error), &error, "run backward");
  check(strstr(tessera_receipt_json(receipt), "\"forward\": \"false\"") != NULL, "the receipt says backward alone");
  tessera_receipt_free(receipt);
  compare_all(&apart, want, kLayouts[layout]);
  check(memcmp(apart.dq.data, both.dq.data, both.dq.num * sizeof(float)) == 0, "dq: one call or two, the same bits");
  check(memcmp(apart.dk.data, both.dk.data, both.dk.num * sizeof(float)) == 0, "dk: one call or two, the same bits");

  /* A backward from delta instead of o. */
  float delta[BATCH][Q_HEADS][LEN];
  for (int b = 0; b < BATCH; ++b)
    for (int h = 0; h < Q_HEADS; ++h)
      for (int i = 0; i < LEN; ++i) {
        double sum = 0;
        for (int d = 0; d < DIM_V; ++d) sum += want->o[b][h][i][d] * (double)at(&in.dout, b, h, i)[d];
        delta[b][h][i] = (float)sum;
      }
  args.o.data = NULL;
  args.delta = &delta[0][0][0];
  fill(&apart.dq, &dense.q); /* anything but the answer */
  good(tessera_run(plan, TESSERA_BACKWARD, &args, NULL, NULL, &error), &error, "run backward from delta");
  compare(&apart.dq, &want->dq[0][0][0][0], "dq from delta", kLayouts[layout]);

  free_outputs(&apart);
  free_outputs(&both);
  tessera_plan_free(plan);
  free_inputs(&in);
  free_inputs(&dense);
  free(want);
}

/* --- Threads ------------------------------------------------------------------------------------------------------ */

typedef struct {
  const tessera_plan* plan;
  Inputs* in;
  Outputs out;
  int num_bad;
} Job;

static void* run_job(void* pointer) {
  Job* job = pointer;
  for (int round = 0; round < 5; ++round) {
    tessera_run_args args = make_args(job->in, &job->out);
    tessera_receipt* receipt = NULL;
    tessera_error* error = NULL;
    job->num_bad += tessera_run(job->plan, TESSERA_FORWARD | TESSERA_BACKWARD, &args, NULL, &receipt, &error);
    job->num_bad += error != NULL || !tessera_receipt_ok(receipt);
    tessera_receipt_free(receipt);
    /* An error of one thread is no other thread's. */
    args.q.data = NULL;
    job->num_bad += tessera_run(job->plan, TESSERA_FORWARD, &args, NULL, NULL, &error) != 1;
    job->num_bad += strcmp(tessera_error_code(error), "TSR-R001") != 0;
    tessera_error_free(error);
  }
  return NULL;
}

static void test_threads(void) {
  enum { NUM_THREADS = 4 };
  Inputs in = make_inputs();
  tessera_plan* plan = make_plan(&in);
  Job jobs[NUM_THREADS];
  pthread_t threads[NUM_THREADS];
  for (int i = 0; i < NUM_THREADS; ++i) {
    jobs[i] = (Job){plan, &in, make_outputs(BTHD), 0};
    check(pthread_create(&threads[i], NULL, run_job, &jobs[i]) == 0, "a thread");
  }
  for (int i = 0; i < NUM_THREADS; ++i) pthread_join(threads[i], NULL);
  for (int i = 0; i < NUM_THREADS; ++i) {
    check(jobs[i].num_bad == 0, "every call of every thread did what it should");
    check(memcmp(jobs[i].out.o.data, jobs[0].out.o.data, jobs[0].out.o.num * sizeof(float)) == 0, "the same o");
    check(memcmp(jobs[i].out.dv.data, jobs[0].out.dv.data, jobs[0].out.dv.num * sizeof(float)) == 0, "the same dv");
  }
  for (int i = 0; i < NUM_THREADS; ++i) free_outputs(&jobs[i].out);
  tessera_plan_free(plan);
  free_inputs(&in);
}

/* --- Errors ------------------------------------------------------------------------------------------------------- */

static void test_bad_text(void) {
  tessera_contract* contract = (tessera_contract*)&num_failed; /* must be overwritten */
  tessera_batch* batch = (tessera_batch*)&num_failed;
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

static void test_nulls(void) {
  tessera_contract* contract = NULL;
  tessera_plan* plan = NULL;
  tessera_error* error = NULL;
  char* text = NULL;
  tessera_tile_counts counts = tessera_tile_counts_init();
  Inputs in = make_inputs();
  tessera_plan* real = make_plan(&in);
  const char* code = "TSR-A001";
  bad(tessera_contract_parse(NULL, NULL, &contract, &error), &error, code, "text is NULL", "null contract text");
  bad(tessera_contract_parse(kContract, NULL, NULL, &error), &error, code, "contract is NULL", "null contract out");
  bad(tessera_contract_json(NULL, &text, &error), &error, code, "contract is NULL", "json of null");
  bad(tessera_batch_parse(NULL, NULL, &error), &error, code, "batch is NULL", "null batch");
  bad(tessera_plan_make(NULL, NULL, NULL, NULL, &plan, &error), &error, code, "contract is NULL", "plan of null");
  bad(tessera_plan_load(NULL, NULL, "x", 1, &plan, &error), &error, code, "contract is NULL", "load for null");
  bad(tessera_plan_json(real, NULL, &error), &error, code, "json is NULL", "null json");
  bad(tessera_plan_tile_counts(NULL, 0, &counts, &error), &error, code, "plan is NULL", "counts of null");
  bad(tessera_plan_tile_counts(real, 0, NULL, &error), &error, code, "counts is NULL", "null counts");
  bad(tessera_plan_tile_counts(real, 3, &counts, &error), &error, code, "direction is 3", "a fourth direction");
  bad(tessera_run(NULL, 1, NULL, NULL, NULL, &error), &error, code, "plan is NULL", "run of null");
  bad(tessera_run(real, 1, NULL, NULL, NULL, &error), &error, code, "args is NULL", "run on null");
  check(tessera_run(NULL, 1, NULL, NULL, NULL, NULL) == 1, "all null");

  size_t num_bytes = 1;
  check(tessera_plan_bytes(NULL, &num_bytes) == NULL && num_bytes == 0, "bytes of null");
  check(tessera_plan_bytes(NULL, NULL) == NULL, "bytes of null into null");
  const char* const empty[] = {
      tessera_contract_key(NULL),   tessera_contract_text(NULL),    tessera_plan_fingerprint(NULL),
      tessera_plan_class_key(NULL), tessera_plan_mask_digest(NULL), tessera_receipt_json(NULL),
      tessera_receipt_line(NULL),   tessera_error_code(NULL),       tessera_error_meaning(NULL),
      tessera_error_message(NULL),  tessera_error_where(NULL),      tessera_error_text(NULL)};
  for (size_t i = 0; i < sizeof(empty) / sizeof(empty[0]); ++i) check(strcmp(empty[i], "") == 0, "text of null");
  check(tessera_receipt_ok(NULL) == 0, "no receipt is not ok");
  check(tessera_error_num_violations(NULL) == 0, "violations of null");
  tessera_contract_free(NULL);
  tessera_batch_free(NULL);
  tessera_plan_free(NULL);
  tessera_receipt_free(NULL);
  tessera_error_free(NULL);
  tessera_string_free(NULL);
  tessera_plan_free(real);
  free_inputs(&in);
}

static void test_struct_sizes(void) {
  tessera_contract* contract = NULL;
  tessera_plan* plan = NULL;
  tessera_plan* other = NULL;
  tessera_error* error = NULL;
  Inputs in = make_inputs();
  tessera_batch* batch = make_batch(&in);
  good(tessera_contract_parse(kContract, NULL, &contract, &error), &error, "contract_parse");

  tessera_plan_options options = tessera_plan_options_init();
  options.tile_q = 4;
  options.tile_kv = 16;
  options.verify_stages = 1;
  options.num_disable = 99; /* beyond what this older caller's struct has */
  options.struct_size = offsetof(tessera_plan_options, widen_class);
  good(tessera_plan_make(contract, batch, NULL, &options, &plan, &error), &error, "an older caller's options");
  options = tessera_plan_options_init();
  good(tessera_plan_make(contract, batch, NULL, &options, &other, &error), &error, "default options");
  check(strcmp(tessera_plan_fingerprint(plan), tessera_plan_fingerprint(other)) != 0, "the tile was read");
  check(strcmp(tessera_plan_mask_digest(plan), tessera_plan_mask_digest(other)) == 0, "the mask is the same");
  tessera_plan_free(other);

  struct {
    tessera_plan_options known;
    int64_t unknown[2];
  } newer = {tessera_plan_options_init(), {0, 0}};
  newer.known.struct_size = sizeof(newer);
  good(tessera_plan_make(contract, batch, NULL, &newer.known, &other, &error), &error, "a newer caller's options");
  tessera_plan_free(other);
  newer.unknown[1] = 1;
  bad(tessera_plan_make(contract, batch, NULL, &newer.known, &other, &error), &error, "TSR-A001", "not zero",
      "a newer caller's wish");
  const size_t wrong_sizes[] = {0, 4, 12, 41, 100000, (size_t)-8};
  for (size_t i = 0; i < sizeof(wrong_sizes) / sizeof(wrong_sizes[0]); ++i) {
    options.struct_size = wrong_sizes[i];
    bad(tessera_plan_make(contract, batch, NULL, &options, &other, &error), &error, "TSR-A001", "struct_size",
        "a wrong size");
  }
  options = tessera_plan_options_init();
  options.widen_class = 7;
  bad(tessera_plan_make(contract, batch, NULL, &options, &other, &error), &error, "TSR-A001", "widen_class",
      "a flag of 7");
  options.widen_class = 0;
  options.num_disable = 1;
  bad(tessera_plan_make(contract, batch, NULL, &options, &other, &error), &error, "TSR-A001", "disable", "null names");
  const char* stages[] = {"nonsense", NULL};
  options.disable = stages;
  bad(tessera_plan_make(contract, batch, NULL, &options, &other, &error), &error, "TSR-P001", "nonsense", "a stage");
  options.num_disable = 2;
  bad(tessera_plan_make(contract, batch, NULL, &options, &other, &error), &error, "TSR-A001", "[1]", "a null name");
  bad(tessera_plan_make(contract, batch, "pdp11", NULL, &other, &error), &error, "TSR-C008", "pdp11", "a target");
  bad(tessera_plan_make(contract, NULL, NULL, NULL, &other, &error), &error, "TSR-C007", "doc_ids", "no batch");
  check(other == NULL, "no plan after an error");

  /* A struct to be filled is written no further than it goes. */
  tessera_tile_counts counts = tessera_tile_counts_init();
  good(tessera_plan_tile_counts(plan, TESSERA_DIRECTION_DKV, &counts, &error), &error, "tile counts");
  check(counts.empty + counts.partial + counts.full == BATCH * Q_HEADS * 8 * 2, "counts of 4 x 16 tiles");
  tessera_tile_counts older = {offsetof(tessera_tile_counts, full), 0, 0, -1};
  good(tessera_plan_tile_counts(plan, TESSERA_DIRECTION_DKV, &older, &error), &error, "an older caller's counts");
  check(older.partial == counts.partial && older.full == -1, "the older struct's end is untouched");
  check(older.struct_size == offsetof(tessera_tile_counts, full), "and so is its size");
  tessera_plan_free(plan);
  tessera_batch_free(batch);
  tessera_contract_free(contract);
  free_inputs(&in);
}

static void test_bad_runs(void) {
  Inputs in = make_inputs();
  Outputs out = make_outputs(BHTD);
  tessera_plan* plan = make_plan(&in);
  tessera_error* error = NULL;
  tessera_receipt* receipt = NULL;
  tessera_run_args args = make_args(&in, &out);
  args.k.data = NULL;
  args.lse = NULL;
  args.dv.token_stride = 1;
  args.o.head_stride = -4;
  args.dq.data = in.q.data;
  args.v.batch_stride = INT64_MAX;
  const int status = tessera_run(plan, TESSERA_FORWARD | TESSERA_BACKWARD, &args, NULL, &receipt, &error);
  const char* const fields[] = {"k:", "lse:", "dv:", "o:", "dq:", "v:"};
  for (int i = 0; i < 6; ++i) check(strstr(tessera_error_text(error), fields[i]) != NULL, fields[i]);
  check(tessera_receipt_ok(receipt) == 0, "a failed run has a receipt that says so");
  check(strstr(tessera_receipt_json(receipt), "\"failed_at\": \"inputs\"") != NULL, "and where it failed");
  check(strstr(tessera_receipt_json(receipt), "TSR-R001") != NULL, "and why");
  tessera_receipt_free(receipt);
  bad(status, &error, "TSR-R001", "shares some with q", "bad tensors");

  args = make_args(&in, &out);
  args.sink_logits = NULL;
  bad(tessera_run(plan, TESSERA_FORWARD, &args, NULL, NULL, &error), &error, "TSR-R001", "sink_logits", "no sinks");
  args = make_args(&in, &out);
  args.q.data = (char*)in.q.data + 1;
  bad(tessera_run(plan, TESSERA_FORWARD, &args, NULL, NULL, &error), &error, "TSR-R001", "multiple of 4", "alignment");
  args = make_args(&in, &out);
  args.q.dtype = TESSERA_DTYPE_BF16;
  bad(tessera_run(plan, TESSERA_FORWARD, &args, NULL, NULL, &error), &error, "TSR-R001", "BF16", "another dtype");
  args.q.dtype = 17;
  bad(tessera_run(plan, TESSERA_FORWARD, &args, NULL, &receipt, &error), &error, "TSR-A001", "dtype", "no dtype");
  check(receipt == NULL, "no receipt of a call that was not one");
  args = make_args(&in, &out);
  bad(tessera_run(plan, 0, &args, NULL, NULL, &error), &error, "TSR-A001", "what is 0", "nothing to run");
  bad(tessera_run(plan, 4, &args, NULL, NULL, &error), &error, "TSR-A001", "what is 4", "sideways");
  args.struct_size = 24;
  bad(tessera_run(plan, TESSERA_FORWARD, &args, NULL, NULL, &error), &error, "TSR-R001", "k:", "a struct too short");

  args = make_args(&in, &out);
  tessera_run_options options = tessera_run_options_init();
  options.lane = "gpu";
  bad(tessera_run(plan, TESSERA_FORWARD, &args, &options, NULL, &error), &error, "TSR-L001", "gpu", "no such lane");
  options.lane = NULL;
  options.strict = 1;
  const char* exclude[] = {"cpu"};
  options.exclude = exclude;
  options.num_exclude = 1;
  bad(tessera_run(plan, TESSERA_FORWARD, &args, &options, &receipt, &error), &error, "TSR-L003", "cpu", "strict");
  check(strstr(tessera_receipt_json(receipt), "dispatch.excluded") != NULL, "the receipt says who was excluded");
  tessera_receipt_free(receipt);
  options.strict = 0;
  options.input_source = "a \"test\"\n";
  options.threads = -1;
  bad(tessera_run(plan, TESSERA_FORWARD, &args, &options, NULL, &error), &error, "TSR-R007", "threads", "fewer than 0");
  options.threads = 1;
  options.isa = "no_such";
  bad(tessera_run(plan, TESSERA_FORWARD, &args, &options, NULL, &error), &error, "TSR-L004", "scalar", "no such isa");
  options.isa = "scalar";
  good(tessera_run(plan, TESSERA_FORWARD, &args, &options, &receipt, &error), &error, "not strict");
  check(strstr(tessera_receipt_json(receipt), "a \\\"test\\\"\\n") != NULL, "the receipt has the source");
  tessera_receipt_free(receipt);
  tessera_plan_free(plan);
  free_outputs(&out);
  free_inputs(&in);
}

/* --- Plans as bytes, texts, versions ------------------------------------------------------------------------------ */

static void test_bytes(void) {
  Inputs in = make_inputs();
  Outputs first = make_outputs(BHTD), second = make_outputs(BHTD);
  tessera_contract* contract = NULL;
  tessera_contract* again = NULL;
  tessera_contract* other = NULL;
  tessera_error* error = NULL;
  char* json = NULL;
  good(tessera_contract_parse(kContract, ".", &contract, &error), &error, "contract_parse");
  check(strlen(tessera_contract_key(contract)) == 32, "a key");
  good(tessera_contract_parse(tessera_contract_text(contract), NULL, &again, &error), &error, "canonical text parses");
  check(strcmp(tessera_contract_key(contract), tessera_contract_key(again)) == 0, "to the same key");
  tessera_contract_free(again);
  good(tessera_contract_json(contract, &json, &error), &error, "contract_json");
  good(tessera_contract_parse(json, NULL, &again, &error), &error, "canonical JSON parses");
  check(strcmp(tessera_contract_text(contract), tessera_contract_text(again)) == 0, "to the same text");
  tessera_string_free(json);
  tessera_contract_free(again);

  tessera_plan* plan = make_plan(&in);
  size_t num_bytes = 0;
  const void* bytes = tessera_plan_bytes(plan, &num_bytes);
  char* saved = malloc(num_bytes);
  memcpy(saved, bytes, num_bytes);
  tessera_plan* loaded = NULL;
  good(tessera_plan_load(contract, "cpu", saved, num_bytes, &loaded, &error), &error, "plan_load");
  check(strcmp(tessera_plan_fingerprint(plan), tessera_plan_fingerprint(loaded)) == 0, "the same plan");
  check(strlen(tessera_plan_class_key(loaded)) == 32, "a class key");
  good(tessera_plan_json(loaded, &json, &error), &error, "plan_json");
  check(json != NULL && json[0] == '{' && strstr(json, tessera_plan_fingerprint(plan)) != NULL, "the plan as JSON");
  tessera_string_free(json);

  tessera_run_args args = make_args(&in, &first);
  good(tessera_run(plan, TESSERA_FORWARD, &args, NULL, NULL, &error), &error, "run the plan");
  args = make_args(&in, &second);
  tessera_receipt* receipt = NULL;
  good(tessera_run(loaded, TESSERA_FORWARD, &args, NULL, &receipt, &error), &error, "run the loaded plan");
  check(strstr(tessera_receipt_json(receipt), "\"plan\": \"given\"") != NULL, "the receipt says the plan was given");
  check(strstr(tessera_receipt_json(receipt), "\"batch_digest\": \"\"") != NULL, "and that its batch is unknown");
  check(memcmp(first.o.data, second.o.data, first.o.num * sizeof(float)) == 0, "the same bits");
  tessera_receipt_free(receipt);
  tessera_plan_free(loaded);

  good(tessera_contract_parse("version = 1\n[shape]\nq_len = 64\ndim_qk = 8\n[mask]\nexpr = \"causal\"\n", NULL, &other,
                              &error),
       &error, "another contract");
  bad(tessera_plan_load(other, NULL, saved, num_bytes, &loaded, &error), &error, "TSR-P007", "", "another's plan");
  bad(tessera_plan_load(contract, NULL, saved, num_bytes - 1, &loaded, &error), &error, "TSR-P005", "", "cut short");
  bad(tessera_plan_load(contract, NULL, "", 0, &loaded, &error), &error, "TSR-P005", "", "no bytes");
  saved[num_bytes / 2] = (char)(saved[num_bytes / 2] ^ 0x55);
  bad(tessera_plan_load(contract, NULL, saved, num_bytes, &loaded, &error), &error, "TSR-P005", "", "a changed byte");
  check(loaded == NULL, "no plan after an error");
  free(saved);
  tessera_contract_free(other);
  tessera_contract_free(contract);
  tessera_plan_free(plan);
  free_outputs(&first);
  free_outputs(&second);
  free_inputs(&in);
}

static void test_versions(void) {
  char version[64];
  snprintf(version, sizeof(version), "%d.%d.%d", TESSERA_VERSION_MAJOR, TESSERA_VERSION_MINOR, TESSERA_VERSION_PATCH);
  check(strcmp(version, TESSERA_VERSION) == 0, "the version's parts make the version");
  check(strcmp(tessera_version(), TESSERA_VERSION) == 0, "the library is the header's version");
  check(tessera_abi_version() == TESSERA_ABI_VERSION, "and ABI");
}

int main(void) {
  const char* given = getenv("TESSERA_SEED");
  random_state = given != NULL ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
  const uint64_t seed = random_state;
  test_versions();
  test_bad_text();
  test_nulls();
  test_struct_sizes();
  for (int layout = BHTD; layout < NUM_LAYOUTS; ++layout) test_numbers((Layout)layout);
  test_bytes();
  test_bad_runs();
  test_threads();
  if (num_failed > 0)
    fprintf(stderr, "%d checks failed; TESSERA_SEED=%llu repeats this\n", num_failed, (unsigned long long)seed);
  return num_failed > 0;
}
