/* A plan to look at, as one HTML file (docs/view.md). c_api.h has the rules of the whole interface. */
#pragma once

#include <stddef.h>
#include <string.h>

#include "tessera/c_data.h"
#include "tessera/c_engine.h"
#include "tessera/c_error.h"
#include "tessera/c_plan.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* A plan with the attention it was made by, and what else the page shows. NULL leaves out. */
typedef struct tessera_view_options {
  size_t struct_size;
  const char* name; /* as the reader knows the plan; NULL = "plan" */
  const tessera_attention* attention;
  const tessera_plan* plan;
  const char* other_name; /* a second plan, compared with the first */
  const tessera_attention* other_attention;
  const tessera_plan* other_plan;
  const tessera_tensor* q; /* of a contract that routes, in the host's memory: its picks with their scores */
  const tessera_tensor* k;
  const tessera_receipt* receipt;
} tessera_view_options;
static inline tessera_view_options tessera_view_options_init(void) {
  tessera_view_options out;
  memset(&out, 0, sizeof(out));
  out.struct_size = sizeof(out);
  return out;
}

/* The page as text, the caller's. */
int tessera_view_html(const tessera_view_options* options, char** html, tessera_error** error);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
