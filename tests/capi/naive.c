/* See naive.h. */
#include "naive.h"

#include <math.h>
#include <string.h>

float* at(const Tensor* tensor, int64_t b, int64_t h, int64_t t) {
  return tensor->data + b * tensor->batch_stride + h * tensor->head_stride + t * tensor->token_stride;
}

static int allowed(const Inputs* in, int64_t b, int64_t i, int64_t j) {
  return j <= i && j >= i - WINDOW && in->doc_ids[b][i] >= 0 && in->doc_ids[b][i] == in->doc_ids[b][j];
}

static double dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t d = 0; d < n; ++d) sum += (double)a[d] * (double)b[d];
  return sum;
}

/* tanh of the capped score; the logit is SOFTCAP times it. */
static double capped(const Inputs* in, int64_t b, int64_t h, int64_t i, int64_t j) {
  const int64_t g = h / (Q_HEADS / KV_HEADS);
  return tanh(SCALE * dot(at(&in->q, b, h, i), at(&in->k, b, g, j), DIM_QK) / SOFTCAP);
}

static void forward_row(const Inputs* in, Answer* out, int64_t b, int64_t h, int64_t i) {
  const int64_t g = h / (Q_HEADS / KV_HEADS);
  const double sink = in->sink_logits[h];
  double max = -INFINITY, sum = exp(sink);
  for (int64_t j = 0; j < LEN; ++j) {
    if (!allowed(in, b, i, j)) continue;
    const double logit = SOFTCAP * capped(in, b, h, i, j);
    const double e = exp(logit); /* softcap keeps it small: no shift needed */
    if (logit > max) max = logit;
    sum += e;
    for (int d = 0; d < DIM_V; ++d) out->o[b][h][i][d] += e * (double)at(&in->v, b, g, j)[d];
  }
  out->max[b][h][i] = max;
  out->lse[b][h][i] = max == -INFINITY ? -INFINITY : log(sum);
  for (int d = 0; d < DIM_V; ++d) out->o[b][h][i][d] /= sum;
}

static void backward_row(const Inputs* in, Answer* out, int64_t b, int64_t h, int64_t i) {
  const int64_t g = h / (Q_HEADS / KV_HEADS);
  const float* dout = at(&in->dout, b, h, i);
  const double lse = out->lse[b][h][i];
  if (lse == -INFINITY) return;
  double delta = 0;
  for (int d = 0; d < DIM_V; ++d) delta += out->o[b][h][i][d] * (double)dout[d];
  out->dsink_logits[h] -= exp((double)in->sink_logits[h] - lse) * delta;
  for (int64_t j = 0; j < LEN; ++j) {
    if (!allowed(in, b, i, j)) continue;
    const double c = capped(in, b, h, i, j);
    const double p = exp(SOFTCAP * c - lse);
    const double ds = p * (dot(dout, at(&in->v, b, g, j), DIM_V) - delta) * (1 - c * c) * SCALE;
    for (int d = 0; d < DIM_QK; ++d) {
      out->dq[b][h][i][d] += ds * (double)at(&in->k, b, g, j)[d];
      out->dk[b][g][j][d] += ds * (double)at(&in->q, b, h, i)[d];
    }
    for (int d = 0; d < DIM_V; ++d) out->dv[b][g][j][d] += p * (double)dout[d];
  }
}

void attend(const Inputs* in, Answer* out) {
  memset(out, 0, sizeof(*out));
  for (int64_t b = 0; b < BATCH; ++b) {
    for (int64_t h = 0; h < Q_HEADS; ++h) {
      for (int64_t i = 0; i < LEN; ++i) forward_row(in, out, b, h, i);
      for (int64_t i = 0; i < LEN; ++i) backward_row(in, out, b, h, i);
    }
  }
}
