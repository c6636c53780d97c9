#include "io/replace_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "io/posix_file.h"
#include "io/test_files.h"

namespace lowbit {
namespace {

namespace fs = std::filesystem;
using testing_io::read_file;
using testing_io::Scratch;

int64_t files_in(const std::string& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

TEST(ReplaceFile, TheOldFileStaysUntilTheCommit) {
  const Scratch scratch;
  const std::string path = scratch / "out";
  testing_io::write_file(path, "old");
  {
    auto file = ReplaceFile::create(path);
    ASSERT_TRUE(file) << file.error().message();
    testing_io::write_file(file->path(), "half");
    EXPECT_EQ(read_file(path), "old");
  }
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(files_in(scratch.path()), 1);
  ASSERT_TRUE(write_text_file(path, "new"));
  EXPECT_EQ(read_file(path), "new");
  EXPECT_EQ(files_in(scratch.path()), 1);
}

TEST(ReplaceFile, MovedFilesAreRemovedOnce) {
  const Scratch scratch;
  auto a = ReplaceFile::create(scratch / "a"), b = ReplaceFile::create(scratch / "b");
  ASSERT_TRUE(a && b);
  EXPECT_EQ(files_in(scratch.path()), 2);
  *a = std::move(*b);  // a's own is discarded
  EXPECT_EQ(files_in(scratch.path()), 1);
  ASSERT_TRUE(a->commit());
  EXPECT_TRUE(fs::exists(scratch / "b"));
  EXPECT_FALSE(fs::exists(scratch / "a"));
}

TEST(ReplaceFile, WhatAKilledWriterLeftIsRemoved) {
  const Scratch scratch;
  testing_io::write_file(scratch / ".tmp-a-1-0", "left behind");
  testing_io::write_file(scratch / ".tmp-ab-1-0", "another target's");
  testing_io::write_file(scratch / ".tmp-a-notes", "no number");
  auto first = ReplaceFile::create(scratch / "a");  // at work: stays
  ASSERT_TRUE(first);
  ASSERT_TRUE(write_text_file(scratch / "a", "text"));
  EXPECT_FALSE(fs::exists(scratch / ".tmp-a-1-0"));
  EXPECT_TRUE(fs::exists(scratch / ".tmp-ab-1-0"));
  EXPECT_TRUE(fs::exists(scratch / ".tmp-a-notes"));
  EXPECT_TRUE(fs::exists(first->path()));
  EXPECT_EQ(read_file(scratch / "a"), "text");
}

TEST(ReplaceFile, KeepsPermissionsAndSymbolicLinks) {
  const Scratch scratch;
  testing_io::write_file(scratch / "real", "old");
  fs::permissions(scratch / "real", fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read);
  fs::create_symlink("real", scratch / "link");
  ASSERT_TRUE(write_text_file(scratch / "link", "new"));
  EXPECT_TRUE(fs::is_symlink(scratch / "link"));
  EXPECT_EQ(read_file(scratch / "real"), "new");
  struct stat info = {};
  ASSERT_EQ(stat((scratch / "real").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
}

TEST(ReplaceFile, DevicesAreWrittenAsTheyAre) {
  EXPECT_TRUE(write_text_file("/dev/null", "text"));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  const auto full = write_text_file("/dev/full", "text");
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, ErrorCode::kIo);
  EXPECT_EQ(full.error().where, "/dev/full");
}

TEST(ReplaceFile, RefusesWhatIsNoFile) {
  const Scratch scratch;
  for (const std::string& path :
       {scratch.path(), scratch / "", scratch / "no/such", std::string(), scratch / std::string(300, 'n')}) {
    const auto status = write_text_file(path, "text");
    ASSERT_FALSE(status) << path;
    EXPECT_FALSE(status.error().message().empty());
  }
  EXPECT_EQ(files_in(scratch.path()), 0);
}

}  // namespace
}  // namespace lowbit
