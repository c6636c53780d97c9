#include "runtime/engine.h"

#include <gtest/gtest.h>

namespace lowbit {
namespace {

Compute on(const std::string& device) {
  Compute compute;
  compute.device = device;
  return compute;
}
Result<std::vector<int>> gpus_of(const std::string& device) { return wanted_gpus(on(device)); }

TEST(Engine, DevicesByName) {
  EXPECT_EQ(*gpus_of("cpu"), std::vector<int>{});
  EXPECT_EQ(*gpus_of("cuda"), std::vector<int>{0});
  EXPECT_EQ(*gpus_of("cuda:12"), std::vector<int>{12});
  EXPECT_EQ(*gpus_of("cuda:1,cuda:0"), (std::vector<int>{1, 0}));
  EXPECT_EQ(*gpus_of("cuda,cuda:1"), (std::vector<int>{0, 1}));
  for (const char* name :
       {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:99999", "cuda,", ",cuda", "cuda:0,cpu", "cuda:0;1"}) {
    const auto refused = gpus_of(name);
    ASSERT_FALSE(refused.has_value()) << name;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument) << name;
  }
  EXPECT_EQ(*wanted_gpu(on("cpu")), -1);
  EXPECT_EQ(*wanted_gpu(on("cuda:1")), 1);
  EXPECT_EQ(wanted_gpu(on("cuda:0,cuda:1")).error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace lowbit
