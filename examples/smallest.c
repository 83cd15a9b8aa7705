/* The same from C: one call that prepares, plans and runs. docs/c_api.md shows it. */
#include <stdio.h>
#include <tessera/tessera.h>
int main(void) {
  static float q[8][1024][64], k[8][1024][64], v[8][1024][64], o[8][1024][64];
  tessera_engine* engine = NULL;
  tessera_contract* contract = NULL;
  tessera_error* error = NULL;
  tessera_args args = tessera_args_init();
  args.q = tessera_tensor_bhtd(q, 8, 1024, 64);
  args.k = tessera_tensor_bhtd(k, 8, 1024, 64);
  args.v = tessera_tensor_bhtd(v, 8, 1024, 64);
  args.o = tessera_tensor_bhtd(o, 8, 1024, 64);
  const char* text = "version=1\nshape.q_len=1024\nshape.num_q_heads=8\nshape.dim_qk=64\nmask.expr='causal'\n";
  int failed = tessera_engine_new(NULL, &engine, &error) || tessera_contract_parse(text, NULL, &contract, &error) ||
               tessera_run(engine, contract, NULL, NULL, NULL, &args, NULL, NULL, &error);
  puts(failed ? tessera_error_text(error) : "done");
  tessera_error_free(error);
  tessera_contract_free(contract);
  tessera_engine_free(engine);
  return failed;
}
