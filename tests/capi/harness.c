/* See harness.h. */
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed = 0;

int num_failed(void) { return failed; }

int check(int holds, const char* what) {
  if (holds) return 1;
  fprintf(stderr, "failed: %s\n", what);
  ++failed;
  return 0;
}

int good(int status, tessera_error** left, const char* what) {
  tessera_error* error = *left;
  if (status != 0 || error != NULL) fprintf(stderr, "%s: %s\n", what, tessera_error_text(error));
  tessera_error_free(error);
  *left = NULL;
  return check(status == 0 && error == NULL, what);
}

void bad(int status, tessera_error** left, const char* code, const char* says, const char* what) {
  tessera_error* error = *left;
  const int holds = status == 1 && error != NULL && strcmp(tessera_error_code(error), code) == 0 &&
                    strstr(tessera_error_text(error), says) != NULL;
  if (!holds) fprintf(stderr, "%s: expected %s \"%s\", got: %s\n", what, code, says, tessera_error_text(error));
  check(holds, what);
  check(error == NULL || strlen(tessera_error_meaning(error)) > 10, "an error has its code's meaning");
  tessera_error_free(error);
  *left = NULL;
}

/* --- Inputs and outputs ------------------------------------------------------------------------------------------- */

static uint64_t random_state = 1;
void seed_random(uint64_t seed) { random_state = seed; }
static uint64_t random_bits(void) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return random_state >> 40;
}
float random_float(void) { return (float)((double)random_bits() / (double)(1 << 23) - 1.0); }
int64_t random_int(int64_t least, int64_t most) {
  return least + (int64_t)(random_bits() % (uint64_t)(most - least + 1));
}

static const float kUntouched = 12345.0f;

const char* layout_name(Layout layout) {
  static const char* const names[] = {"[B,H,T,D]", "[B,T,H,D]", "padded"};
  return names[layout];
}

Sizes small_sizes(void) {
  const Sizes sizes = {2, 29, 4, 2, 8, 6, 9};
  return sizes;
}

Sizes random_sizes(void) {
  const int64_t kv_heads = random_int(1, 3), len = random_int(1, 70);
  const Sizes sizes = {
      random_int(1, 3),  len, kv_heads * random_int(1, 3), kv_heads, random_int(1, 20), random_int(1, 20),
      random_int(0, len)};
  return sizes;
}

Tensor make_tensor(const Sizes* sizes, Layout layout, int64_t heads, int64_t dim) {
  const int64_t len = sizes->len;
  Tensor t = {NULL, 0, heads, dim, heads * len * dim, len * dim, dim};
  if (layout == BTHD) {
    t.head_stride = dim;
    t.token_stride = heads * dim;
  }
  if (layout == PADDED) {
    t.token_stride = dim + 3;
    t.head_stride = len * t.token_stride + 5;
    t.batch_stride = heads * t.head_stride + 7;
  }
  t.num = (size_t)(sizes->batch * t.batch_stride);
  t.data = malloc(t.num * sizeof(float));
  for (size_t i = 0; i < t.num; ++i) t.data[i] = kUntouched;
  return t;
}

void fill(const Sizes* sizes, Tensor* t, const Tensor* values) {
  for (int64_t b = 0; b < sizes->batch; ++b)
    for (int64_t h = 0; h < t->heads; ++h)
      for (int64_t i = 0; i < sizes->len; ++i)
        for (int64_t d = 0; d < t->dim; ++d)
          at(t, b, h, i)[d] = values != NULL ? at(values, b, h, i)[d] : random_float();
}

Inputs make_inputs(const Sizes* sizes, Layout layout, const Inputs* values) {
  Inputs in = {*sizes,
               make_tensor(sizes, layout, sizes->q_heads, sizes->dim_qk),
               make_tensor(sizes, layout, sizes->kv_heads, sizes->dim_qk),
               make_tensor(sizes, layout, sizes->kv_heads, sizes->dim_v),
               make_tensor(sizes, layout, sizes->q_heads, sizes->dim_v),
               malloc((size_t)sizes->q_heads * sizeof(float)),
               malloc((size_t)(sizes->batch * sizes->len) * sizeof(int32_t))};
  fill(sizes, &in.q, values == NULL ? NULL : &values->q);
  fill(sizes, &in.k, values == NULL ? NULL : &values->k);
  fill(sizes, &in.v, values == NULL ? NULL : &values->v);
  fill(sizes, &in.dout, values == NULL ? NULL : &values->dout);
  for (int64_t h = 0; h < sizes->q_heads; ++h)
    in.sink_logits[h] = values == NULL ? random_float() : values->sink_logits[h];
  /* Documents of random lengths, numbered from 0, and padding, whose rows see nothing. */
  for (int64_t b = 0; b < sizes->batch; ++b) {
    int32_t* row = in.doc_ids + b * sizes->len;
    const int64_t end = sizes->len - random_int(0, sizes->len / 4);
    int32_t doc = 0;
    for (int64_t i = 0; i < sizes->len; ++i) {
      if (i > 0 && random_int(0, 9) == 0) ++doc;
      row[i] = i < end ? doc : -1;
    }
    if (values != NULL) memcpy(row, values->doc_ids + b * sizes->len, (size_t)sizes->len * sizeof(int32_t));
  }
  return in;
}

