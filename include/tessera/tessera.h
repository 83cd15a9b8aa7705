// Everything public, in one include.
#pragma once

#include "tessera/batch.h"
#include "tessera/contract.h"
#include "tessera/error.h"
#include "tessera/export.h"
#include "tessera/lane.h"
#include "tessera/mask_term.h"
#include "tessera/plan.h"
#include "tessera/planner.h"
#include "tessera/receipt.h"
#include "tessera/run.h"
#include "tessera/target.h"
#include "tessera/tensor.h"
#include "tessera/version.h"
