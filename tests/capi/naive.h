/* Attention as the textbook has it, in C and in double precision, for the test of the C interface: it knows nothing of
 * tiles, plans or Tessera. Sizes are given; the mask is causal, a window, documents, and a sink logit per head. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define SCALE 0.4
#define SOFTCAP 5.0

typedef struct {
  int64_t batch, len, q_heads, kv_heads, dim_qk, dim_v, window;
} Sizes;

/* A strided [batch, head, token, dim] tensor of floats. `num` of them lie behind `data`, padding included. */
typedef struct {
  float* data;
  size_t num;
  int64_t heads, dim;
  int64_t batch_stride, head_stride, token_stride;
} Tensor;

float* at(const Tensor* tensor, int64_t b, int64_t h, int64_t t);

typedef struct {
  Sizes sizes;
  Tensor q, k, v, dout;
  float* sink_logits; /* [q_heads] */
  int32_t* doc_ids;   /* [batch, len] */
} Inputs;

/* Dense: o, dq [batch, q_heads, len, dim], dk, dv [batch, kv_heads, len, dim], lse, max [batch, q_heads, len]. */
typedef struct {
  double *o, *lse, *max, *dq, *dk, *dv, *dsink_logits;
} Answer;

Answer attend(const Inputs* in);
void free_answer(Answer* answer);