void free_inputs(Inputs* in) {
  free(in->q.data);
  free(in->k.data);
  free(in->v.data);
  free(in->dout.data);
  free(in->sink_logits);
  free(in->doc_ids);
}

Outputs make_outputs(const Sizes* sizes, Layout layout) {
  const size_t rows = (size_t)(sizes->batch * sizes->q_heads * sizes->len);
  Outputs out = {*sizes,
                 make_tensor(sizes, layout, sizes->q_heads, sizes->dim_v),
                 make_tensor(sizes, layout, sizes->q_heads, sizes->dim_qk),
                 make_tensor(sizes, layout, sizes->kv_heads, sizes->dim_qk),
                 make_tensor(sizes, layout, sizes->kv_heads, sizes->dim_v),
                 calloc(rows, sizeof(float)),
                 calloc(rows, sizeof(float)),
                 calloc((size_t)sizes->q_heads, sizeof(float))};
  return out;
}

void free_outputs(Outputs* out) {
  free(out->o.data);
  free(out->dq.data);
  free(out->dk.data);
  free(out->dv.data);
  free(out->lse);
  free(out->max);
  free(out->dsink_logits);
}

tessera_tensor ref(const Tensor* t) {
  tessera_tensor out = {
      t->data, TESSERA_DTYPE_CONTRACT, t->batch_stride, t->head_stride, t->token_stride, TESSERA_MEMORY_HOST, 0};
  return out;
}

tessera_args make_args(Inputs* in, Outputs* out) {
  tessera_args args = tessera_args_init();
  args.q = ref(&in->q);
  args.k = ref(&in->k);
  args.v = ref(&in->v);
  args.dout = ref(&in->dout);
  args.sink_logits = in->sink_logits;
  args.o = ref(&out->o);
  args.lse = out->lse;
  args.row_max = out->max;
  args.dq = ref(&out->dq);
  args.dk = ref(&out->dk);
  args.dv = ref(&out->dv);
  args.dsink_logits = out->dsink_logits;
  return args;
}

/* --- Comparison --------------------------------------------------------------------------------------------------- */

/* f32 results of double arithmetic on values of about 1; the backward starts from a rounded lse and o. */
static int is_close(double got, double want) { return got == want || fabs(got - want) <= 4e-6 * (1.0 + fabs(want)); }

void compare_tensor(const Sizes* sizes, const Tensor* got, const double* want, const char* name, const char* more) {
  char what[128];
  int num_wrong = 0;
  for (int64_t b = 0; b < sizes->batch; ++b)
    for (int64_t h = 0; h < got->heads; ++h)
      for (int64_t i = 0; i < sizes->len; ++i)
        for (int64_t d = 0; d < got->dim; ++d)
          num_wrong += !is_close(at(got, b, h, i)[d], want[((b * got->heads + h) * sizes->len + i) * got->dim + d]);
  snprintf(what, sizeof(what), "%s %s: %d wrong values", name, more, num_wrong);
  check(num_wrong == 0, what);
  /* What lies between the rows is the caller's. */
  size_t num_untouched = 0;
  for (size_t i = 0; i < got->num; ++i) num_untouched += got->data[i] == kUntouched;
  snprintf(what, sizeof(what), "%s %s: padding untouched", name, more);
  check(num_untouched == got->num - (size_t)(sizes->batch * got->heads * sizes->len * got->dim), what);
}

static void compare_floats(const float* got, const double* want, int64_t num, const char* name, const char* more) {
  char what[128];
  int num_wrong = 0;
  for (int64_t i = 0; i < num; ++i) num_wrong += !is_close(got[i], want[i]);
  snprintf(what, sizeof(what), "%s %s: %d wrong values", name, more, num_wrong);
  check(num_wrong == 0, what);
}

void compare(const Outputs* out, const Answer* want, int backward, const char* name) {
  const Sizes* s = &out->sizes;
  const int64_t rows = s->batch * s->q_heads * s->len;
  compare_tensor(s, &out->o, want->o, "o", name);
  compare_floats(out->lse, want->lse, rows, "lse", name);
  compare_floats(out->max, want->max, rows, "max", name);
  if (!backward) return;
  compare_tensor(s, &out->dq, want->dq, "dq", name);
  compare_tensor(s, &out->dk, want->dk, "dk", name);
  compare_tensor(s, &out->dv, want->dv, "dv", name);
  compare_floats(out->dsink_logits, want->dsink_logits, s->q_heads, "dsink_logits", name);
}

/* --- Handles ------------------------------------------------------------------------------------------------------ */

