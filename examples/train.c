/* A training loop in C: bf16, four query heads for each key head, new documents every step. The engine, the attention
 * and all memory are made once; a step makes one plan and binds it, and its forward and backward use the same one.
 *
 * What is trained is v alone, toward an output that it can reach: the loss falls, whatever the documents are. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/tessera.h>

enum { TOKENS = 512, HEADS = 8, KV_HEADS = 2, DIM = 32, STEPS = 8, NUM_Q = HEADS * TOKENS * DIM };
enum { NUM_KV = KV_HEADS * TOKENS * DIM };
static const float kRate = 3000.0f;

static uint16_t q[NUM_Q], k[NUM_KV], v[NUM_KV], o[NUM_Q], dout[NUM_Q], dq[NUM_Q], dk[NUM_KV], dv[NUM_KV];
static float lse[HEADS * TOKENS], weights[NUM_KV];

static void stop_on(tessera_error* error) {
  if (error == NULL) return;
  fprintf(stderr, "%s\n", tessera_error_text(error));
  exit(1);
}

/* bf16 is the upper half of a float, rounded to nearest even. */
static uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static float from_bf16(uint16_t half) {
  const uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

static uint64_t state = 1;
static uint32_t next_random(void) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(state >> 33);
}
static float random_float(void) { return (float)next_random() / (float)(1u << 30) - 1.0f; }

/* The documents of a step: lengths from 16 to 128, as many as fit, and padding after them. */
static tessera_batch* next_documents(void) {
  int32_t lengths[TOKENS / 16];
  int64_t count = 0;
  for (int used = 0;;) {
    const int length = 16 + (int)(next_random() % 113);
    if (used + length > TOKENS) break;
    lengths[count++] = length;
    used += length;
  }
  tessera_batch* batch = NULL;
  tessera_error* error = NULL;
  tessera_batch_new(&batch, &error);
  stop_on(error);
  tessera_batch_set_doc_lengths(batch, TESSERA_SIDE_BOTH, lengths, &count, 1, &error);
  stop_on(error);
  return batch;
}

/* Every output that sees a key is to be 1; gives the loss, and its gradient in dout. */
static float measure(void) {
  float loss = 0;
  for (int i = 0; i < NUM_Q; ++i) {
    const int is_padding = isinf(lse[i / DIM]);
    const float error = is_padding ? 0.0f : from_bf16(o[i]) - 1.0f;
    loss += error * error / NUM_Q;
    dout[i] = to_bf16(2 * error / NUM_Q);
  }
  return loss;
}

int main(void) {
  tessera_error* error = NULL;
  tessera_engine* engine = NULL;
  tessera_engine_new(NULL, &engine, &error);
  stop_on(error);
  tessera_contract* contract = NULL;
  tessera_contract_parse(
      "version = 1\n"
      "[shape]\n"
      "q_len = 512\n"
      "num_q_heads = 8\n"
      "num_kv_heads = 2\n"
      "dim_qk = 32\n"
      "dtype = \"bf16\"\n"
      "[mask]\n"
      "expr = \"causal and documents\"\n",
      NULL, &contract, &error);
  stop_on(error);
  tessera_attention_options options = tessera_attention_options_init();
  options.passes = TESSERA_FORWARD | TESSERA_BACKWARD;
  tessera_attention* attention = NULL;
  tessera_attention_new(engine, contract, "cpu", &options, &attention, &error);
  stop_on(error);

  for (int i = 0; i < NUM_Q; ++i) q[i] = to_bf16(random_float());
  for (int i = 0; i < NUM_KV; ++i) k[i] = to_bf16(random_float());
  for (int i = 0; i < NUM_KV; ++i) weights[i] = random_float();
  tessera_args args = tessera_args_init();
  args.q = tessera_tensor_bhtd(q, HEADS, TOKENS, DIM);
  args.k = tessera_tensor_bhtd(k, KV_HEADS, TOKENS, DIM);
  args.v = tessera_tensor_bhtd(v, KV_HEADS, TOKENS, DIM);
  args.dout = tessera_tensor_bhtd(dout, HEADS, TOKENS, DIM);
  args.o = tessera_tensor_bhtd(o, HEADS, TOKENS, DIM);
  args.lse = lse;
  args.dq = tessera_tensor_bhtd(dq, HEADS, TOKENS, DIM);
  args.dk = tessera_tensor_bhtd(dk, KV_HEADS, TOKENS, DIM);
  args.dv = tessera_tensor_bhtd(dv, KV_HEADS, TOKENS, DIM);

  float first_loss = 0, loss = 0;
  for (int step = 0; step < STEPS; ++step) {
    for (int i = 0; i < NUM_KV; ++i) v[i] = to_bf16(weights[i]);
    tessera_batch* batch = next_documents();
    tessera_plan* plan = NULL;
    tessera_bound* bound = NULL;
    tessera_receipt* receipt = NULL;
    tessera_attention_plan(attention, batch, NULL, NULL, &plan, &error);
    stop_on(error);
    tessera_attention_bind(attention, plan, &bound, &error);
    stop_on(error);
    tessera_bound_forward(bound, &args, NULL, NULL, &error);
    stop_on(error);
    loss = measure();
    const int is_last = step == STEPS - 1;
    tessera_bound_backward(bound, &args, NULL, is_last ? &receipt : NULL, &error);
    stop_on(error);
    for (int i = 0; i < NUM_KV; ++i) weights[i] -= kRate * from_bf16(dv[i]);
    printf("step %d: loss %.4f\n", step, (double)loss);
    if (step == 0) first_loss = loss;
    if (is_last) printf("%s\n", tessera_receipt_line(receipt));
    tessera_receipt_free(receipt);
    tessera_bound_free(bound);
    tessera_plan_free(plan);
    tessera_batch_free(batch);
  }
  tessera_attention_free(attention);
  tessera_contract_free(contract);
  tessera_engine_free(engine);
  return loss < 0.5f * first_loss ? 0 : 1;
}
