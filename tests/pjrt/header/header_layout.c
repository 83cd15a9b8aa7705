// The interface as the plugin's own header has it. Alone in its folder, and in C: this is the one file that reads that
// header, and not every C++ compiler does.
#include <pjrt_c_api.h>
#include <stddef.h>

#include "pjrt/layout.h"

const struct PjrtPlace kPjrtPlacesOfHeader[] = {
#define TESSERA_PJRT_STRUCT(Ours, Theirs) {#Theirs, "", 0, sizeof(Theirs)},
#define TESSERA_PJRT_FIELD(Ours, Theirs, field) {#Theirs, #field, offsetof(Theirs, field), sizeof(((Theirs*)0)->field)},
#define TESSERA_PJRT_SLOT(Ours, Theirs) {#Theirs, "", offsetof(PJRT_Api, Theirs), sizeof(((PJRT_Api*)0)->Theirs)},
#include "pjrt/fields.def"
#undef TESSERA_PJRT_STRUCT
#undef TESSERA_PJRT_FIELD
#undef TESSERA_PJRT_SLOT
};

const size_t kNumPjrtPlacesOfHeader = sizeof(kPjrtPlacesOfHeader) / sizeof(kPjrtPlacesOfHeader[0]);