tessera_contract* make_contract(const Sizes* s) {
  char text[1024];
  snprintf(
      text, sizeof(text),
      "version = 1\n[shape]\nbatch = %d\nq_len = %d\nnum_q_heads = %d\nnum_kv_heads = %d\ndim_qk = %d\ndim_v = %d\n"
      "dtype = \"f32\"\n[mask]\nexpr = \"causal and window(%d, 0) and documents\"\n"
      "[score]\nscale = %.1f\nsoftcap = %.1f\nsink_logits = true\n"
      "[tiles]\nq = 8\nkv = 8\nreason = \"a small test\"\n",
      (int)s->batch, (int)s->len, (int)s->q_heads, (int)s->kv_heads, (int)s->dim_qk, (int)s->dim_v, (int)s->window,
      SCALE, SOFTCAP);
  tessera_contract* contract = NULL;
  tessera_error* error = NULL;
  good(tessera_contract_parse(text, NULL, &contract, &error), &error, "contract_parse");
  return contract;
}

static void append_number(char* text, int separated, int number) {
  char word[16];
  snprintf(word, sizeof(word), "%s%d", separated ? ", " : "", number);
  strcat(text, word);
}

static tessera_batch* parse_ids(const Inputs* in) {
  const Sizes* s = &in->sizes;
  char* json = calloc((size_t)(s->batch * s->len) * 16 + 64, 1);
  strcat(json, "{\"doc_ids\": [");
  for (int64_t b = 0; b < s->batch; ++b) {
    strcat(json, b > 0 ? ", [" : "[");
    for (int64_t i = 0; i < s->len; ++i) append_number(json, i > 0, (int)in->doc_ids[b * s->len + i]);
    strcat(json, "]");
  }
  strcat(json, "]}");
  tessera_batch* batch = NULL;
  tessera_error* error = NULL;
  good(tessera_batch_parse(json, &batch, &error), &error, "batch_parse");
  free(json);
  return batch;
}

tessera_batch* make_batch(const Inputs* in, Form form) {
  const Sizes* s = &in->sizes;
  if (form == BY_JSON) return parse_ids(in);
  tessera_batch* batch = NULL;
  tessera_error* error = NULL;
  good(tessera_batch_new(&batch, &error), &error, "batch_new");
  if (form == BY_IDS) {
    good(tessera_batch_set_doc_ids(batch, TESSERA_SIDE_BOTH, in->doc_ids, s->batch, s->len, &error), &error, "doc_ids");
    return batch;
  }
  int32_t* values = calloc((size_t)(s->batch * (s->len + 2)), sizeof(int32_t));
  int64_t* counts = calloc((size_t)s->batch, sizeof(int64_t));
  int32_t* next = values;
  for (int64_t b = 0; b < s->batch; ++b) {
    int32_t* first = next;
    if (form == BY_ENDS) *next++ = 0;
    for (int64_t i = 0; i < s->len; ++i) {
      const int32_t* ids = in->doc_ids + b * s->len;
      if (ids[i] < 0) break;
      if (i == 0 || ids[i] != ids[i - 1]) *next++ = form == BY_ENDS ? (int32_t)i : 0;
      next[-1] += 1;
    }
    counts[b] = next - first;
  }
  if (form == BY_LENGTHS) {
    good(tessera_batch_set_doc_lengths(batch, TESSERA_SIDE_BOTH, values, counts, s->batch, &error), &error, "lengths");
  } else {
    good(tessera_batch_set_cu_seqlens(batch, TESSERA_SIDE_BOTH, values, counts, s->batch, &error), &error, "ends");
  }
  free(values);
  free(counts);
  return batch;
}

tessera_engine* make_engine(void) {
  tessera_engine* engine = NULL;
  tessera_error* error = NULL;
  good(tessera_engine_new(NULL, &engine, &error), &error, "engine_new");
  return engine;
}

tessera_attention* make_attention(const Sizes* sizes, int64_t passes) {
  tessera_engine* engine = make_engine();
  tessera_contract* contract = make_contract(sizes);
  tessera_attention* attention = NULL;
  tessera_error* error = NULL;
  tessera_attention_options options = tessera_attention_options_init();
  options.passes = passes;
  good(tessera_attention_new(engine, contract, "cpu", &options, &attention, &error), &error, "attention_new");
  tessera_contract_free(contract);
  tessera_engine_free(engine);
  return attention;
}

tessera_plan* make_plan(const tessera_attention* attention, const Inputs* in, Form form) {
  tessera_batch* batch = make_batch(in, form);
  tessera_plan* plan = NULL;
  tessera_error* error = NULL;
  good(tessera_attention_plan(attention, batch, NULL, NULL, &plan, &error), &error, "attention_plan");
  tessera_batch_free(batch);
  return plan;
}

tessera_bound* make_bound(const Inputs* in, int64_t passes, Form form) {
  tessera_attention* attention = make_attention(&in->sizes, passes);
  tessera_plan* plan = make_plan(attention, in, form);
  tessera_bound* bound = NULL;
  tessera_error* error = NULL;
  good(tessera_attention_bind(attention, plan, &bound, &error), &error, "attention_bind");
  tessera_plan_free(plan);
  tessera_attention_free(attention);
  return bound;
}
