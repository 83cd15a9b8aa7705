/* The C interface from C: numbers on strided memory in several layouts, plans as bytes, receipts and threads. Compiled
 * as C11 and linked like any C program. test_errors.c and test_more.c have the rest. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "harness.h"

enum { BOTH = TESSERA_FORWARD | TESSERA_BACKWARD };

/* --- Numbers ------------------------------------------------------------------------------------------------------ */

static void test_numbers(const Sizes* sizes, Layout layout, Form form) {
  Inputs dense = make_inputs(sizes, BHTD, NULL);
  Answer want = attend(&dense);
  Inputs in = make_inputs(sizes, layout, &dense);
  tessera_bound* bound = make_bound(&in, BOTH, form);
  tessera_error* error = NULL;
  tessera_receipt* receipt = NULL;
  check(strcmp(tessera_bound_lane(bound), "cpu") == 0, "the cpu lane is bound");
  check(strlen(tessera_bound_kernel(bound)) > 0 && strlen(tessera_bound_isa(bound)) > 0, "it has names");
  check(tessera_bound_workspace_bytes(bound) >= 0, "and a workspace");

  Outputs out = make_outputs(sizes, layout);
  tessera_args args = make_args(&in, &out);
  tessera_call_options call = tessera_call_options_init();
  call.digests = 1;
  call.input_source = "a \"test\"\n";
  good(tessera_bound_forward(bound, &args, &call, &receipt, &error), &error, "forward");
  check(tessera_receipt_ok(receipt) == 1, "the receipt says ok");
  check(strstr(tessera_receipt_json(receipt), "\"executed\": \"cpu\"") != NULL, "the receipt names the lane");
  check(strstr(tessera_receipt_json(receipt), "a \\\"test\\\"\\n") != NULL, "and the source");
  check(strstr(tessera_receipt_json(receipt), "\"output_digest\": \"not taken\"") == NULL, "and has digests");
  check(strncmp(tessera_receipt_line(receipt), "cpu ran", 7) == 0, "and has a line for people");
  tessera_receipt_free(receipt);
  compare(&out, &want, 0, layout_name(layout));
  good(tessera_bound_backward(bound, &args, NULL, &receipt, &error), &error, "backward");
  check(strstr(tessera_receipt_json(receipt), "\"forward\": \"false\"") != NULL, "the receipt says backward alone");
  check(strstr(tessera_receipt_json(receipt), "\"output_digest\": \"not taken\"") != NULL, "and takes no digests");
  tessera_receipt_free(receipt);
  compare(&out, &want, 1, layout_name(layout));

  /* The same bits without a receipt, and in one go. */
  Outputs again = make_outputs(sizes, layout);
  args = make_args(&in, &again);
  good(tessera_bound_forward(bound, &args, NULL, NULL, &error), &error, "forward without a receipt");
  good(tessera_bound_backward(bound, &args, NULL, NULL, &error), &error, "backward without a receipt");
  check(memcmp(again.o.data, out.o.data, out.o.num * sizeof(float)) == 0, "o: the same bits");
  check(memcmp(again.dk.data, out.dk.data, out.dk.num * sizeof(float)) == 0, "dk: the same bits");
  tessera_engine* engine = make_engine();
  tessera_contract* contract = make_contract(sizes);
  tessera_batch* batch = make_batch(&in, form);
  tessera_attention_options options = tessera_attention_options_init();
  options.passes = BOTH;
  fill(sizes, &again.dq, &dense.q); /* anything but the answer */
  good(tessera_run(engine, contract, batch, NULL, &options, &args, &call, &receipt, &error), &error, "run");
  check(memcmp(again.dq.data, out.dq.data, out.dq.num * sizeof(float)) == 0, "dq: one call or two, the same bits");
  check(tessera_receipt_ok(receipt) == 1, "a run has a receipt");
  tessera_receipt_free(receipt);

  /* A backward from delta instead of o. */
  const int64_t rows = sizes->batch * sizes->q_heads * sizes->len;
  float* delta = calloc((size_t)rows, sizeof(float));
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t i = r % sizes->len, h = r / sizes->len % sizes->q_heads, b = r / sizes->len / sizes->q_heads;
    double sum = 0;
    for (int64_t d = 0; d < sizes->dim_v; ++d) sum += want.o[r * sizes->dim_v + d] * (double)at(&in.dout, b, h, i)[d];
    delta[r] = (float)sum;
  }
  args.o.data = NULL;
  args.delta = delta;
  fill(sizes, &again.dq, &dense.q);
  good(tessera_bound_backward(bound, &args, NULL, NULL, &error), &error, "backward from delta");
  compare_tensor(sizes, &again.dq, want.dq, "dq from delta", layout_name(layout));

  free(delta);
  tessera_batch_free(batch);
  tessera_contract_free(contract);
  tessera_engine_free(engine);
  free_outputs(&again);
  free_outputs(&out);
  tessera_bound_free(bound);
  free_inputs(&in);
  free_inputs(&dense);
  free_answer(&want);
}

