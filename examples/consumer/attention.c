/* Attention from C: an engine, a contract, a plan, a forward and a backward on memory of our own, and a receipt. */
#include <stdio.h>
#include <stdlib.h>
#include <tessera/tessera.h>

enum { TOKENS = 512, HEADS = 2, DIM = 16 };
static float q[TOKENS][HEADS][DIM], k[TOKENS][HEADS][DIM], v[TOKENS][HEADS][DIM], o[TOKENS][HEADS][DIM];
static float dout[TOKENS][HEADS][DIM], dq[TOKENS][HEADS][DIM], dk[TOKENS][HEADS][DIM], dv[TOKENS][HEADS][DIM];
static float lse[HEADS][TOKENS];

static void stop_on(tessera_error* error) {
  if (error == NULL) return;
  fprintf(stderr, "%s\n", tessera_error_text(error));
  exit(1);
}

/* Our memory is [B,T,H,D]; the strides say so, and nothing is copied. */
static tessera_tensor view(float (*data)[HEADS][DIM]) { return tessera_tensor_bthd(data, HEADS, TOKENS, DIM); }

int main(void) {
  tessera_error* error = NULL;
  tessera_contract* contract = NULL;
  tessera_contract_parse(
      "version = 1\n"
      "[shape]\n"
      "q_len = 512\n"
      "num_q_heads = 2\n"
      "num_kv_heads = 2\n"
      "dim_qk = 16\n"
      "dtype = \"f32\"\n"
      "[mask]\n"
      "expr = \"causal and window(127, 0)\"\n",
      NULL, &contract, &error);
  stop_on(error);

  tessera_engine* engine = NULL;
  tessera_engine_new(NULL, &engine, &error);
  stop_on(error);
  tessera_attention_options options = tessera_attention_options_init();
  options.passes = TESSERA_FORWARD | TESSERA_BACKWARD;
  tessera_attention* attention = NULL;
  tessera_attention_new(engine, contract, "cpu", &options, &attention, &error);
  stop_on(error);
  tessera_plan* plan = NULL;
  tessera_attention_plan(attention, NULL, NULL, NULL, &plan, &error);
  stop_on(error);
  tessera_bound* bound = NULL;
  tessera_attention_bind(attention, plan, &bound, &error);
  stop_on(error);
  tessera_plan_free(plan); /* in any order: the bound call has what it needs */
  tessera_attention_free(attention);
  tessera_contract_free(contract);
  tessera_engine_free(engine);

  for (int t = 0; t < TOKENS; ++t) {
    for (int h = 0; h < HEADS; ++h) {
      for (int d = 0; d < DIM; ++d) v[t][h][d] = dout[t][h][d] = 1.0f;
      q[t][h][0] = k[t][h][0] = (float)(t % 7);
    }
  }
  tessera_args args = tessera_args_init();
  args.q = view(q);
  args.k = view(k);
  args.v = view(v);
  args.dout = view(dout);
  args.o = view(o);
  args.lse = &lse[0][0];
  args.dq = view(dq);
  args.dk = view(dk);
  args.dv = view(dv);
  tessera_receipt* receipt = NULL;
  tessera_bound_forward(bound, &args, NULL, NULL, &error);
  stop_on(error);
  tessera_bound_backward(bound, &args, NULL, &receipt, &error);
  stop_on(error);

  printf("tessera %s: %s\n", tessera_version(), tessera_receipt_line(receipt));
  printf("o[511][1][0] = %.3f\n", (double)o[511][1][0]); /* every value is 1, so every mean of values is */
  tessera_receipt_free(receipt);
  tessera_bound_free(bound);
  return o[511][1][0] > 0.999f && o[511][1][0] < 1.001f ? 0 : 1;
}
