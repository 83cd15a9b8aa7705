/* Attention as the textbook has it, in C and in double precision, for the test of the C interface: it knows nothing of
 * tiles, plans or Tessera. One fixed mask: causal, a window, documents, and a sink logit per head. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { BATCH = 2, LEN = 29, Q_HEADS = 4, KV_HEADS = 2, DIM_QK = 8, DIM_V = 6, WINDOW = 9 };
#define SCALE 0.4
#define SOFTCAP 5.0

/* A strided [batch, head, token, dim] tensor. `num` floats lie behind `data`, padding included. */
typedef struct {
  float* data;
  size_t num;
  int64_t heads, dim;
  int64_t batch_stride, head_stride, token_stride;
} Tensor;

float* at(const Tensor* tensor, int64_t b, int64_t h, int64_t t);

typedef struct {
  Tensor q, k, v, dout;
  float sink_logits[Q_HEADS];
  int32_t doc_ids[BATCH][LEN];
} Inputs;

typedef struct {
  double o[BATCH][Q_HEADS][LEN][DIM_V];
  double lse[BATCH][Q_HEADS][LEN];
  double max[BATCH][Q_HEADS][LEN];
  double dq[BATCH][Q_HEADS][LEN][DIM_QK];
  double dk[BATCH][KV_HEADS][LEN][DIM_QK];
  double dv[BATCH][KV_HEADS][LEN][DIM_V];
  double dsink_logits[Q_HEADS];
} Answer;

void attend(const Inputs* in, Answer* out);
