/* See naive.h. */
#include "naive.h"

#include <math.h>
#include <stdlib.h>

float* at(const Tensor* tensor, int64_t b, int64_t h, int64_t t) {
  return tensor->data + b * tensor->batch_stride + h * tensor->head_stride + t * tensor->token_stride;
}

static int allowed(const Inputs* in, int64_t b, int64_t i, int64_t j) {
  const int32_t* docs = in->doc_ids + b * in->sizes.len;
  return j <= i && j >= i - in->sizes.window && docs[i] >= 0 && docs[i] == docs[j];
}

static double dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t d = 0; d < n; ++d) sum += (double)a[d] * (double)b[d];
  return sum;
}

static int64_t group_of(const Inputs* in, int64_t h) { return h / (in->sizes.q_heads / in->sizes.kv_heads); }

/* tanh of the capped score; the logit is SOFTCAP times it. */
static double capped(const Inputs* in, int64_t b, int64_t h, int64_t i, int64_t j) {
  return tanh(SCALE * dot(at(&in->q, b, h, i), at(&in->k, b, group_of(in, h), j), in->sizes.dim_qk) / SOFTCAP);
}

static void forward_row(const Inputs* in, Answer* out, int64_t b, int64_t h, int64_t i) {
  const Sizes* s = &in->sizes;
  const int64_t row = (b * s->q_heads + h) * s->len + i;
  double* o = out->o + row * s->dim_v;
  double max = -INFINITY, sum = exp((double)in->sink_logits[h]);
  for (int64_t j = 0; j < s->len; ++j) {
    if (!allowed(in, b, i, j)) continue;
    const double logit = SOFTCAP * capped(in, b, h, i, j);
    const double e = exp(logit); /* softcap keeps it small: no shift needed */
    if (logit > max) max = logit;
    sum += e;
    for (int64_t d = 0; d < s->dim_v; ++d) o[d] += e * (double)at(&in->v, b, group_of(in, h), j)[d];
  }
  out->max[row] = max;
  out->lse[row] = max == -INFINITY ? -INFINITY : log(sum);
  for (int64_t d = 0; d < s->dim_v; ++d) o[d] /= sum;
}

static void backward_row(const Inputs* in, Answer* out, int64_t b, int64_t h, int64_t i) {
  const Sizes* s = &in->sizes;
  const int64_t g = group_of(in, h), row = (b * s->q_heads + h) * s->len + i;
  const float* dout = at(&in->dout, b, h, i);
  const double lse = out->lse[row];
  if (lse == -INFINITY) return;
  double delta = 0;
  for (int64_t d = 0; d < s->dim_v; ++d) delta += out->o[row * s->dim_v + d] * (double)dout[d];
  out->dsink_logits[h] -= exp((double)in->sink_logits[h] - lse) * delta;
  for (int64_t j = 0; j < s->len; ++j) {
    if (!allowed(in, b, i, j)) continue;
    const int64_t key = (b * s->kv_heads + g) * s->len + j;
    const double c = capped(in, b, h, i, j);
    const double p = exp(SOFTCAP * c - lse);
    const double ds = p * (dot(dout, at(&in->v, b, g, j), s->dim_v) - delta) * (1 - c * c) * SCALE;
    for (int64_t d = 0; d < s->dim_qk; ++d) {
      out->dq[row * s->dim_qk + d] += ds * (double)at(&in->k, b, g, j)[d];
      out->dk[key * s->dim_qk + d] += ds * (double)at(&in->q, b, h, i)[d];
    }
    for (int64_t d = 0; d < s->dim_v; ++d) out->dv[key * s->dim_v + d] += p * (double)dout[d];
  }
}

static double* zeros(int64_t num) { return calloc((size_t)num, sizeof(double)); }

Answer attend(const Inputs* in) {
  const Sizes* s = &in->sizes;
  const int64_t q_rows = s->batch * s->q_heads * s->len, kv_rows = s->batch * s->kv_heads * s->len;
  Answer out = {
      zeros(q_rows * s->dim_v),  zeros(q_rows),    zeros(q_rows), zeros(q_rows * s->dim_qk), zeros(kv_rows * s->dim_qk),
      zeros(kv_rows * s->dim_v), zeros(s->q_heads)};
  for (int64_t b = 0; b < s->batch; ++b) {
    for (int64_t h = 0; h < s->q_heads; ++h) {
      for (int64_t i = 0; i < s->len; ++i) forward_row(in, &out, b, h, i);
      for (int64_t i = 0; i < s->len; ++i) backward_row(in, &out, b, h, i);
    }
  }
  return out;
}

void free_answer(Answer* answer) {
  free(answer->o);
  free(answer->lse);
  free(answer->max);
  free(answer->dq);
  free(answer->dk);
  free(answer->dv);
  free(answer->dsink_logits);
}
