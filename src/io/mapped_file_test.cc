// Files that change while they are read. A page that is gone must be an error, not the end of the process.

#include "io/mapped_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "io/lost_pages.h"

namespace lowbit {
namespace {

namespace fs = std::filesystem;

class MappedFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::temp_directory_path() / ("lowbit_mapped_" + std::to_string(getpid()));
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::string file_of(size_t bytes) {
    const std::string path = (dir_ / ("f" + std::to_string(bytes))).string();
    std::ofstream(path) << std::string(bytes, 'x');
    return path;
  }
  static int64_t count_x(const MappedFile& file) {
    int64_t count = 0;
    for (const std::byte b : file.bytes()) count += b == std::byte{'x'};
    return count;
  }

  fs::path dir_;
};

constexpr size_t kSmall = 5000, kLarge = size_t{3} << 20, kLeft = 8192;

TEST_F(MappedFileTest, ASmallFileIsACopy) {
  const std::string path = file_of(kSmall);
  const auto file = MappedFile::open(path);
  ASSERT_TRUE(file);
  fs::resize_file(path, 1);
  const auto all = (*file)->borrow(0, kSmall, "all");
  ASSERT_TRUE(all);
  (*file)->release(0, kSmall);
  EXPECT_EQ(count_x(**file), int64_t{kSmall});
  EXPECT_FALSE((*file)->borrow(1, kSmall, "too much"));
}

TEST_F(MappedFileTest, PagesThatAreGoneAreAnErrorOfWhoReadThem) {
  const std::string path = file_of(kLarge), other_path = file_of(kLarge + 1);
  const LostPages lost;
  const auto file = MappedFile::open(path), other = MappedFile::open(other_path);
  ASSERT_TRUE(file && other);
  const auto borrowed = (*file)->borrow(0, kLarge, "all");
  ASSERT_TRUE(borrowed);
  fs::resize_file(path, kLeft);
  EXPECT_TRUE(lost.status(path));  // nobody has looked yet
  EXPECT_EQ(count_x(**file), int64_t{kLeft});
  EXPECT_EQ(count_x(**other), int64_t(kLarge + 1));
  const Status status = lost.status(path);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(status.error().message().find("shortened"), std::string::npos) << status.error().message();
  EXPECT_FALSE(check_pages(borrowed->data() + 17, "tensor"));
  EXPECT_FALSE((*file)->borrow(0, 16, "head"));  // what was read of it cannot be trusted
  EXPECT_TRUE(check_pages((*other)->bytes().data(), "other"));
  EXPECT_TRUE((*other)->borrow(0, 16, "head"));
  EXPECT_TRUE(LostPages().status(path));  // of an operation that begins now
}

TEST_F(MappedFileTest, AFileThatShrinksIsNoticedByTheNextBorrow) {
  const std::string path = file_of(kLarge);
  const auto file = MappedFile::open(path);
  ASSERT_TRUE(file);
  fs::resize_file(path, kLeft);
  EXPECT_TRUE((*file)->borrow(0, kLeft, "what is left"));
  const auto gone = (*file)->borrow(0, kLeft + 1, "tail");
  ASSERT_FALSE(gone);
  EXPECT_NE(gone.error().message().find("8192"), std::string::npos);
}

/// The handlers of this test, of who runs beside lowbit in a process.
int heard = 0;
void count_and_map(int, siginfo_t* info, void*) {
  ++heard;
  const auto page = reinterpret_cast<uintptr_t>(info->si_addr) / 4096 * 4096;
  mmap(reinterpret_cast<void*>(page), 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

/// A mapping of a file's bytes that lowbit knows nothing of, behind the file's end.
volatile const char* lost_page(const std::string& path) {
  FILE* f = std::fopen(path.c_str(), "r");
  void* p = mmap(nullptr, kLarge, PROT_READ, MAP_PRIVATE, fileno(f), 0);
  std::fclose(f);
  fs::resize_file(path, 0);
  return static_cast<volatile const char*>(p);
}

TEST_F(MappedFileTest, OtherMappingsKeepTheirHandler) {
  struct sigaction mine = {}, before = {}, now = {};
  mine.sa_sigaction = count_and_map;
  mine.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &mine, &before);
  {
    const auto file = MappedFile::open(file_of(kLarge));
    ASSERT_TRUE(file);
    heard = 0;
    EXPECT_EQ(*lost_page(file_of(kLarge + 2)), 0);
    EXPECT_EQ(heard, 1);
  }
  sigaction(SIGBUS, nullptr, &now);
  EXPECT_TRUE(now.sa_sigaction == count_and_map);  // it is back when no file is mapped
  sigaction(SIGBUS, &before, nullptr);
}

TEST_F(MappedFileTest, OtherMappingsWithoutAHandlerEndTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        signal(SIGBUS, SIG_DFL);
        const auto file = MappedFile::open(file_of(kLarge));
        (void)*lost_page(file_of(kLarge + 2));
        _exit(0);
      },
      ::testing::KilledBySignal(SIGBUS), "");
  EXPECT_EXIT(
      {
        signal(SIGBUS, SIG_DFL);
        const auto file = MappedFile::open(file_of(kLarge));
        kill(getpid(), SIGBUS);
        _exit(0);
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

TEST_F(MappedFileTest, MoreFilesThanCanBeWatchedAreCopied) {
  const std::string path = file_of(size_t{300} << 10);
  std::vector<std::shared_ptr<MappedFile>> files;
  for (int i = 0; i < 1030; ++i) {
    const auto file = MappedFile::open(path);
    if (!file) GTEST_SKIP() << "not as many open files allowed: " << file.error().message();
    files.push_back(*file);
  }
  const LostPages lost;
  fs::resize_file(path, 4096);
  EXPECT_EQ(count_x(*files.back()), 300 << 10);
  EXPECT_TRUE(lost.status(path));
  EXPECT_EQ(count_x(*files.front()), 4096);
  EXPECT_FALSE(lost.status(path));
}

}  // namespace
}  // namespace lowbit
