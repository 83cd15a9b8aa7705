/* What the C tests share: checks, random inputs on strided memory, and comparison with the naive answer. */
#pragma once

#include "naive.h"
#include "tessera/tessera.h"

/* Counts and shows what does not hold; gives `holds` back. */
int check(int holds, const char* what);
int num_failed(void);

/* Checks that a call was good; shows and frees its error. The error comes by address: a call's arguments are evaluated
 * in any order, so its value may still be the old one. */
int good(int status, tessera_error** left, const char* what);
/* Checks that a call failed with this code, and with text that holds `says`. */
void bad(int status, tessera_error** left, const char* code, const char* says, const char* what);

void seed_random(uint64_t seed);
float random_float(void);                        /* from -1 to 1 */
int64_t random_int(int64_t least, int64_t most); /* both included */

typedef enum { BHTD, BTHD, PADDED, NUM_LAYOUTS } Layout;
const char* layout_name(Layout layout);

Sizes small_sizes(void);
Sizes random_sizes(void);

/* Inputs in a layout; with `values` the same numbers as those. */
Inputs make_inputs(const Sizes* sizes, Layout layout, const Inputs* values);
void free_inputs(Inputs* in);
Tensor make_tensor(const Sizes* sizes, Layout layout, int64_t heads, int64_t dim);
void fill(const Sizes* sizes, Tensor* t, const Tensor* values); /* NULL: random ones */

typedef struct {
  Sizes sizes;
  Tensor o, dq, dk, dv;
  float *lse, *max, *dsink_logits;
} Outputs;
Outputs make_outputs(const Sizes* sizes, Layout layout);
void free_outputs(Outputs* out);

tessera_tensor ref(const Tensor* t);
tessera_args make_args(Inputs* in, Outputs* out);
/* o, and with `backward` the gradients, to a few units of f32. */
void compare(const Outputs* out, const Answer* want, int backward, const char* name);
void compare_tensor(const Sizes* sizes, const Tensor* got, const double* want, const char* name, const char* more);

/* The contract and batch of these inputs, and an attention that both of them are freed after. */
tessera_contract* make_contract(const Sizes* sizes);
typedef enum { BY_JSON, BY_IDS, BY_LENGTHS, BY_ENDS, NUM_FORMS } Form;
tessera_batch* make_batch(const Inputs* in, Form form);
tessera_engine* make_engine(void);
tessera_attention* make_attention(const Sizes* sizes, int64_t passes);
tessera_plan* make_plan(const tessera_attention* attention, const Inputs* in, Form form);
/* All of the above in one: a bound call whose engine, attention, plan, contract and batch are gone. */
tessera_bound* make_bound(const Inputs* in, int64_t passes, Form form);

/* The other files of the test. */
void test_errors(void);
void test_more(void);
