#include "io/json_text.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/test_allocations.h"
#include "io/posix_file.h"

namespace lowbit {
namespace {

using nlohmann::json;

TEST(JsonEnd, TakesNoMemory) {
#if defined(LOWBIT_COUNTS_ALLOCATIONS)
  const auto text = R"({"a": [1, [2, {"b": "long enough to lie on the heap"}], {}], "c": {"d": {"e": []}}})";
  const auto allocations_at_the_end = [&](bool emptied) {
    auto tree = std::make_optional(*parse_json_object(text, "test"));
    const int64_t before = allocations;
    if (emptied) end_json(*tree);
    tree.reset();
    return allocations - before;
  };
  EXPECT_GT(allocations_at_the_end(false), 0);  // what it is for
  EXPECT_EQ(allocations_at_the_end(true), 0);
#else
  GTEST_SKIP() << "a sanitizer, or a C library other than glibc, has its own malloc: allocations cannot be counted";
#endif
}

TEST(JsonEnd, LeavesWhatWasMovedAway) {
  json kept;
  {
    json tree = {{"a", {1, 2}}};
    const JsonEnd end(tree);
    kept = std::move(tree);
  }
  EXPECT_EQ(kept, (json{{"a", {1, 2}}}));
  for (json value : {json(), json(1), json("text"), json::array(), json::object()}) {
    end_json(value);
    EXPECT_TRUE(value.empty() || value.is_primitive());
  }
}

/// Where a tree's first member finds no memory, it has a type and no value; nlohmann::json's destructor follows that.
TEST(JsonEnd, EndsWhatFoundNoMemory) {
#if defined(LOWBIT_COUNTS_ALLOCATIONS)
  json tree;
  {
    JsonEnd end(tree);
    fail_next_allocation = true;
    EXPECT_THROW(tree["a"], std::bad_alloc);
    EXPECT_TRUE(tree.is_object());
  }
  EXPECT_TRUE(tree.is_null());
#else
  GTEST_SKIP()
      << "a sanitizer, or a C library other than glibc, has its own malloc: allocations cannot be made to fail";
#endif
}

TEST(JsonEnd, GivesItsTreeAway) {
  const auto make = [] {
    json tree;
    JsonEnd end(tree);
    tree["a"] = 1;
    return end.take();
  };
  EXPECT_EQ(make(), (json{{"a", 1}}));
}

TEST(DirectoryNames, InOrderWithoutThemselves) {
  const std::string folder = testing::TempDir() + "directory_names";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder + "/b");
  for (const char* name : {"/c.json", "/.hidden", "/a"}) std::ofstream(folder + name) << "x";
  EXPECT_EQ(*directory_names(folder), (std::vector<std::string>{".hidden", "a", "b", "c.json"}));
  EXPECT_TRUE(directory_names(folder + "/b")->empty());
  for (const char* name : {"/a", "/none"}) {
    const auto none = directory_names(folder + name);
    ASSERT_FALSE(none);
    EXPECT_EQ(none.error().code, ErrorCode::kIo);
  }
}

}  // namespace
}  // namespace lowbit
