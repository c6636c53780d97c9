#include "io/replace_directory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "io/posix_file.h"
#include "io/test_files.h"

namespace lowbit {
namespace {

namespace fs = std::filesystem;
using testing_io::Scratch;

unsigned mode_of(const std::string& path) {
  struct stat info = {};
  EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 0777u;
}

Status replace(const std::string& target, const std::vector<std::string>& files) {
  auto directory = ReplaceDirectory::create(target, [](const std::string&) { return Status{}; });
  if (!directory) return tl::unexpected<Error>(directory.error());
  for (const std::string& name : files)
    if (auto written = write_text_file((*directory)->path() + "/" + name, "text"); !written) return written;
  if (fs::exists(target)) {
    EXPECT_EQ(mode_of((*directory)->path()) & 077, 0u) << "nobody else looks into it while it is made";
  }
  return (*directory)->commit();
}

TEST(ReplaceDirectory, WhatWasPrivateStaysPrivate) {
  const Scratch scratch;
  const std::string target = scratch / "model";
  ASSERT_TRUE(replace(target, {"config.json", "weights"}));
  chmod((target + "/config.json").c_str(), 0600);
  chmod((target + "/weights").c_str(), 0640);
  chmod(target.c_str(), 0700);
  ASSERT_TRUE(replace(target, {"config.json", "weights", "more.json"}));
  EXPECT_EQ(mode_of(target), 0700u);
  EXPECT_EQ(mode_of(target + "/config.json"), 0600u);
  EXPECT_EQ(mode_of(target + "/weights"), 0640u);
  EXPECT_EQ(mode_of(target + "/more.json"), 0600u) << "no wider than the directory";
}

TEST(ReplaceDirectory, ANewOneFollowsTheUmask) {
  const Scratch scratch;
  const mode_t old = umask(027);
  ASSERT_TRUE(replace(scratch / "model", {"config.json"}));
  umask(old);
  EXPECT_EQ(mode_of(scratch / "model"), 0750u);
  EXPECT_EQ(mode_of(scratch / "model/config.json"), 0640u);
}

}  // namespace
}  // namespace lowbit
