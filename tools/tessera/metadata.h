// Whether a plan's metadata fits the scalar memory of its target, and which tile would.
#pragma once

#include <string>

#include "json_text.h"
#include "program.h"

namespace tessera::program {

// "metadata      12,345 bytes of scalar memory; v6e has 1,048,576 bytes: fits". Where it does not, plans of larger
// tiles are made until one does; that needs the problem.
std::string MetadataLine(const PlanView& plan, const Target& target, const Problem* problem);
void AddMetadata(JsonObject& object, const PlanView& plan, const Target& target);

}  // namespace tessera::program