/* --- Threads ------------------------------------------------------------------------------------------------------ */

typedef struct {
  const tessera_attention* attention;
  const tessera_batch* batch;
  const tessera_bound* bound;
  Inputs* in;
  Outputs out;
  int num_bad;
} Job;

/* Calls on a bound that all share, and once a round planning and binding from an attention that all share. */
static void* run_job(void* pointer) {
  Job* job = pointer;
  for (int round = 0; round < 5; ++round) {
    tessera_args args = make_args(job->in, &job->out);
    tessera_receipt* receipt = NULL;
    tessera_error* error = NULL;
    tessera_plan* plan = NULL;
    tessera_bound* own = NULL;
    job->num_bad += tessera_attention_plan(job->attention, job->batch, NULL, NULL, &plan, &error);
    job->num_bad += tessera_attention_bind(job->attention, plan, &own, &error);
    tessera_plan_free(plan);
    job->num_bad += tessera_bound_forward(own, &args, NULL, NULL, &error);
    tessera_bound_free(own);
    job->num_bad += tessera_bound_backward(job->bound, &args, NULL, &receipt, &error);
    job->num_bad += error != NULL || !tessera_receipt_ok(receipt);
    tessera_receipt_free(receipt);
    /* An error of one thread is no other thread's. */
    args.q.data = NULL;
    job->num_bad += tessera_bound_forward(job->bound, &args, NULL, NULL, &error) != 1;
    job->num_bad += strcmp(tessera_error_code(error), "TSR-R001") != 0;
    tessera_error_free(error);
  }
  return NULL;
}

static void test_threads(void) {
  enum { NUM_THREADS = 4 };
  const Sizes sizes = small_sizes();
  Inputs in = make_inputs(&sizes, BHTD, NULL);
  tessera_attention* attention = make_attention(&sizes, BOTH);
  tessera_batch* batch = make_batch(&in, BY_LENGTHS);
  tessera_bound* bound = make_bound(&in, BOTH, BY_ENDS);
  Job jobs[NUM_THREADS];
  pthread_t threads[NUM_THREADS];
  for (int i = 0; i < NUM_THREADS; ++i) {
    jobs[i] = (Job){attention, batch, bound, &in, make_outputs(&sizes, BTHD), 0};
    check(pthread_create(&threads[i], NULL, run_job, &jobs[i]) == 0, "a thread");
  }
  for (int i = 0; i < NUM_THREADS; ++i) pthread_join(threads[i], NULL);
  for (int i = 0; i < NUM_THREADS; ++i) {
    check(jobs[i].num_bad == 0, "every call of every thread did what it should");
    check(memcmp(jobs[i].out.o.data, jobs[0].out.o.data, jobs[0].out.o.num * sizeof(float)) == 0, "the same o");
    check(memcmp(jobs[i].out.dv.data, jobs[0].out.dv.data, jobs[0].out.dv.num * sizeof(float)) == 0, "the same dv");
  }
  for (int i = 0; i < NUM_THREADS; ++i) free_outputs(&jobs[i].out);
  tessera_bound_free(bound);
  tessera_batch_free(batch);
  tessera_attention_free(attention);
  free_inputs(&in);
}

