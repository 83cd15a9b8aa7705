/* The child that meets an unknown plugin first: it loads the library and asks for its function table, which is all the
   code of a plugin that runs before its table can be looked at. "ok" on descriptor 3 means that the process came back
   from both; "no" that there was nothing to come back from, and the caller will be told why when it looks itself. Part
   of libtessera, which keeps the bytes of this program and runs them from memory. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/resource.h>
#include <unistd.h>

static int Answer(const char* word) { return write(3, word, 2) == 2 ? 0 : 1; }

int main(int argc, char** argv) {
  const struct rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  if (argc != 2) return 2;
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) _exit(Answer("no"));
  /* A function's address through an object pointer, as dlsym is meant to be used. */
  const void* (*get_api)(void) = NULL;
  *(void**)&get_api = dlsym(library, "GetPjrtApi");
  if (get_api == NULL) _exit(Answer("no"));
  get_api();
  _exit(Answer("ok")); /* not through the library's own destructors */
}
