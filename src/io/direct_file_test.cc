#include "io/direct_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "expect_error.h"
#include "io/page_cache.h"
#include "test_folder.h"

namespace tessera {
namespace {

std::string sample(int64_t size_bytes) {
  std::string text(static_cast<size_t>(size_bytes), '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 131 + i / 251);
  return text;
}

// If the temporary folder is in memory, nothing can be evicted and all reads come from the cache.
bool drop_where_possible(const std::filesystem::path& path) {
  try {
    drop_from_page_cache(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadConfig) << error.what();
    return false;
  }
  return true;
}

void expect_equal_everywhere(const DirectInputFile& file, const std::string& text) {
  const auto size = std::ssize(text);
  PageBuffer buffer;
  for (const int64_t offset :
       {int64_t{0}, int64_t{1}, int64_t{4095}, int64_t{4096}, int64_t{70'001}, size - 66'000, size - 1}) {
    for (const int64_t count : {int64_t{1}, int64_t{4096}, int64_t{65'536}, int64_t{100'001}, size}) {
      const int64_t now = std::min(count, size - offset);
      const std::span<const std::byte> bytes = file.read_at(offset, now, &buffer);
      ASSERT_EQ(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
                std::string_view(text).substr(static_cast<size_t>(offset), static_cast<size_t>(now)))
          << offset << " " << now;
    }
  }
}

TEST(DirectInputFile, ReadsTheSameFromDiskAndFromCache) {
  for (const int64_t size_bytes : {int64_t{300'000}, int64_t{300'000} / 4096 * 4096}) {
    const TestFolder folder;
    const std::string text = sample(size_bytes);
    const auto path = folder.write("file", text);
    const DirectInputFile cached(path);
    EXPECT_FALSE(cached.is_direct());
    expect_equal_everywhere(cached, text);
    drop_where_possible(path);
    expect_equal_everywhere(DirectInputFile(path), text);
  }
}

TEST(DirectInputFile, ReadsWhereNothingElseThanTheCacheIs) {
  const TestFolder folder(memory_folder());
  const std::string text = sample(300'000);
  expect_equal_everywhere(DirectInputFile(folder.write("file", text)), text);
}

TEST(DirectInputFile, AFileThatEndsEarlyIsNamed) {
  const TestFolder folder;
  const auto path = folder.write("file", sample(300'000));
  for (const bool from_disk : {false, true}) {
    if (from_disk) drop_where_possible(path);
    const DirectInputFile file(path);
    PageBuffer buffer;
    expect_error(ExitCode::kBadData, {path.native(), "ends early"},
                 [&] { file.read_at(200'000, 100'001, &buffer); });
  }
  expect_error(ExitCode::kNoInput, {(folder / "none").native()},
               [&] { DirectInputFile file(folder / "none"); });
}

TEST(PageCache, TellsWhatItHoldsOfAFile) {
  const TestFolder folder;
  const std::filesystem::path path = folder.write("file", sample(300'000));
  const InputFile file = InputFile::open(path);
  if (!drop_where_possible(path)) GTEST_SKIP() << "files in " << folder.path() << " lie in memory";
  const int fd = ::open(path.c_str(), O_RDONLY);
  EXPECT_EQ(cached_share(fd, 300'000), 0.0);
  std::string text(300'000, '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  EXPECT_EQ(cached_share(fd, 300'000), 1.0);
  EXPECT_EQ(cached_share(fd, 0), 0.0);
  ::close(fd);
}

TEST(PageCache, FileThatIsMissingIsNamed) {
  expect_error(ExitCode::kNoInput, {"/nowhere/file: cannot open"},
               [] { drop_from_page_cache("/nowhere/file"); });
}

}  // namespace
}  // namespace tessera
