// Everything public, in one include. A C program gets the C interface, a C++ program that and everything else.
#pragma once

#ifdef __cplusplus
#include "tessera/batch.h"
#include "tessera/bitmap.h"
#include "tessera/compile.h"
#include "tessera/contract.h"
#include "tessera/cpu_guard.h"
#include "tessera/dtype.h"
#include "tessera/engine.h"
#include "tessera/error.h"
#include "tessera/export.h"
#include "tessera/io.h"
#include "tessera/lane.h"
#include "tessera/ledger.h"
#include "tessera/make_contract.h"
#include "tessera/mask_leak.h"
#include "tessera/mask_term.h"
#include "tessera/normalise.h"
#include "tessera/plan.h"
#include "tessera/planner.h"
#include "tessera/prepare.h"
#include "tessera/receipt.h"
#include "tessera/records.h"
#include "tessera/route.h"
#include "tessera/run.h"
#include "tessera/stages.h"
#include "tessera/target.h"
#include "tessera/tensor.h"
#endif

#include "tessera/c_api.h"
#include "tessera/version.h"
