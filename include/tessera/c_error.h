/* Versions, strings and errors of the C interface.
 * c_api.h has the rules of the whole interface. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef struct tessera_error tessera_error;

const char* tessera_version(void); /* of the library that runs: TESSERA_VERSION of its tessera/version.h */
int64_t tessera_abi_version(void); /* its TESSERA_ABI_VERSION; must equal the caller's */
void tessera_string_free(char* text);

const char* tessera_error_code(const tessera_error* error);    /* "TSR-C003"; docs/error_codes.md has a page of them */
const char* tessera_error_meaning(const tessera_error* error); /* the code's own sentence, the same in every case */
const char* tessera_error_message(const tessera_error* error); /* what is wrong in this case */
const char* tessera_error_where(const tessera_error* error);   /* file, field, stage or function; may be "" */
const char* tessera_error_text(const tessera_error* error);    /* all of it for people, one line per violation */
/* Every broken rule of a validation error. Out of range gives "". */
size_t tessera_error_num_violations(const tessera_error* error);
const char* tessera_error_violation_field(const tessera_error* error, size_t index);
const char* tessera_error_violation_expected(const tessera_error* error, size_t index);
void tessera_error_free(tessera_error* error);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
