// instances.cu - what instances.h promises to every test file that includes it.
#define BT_INSTANTIATE
#include "test/instances.h"

namespace baretrain {
BT_INSTANCES(, float)
BT_INSTANCES(, double)
BT_INSTANCES(, bf16)
}  // namespace baretrain