/* --- Plans as bytes, texts, versions ------------------------------------------------------------------------------ */

static void test_texts(const Sizes* sizes) {
  tessera_contract* contract = make_contract(sizes);
  tessera_contract* again = NULL;
  tessera_error* error = NULL;
  char* json = NULL;
  check(strlen(tessera_contract_key(contract)) == 32, "a key");
  good(tessera_contract_parse(tessera_contract_text(contract), ".", &again, &error), &error, "canonical text parses");
  check(strcmp(tessera_contract_key(contract), tessera_contract_key(again)) == 0, "to the same key");
  tessera_contract_free(again);
  good(tessera_contract_json(contract, &json, &error), &error, "contract_json");
  good(tessera_contract_parse(json, NULL, &again, &error), &error, "canonical JSON parses");
  check(strcmp(tessera_contract_text(contract), tessera_contract_text(again)) == 0, "to the same text");
  tessera_string_free(json);
  tessera_contract_free(again);

  tessera_attention* attention = make_attention(sizes, BOTH);
  check(strcmp(tessera_attention_lane(attention), "cpu") == 0, "the selected lane");
  check(strlen(tessera_attention_key(attention)) == 32, "the key of what was prepared");
  good(tessera_attention_json(attention, &json, &error), &error, "attention_json");
  check(strstr(json, "\"lane\": \"cpu\"") != NULL && strstr(json, "\"accepted\": true") != NULL, "decisions");
  check(strstr(json, "\"reason\": \"dispatch.only_by_name\"") != NULL, "and reasons");
  tessera_string_free(json);
  good(tessera_attention_check(attention, &error), &error, "some lane accepts");
  tessera_attention_free(attention);
  tessera_contract_free(contract);
}

