/* The C interface, whole: the same nouns as in C++, plain C11. docs/c_api.md has working examples.
 *
 *   engine -> attention (what will run, and why) -> plan (of a batch) -> bound -> forward, backward, receipt
 *
 * Errors. A function that can fail returns 0 when it is good and 1 when it failed, sets its outputs to NULL first, and
 *   on failure leaves a new error in *error; `error` itself may be NULL. A null pointer, a struct of the wrong size or
 *   an unknown value is TSR-A001 wherever it is met. No C++ exception leaves this interface.
 * Ownership. A handle is freed by its own _free function; NULL is allowed there. What a handle was made from may be
 *   freed before it. A `const char*` belongs to its handle, is never NULL, and is "" for a null handle. A `char*` is
 *   the caller's, to be freed with tessera_string_free.
 * Threads. Handles do not change, but for a batch, by its own _set_ functions alone: any number of threads may use one
 * at the same time, as long as none of them frees or sets it. Everything that changes belongs to an engine, which locks
 *   for itself; two engines share nothing but loaded plugin libraries. An error belongs to the call that returned it.
 *   Two calls at the same time need separate output memory, and nothing else.
 * Environment. It is read by tessera_engine_new with NULL as options, and nowhere else.
 * Versions. A struct begins with its own size, which its _init function sets; all else may be zero. A caller built
 *   for an older, smaller struct is served with zeros for the rest; one built for a newer, larger struct is served as
 *   long as what this library does not know is zero. tessera_tensor has no size: from ABI version 1 on it never
 *   changes. Until then it may, and did: it has the memory it lies in since 0.1.0. */
#pragma once

/* The number in the library's soname. Before 1 it changes with every incompatible change of a release. */
#define TESSERA_ABI_VERSION 0

#include "tessera/c_compile.h"
#include "tessera/c_data.h"
#include "tessera/c_engine.h"
#include "tessera/c_error.h"
#include "tessera/c_export.h"
#include "tessera/c_plan.h"
#include "tessera/c_view.h"