static void test_bytes(void) {
  const Sizes sizes = small_sizes();
  test_texts(&sizes);
  Inputs in = make_inputs(&sizes, BHTD, NULL);
  Outputs first = make_outputs(&sizes, BHTD), second = make_outputs(&sizes, BHTD);
  tessera_contract* contract = make_contract(&sizes);
  tessera_attention* attention = make_attention(&sizes, TESSERA_FORWARD);
  tessera_plan* plan = make_plan(attention, &in, BY_IDS);
  tessera_error* error = NULL;
  char* json = NULL;
  size_t num_bytes = 0;
  const void* bytes = tessera_plan_bytes(plan, &num_bytes);
  char* saved = malloc(num_bytes);
  memcpy(saved, bytes, num_bytes);
  tessera_plan* loaded = NULL;
  good(tessera_plan_load(contract, saved, num_bytes, &loaded, &error), &error, "plan_load");
  check(strcmp(tessera_plan_fingerprint(plan), tessera_plan_fingerprint(loaded)) == 0, "the same plan");
  check(strlen(tessera_plan_class_key(loaded)) == 32, "a class key");
  good(tessera_plan_json(loaded, &json, &error), &error, "plan_json");
  check(json != NULL && json[0] == '{' && strstr(json, tessera_plan_fingerprint(plan)) != NULL, "the plan as JSON");
  tessera_string_free(json);
  for (int form = BY_JSON; form < NUM_FORMS; ++form) {
    tessera_plan* other = make_plan(attention, &in, (Form)form);
    check(strcmp(tessera_plan_fingerprint(plan), tessera_plan_fingerprint(other)) == 0, "every form, the same plan");
    tessera_plan_free(other);
  }

  tessera_bound* bound = NULL;
  good(tessera_attention_bind(attention, plan, &bound, &error), &error, "bind the plan");
  tessera_args args = make_args(&in, &first);
  good(tessera_bound_forward(bound, &args, NULL, NULL, &error), &error, "run the plan");
  bad(tessera_bound_backward(bound, &args, NULL, NULL, &error), &error, "TSR-R007", "without a backward",
      "not asked for");
  tessera_bound_free(bound);
  good(tessera_attention_bind(attention, loaded, &bound, &error), &error, "bind the loaded plan");
  tessera_bound* rebound = NULL;
  good(tessera_attention_rebind(attention, bound, plan, NULL, &rebound, &error), &error, "bind in its place");
  tessera_bound_free(rebound);
  int64_t image_bytes = 0;
  bad(tessera_attention_image(attention, plan, NULL, 0, NULL, &error), &error, "TSR-A001", "image_bytes is NULL",
      "an image's size to nowhere");
  bad(tessera_attention_image(attention, plan, NULL, 64, &image_bytes, &error), &error, "TSR-A001", "capacity is 64",
      "an image to nowhere");
  bad(tessera_attention_image(attention, plan, NULL, 0, &image_bytes, &error), &error, "TSR-L002",
      "reads plans as they are", "the host's lanes have no images");
  args = make_args(&in, &second);
  tessera_receipt* receipt = NULL;
  tessera_call_options call = tessera_call_options_init();
  call.digests = 1;
  good(tessera_bound_forward(bound, &args, &call, &receipt, &error), &error, "run the loaded plan");
  check(strstr(tessera_receipt_json(receipt), "\"plan\": \"given\"") != NULL, "the receipt says the plan was given");
  check(strstr(tessera_receipt_json(receipt), tessera_plan_fingerprint(plan)) != NULL, "which one");
  check(strstr(tessera_receipt_json(receipt), "\"batch_digest\": \"not taken\"") != NULL,
        "and that its batch is unknown");
  check(memcmp(first.o.data, second.o.data, first.o.num * sizeof(float)) == 0, "the same bits");
  tessera_receipt_free(receipt);
  tessera_bound_free(bound);
  tessera_plan_free(loaded);

  tessera_contract* other = NULL;
  tessera_attention* others = NULL;
  tessera_engine* engine = make_engine();
  good(tessera_contract_parse("version = 1\n[shape]\nq_len = 64\ndim_qk = 8\n[mask]\nexpr = \"causal\"\n", NULL, &other,
                              &error),
       &error, "another contract");
  good(tessera_attention_new(engine, other, NULL, NULL, &others, &error), &error, "another attention");
  bad(tessera_attention_bind(others, plan, &bound, &error), &error, "TSR-P007", "", "another's plan is not bound");
  check(bound == NULL, "no bound after an error");
  bad(tessera_plan_load(other, saved, num_bytes, &loaded, &error), &error, "TSR-P007", "", "another's plan");
  bad(tessera_plan_load(contract, saved, num_bytes - 1, &loaded, &error), &error, "TSR-P005", "", "cut short");
  bad(tessera_plan_load(contract, "", 0, &loaded, &error), &error, "TSR-P005", "", "no bytes");
  saved[num_bytes / 2] = (char)(saved[num_bytes / 2] ^ 0x55);
  bad(tessera_plan_load(contract, saved, num_bytes, &loaded, &error), &error, "TSR-P005", "", "a changed byte");
  check(loaded == NULL, "no plan after an error");
  free(saved);
  tessera_engine_free(engine);
  tessera_attention_free(others);
  tessera_attention_free(attention);
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
  const uint64_t seed = given != NULL ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
  seed_random(seed);
  test_versions();
  test_errors();
  const Sizes small = small_sizes();
  for (int layout = BHTD; layout < NUM_LAYOUTS; ++layout) test_numbers(&small, (Layout)layout, (Form)(1 + layout));
  for (int i = 0; i < 8; ++i) {
    const Sizes sizes = random_sizes();
    test_numbers(&sizes, (Layout)random_int(0, NUM_LAYOUTS - 1), (Form)random_int(0, NUM_FORMS - 1));
  }
  test_bytes();
  test_more();
  test_threads();
  if (num_failed() > 0)
    fprintf(stderr, "%d checks failed; TESSERA_SEED=%llu repeats this\n", num_failed(), (unsigned long long)seed);
  return num_failed() > 0;
}
